//! HTTP/2 between the processes of one server: what a cancelled call costs.
//!
//! Why settings of our own: HTTP/2 takes cancelled calls for an attack once they are many (the answer to CVE-2023-44487) and ends the
//! connection with every call on it. Of calls that were cancelled before a busy process looked at them it allows 20, and of messages
//! that come for a call some time after its cancelling 1024 in a connection's life. Between gateway and workers callers hang up by the
//! hundred just when processes are busy, and each such connection has all running sequences on it. Doors to strangers keep the
//! libraries' own bounds.
//! Bounds: [`CANCELLED_MAX`] calls that are cancelled and not yet looked at, and as many cancelled ones remembered for
//! [`REMEMBERED`]; above either the connection ends as with strangers, or the message is answered as one of no call. State: none.

use std::time::Duration;

use tonic::transport::{Endpoint, Server};

/// Some hundred bytes each.
pub const CANCELLED_MAX: usize = 1 << 16;
/// Longer than a process that lives leaves messages unread.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A gRPC server for our own processes.
pub fn server() -> Server {
    Server::builder()
        .http2_max_pending_accept_reset_streams(Some(CANCELLED_MAX))
        .http2_max_local_error_reset_streams(Some(CANCELLED_MAX))
}

/// A client of one of our own processes.
pub fn client_of(endpoint: Endpoint) -> Endpoint {
    endpoint
        .http2_max_concurrent_reset_streams(CANCELLED_MAX)
        .http2_reset_stream_duration(REMEMBERED)
        .http2_max_local_error_reset_streams(None)
}
