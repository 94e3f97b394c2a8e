//! Generates the code of the protocols between our processes. `protox` parses the `.proto`, so no `protoc` is needed on the machine.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/worker.proto", "proto/query.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
