//! The binary `evenkeel`: a thin door to `pipeline::app`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // One provider is in the tree; naming it first keeps rustls from having to choose.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let filter = tracing_subscriber::EnvFilter::try_from_env("EVENKEEL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,pipeline=info"));
    // A log line that cannot be written (a full disk) is lost; to complain about it on stderr would be to panic.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    lines.log_internal_errors(false).init();
    pipeline::app::cli::main()
}
