//! Generates the worker protocol's code. `protox` parses the `.proto`, so no `protoc` is needed on the machine.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/worker.proto");
    let descriptors = protox::compile(["proto/worker.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
