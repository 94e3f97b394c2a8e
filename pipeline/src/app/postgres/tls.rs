//! TLS of the door: the certificate and key of `server.pg_tls_cert` and `server.pg_tls_key`, read once at start.
//!
//! Without them a client that asks for TLS is told that there is none. With them it may have it, and need not; the key is never sent
//! either way (`login`). TLS 1.2 and 1.3; there are no client certificates and there is no channel binding.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use pgwire::tokio::TlsAcceptor;
use rustls::{
    ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use thiserror::Error;

/// The setting of the certificates.
const CERT: &str = "server.pg_tls_cert";
/// The setting of the key.
const KEY: &str = "server.pg_tls_key";
/// What clients that begin with TLS at once name the protocol.
const ALPN: &[u8] = b"postgresql";

/// Why the door cannot have TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{setting} = {path:?}: cannot be read: {source}")]
    Unreadable { setting: &'static str, path: PathBuf, source: io::Error },
    #[error("{setting} = {path:?}: {words}; expected {expected}")]
    Wrong { setting: &'static str, path: PathBuf, words: String, expected: &'static str },
    #[error("server.pg_tls_cert = {cert:?} and server.pg_tls_key = {key:?} do not go together: {source}")]
    Unfit { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

/// What accepts TLS with these files.
///
/// Errors: the setting and the file that are wrong, and what would be right.
pub(super) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let expected = "PEM with the server's own certificate first, then those it is signed with";
    let wrong = |error| wrong((CERT, cert), error, expected);
    let certs: Result<Vec<CertificateDer<'static>>, pem::Error> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let certs = match certs.map_err(wrong)? {
        none if none.is_empty() => return Err(wrong(pem::Error::NoItemsFound)),
        certs => certs,
    };
    let expected = "PEM with one private key that has no passphrase (PKCS#8, PKCS#1 or SEC1)";
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| self::wrong((KEY, key), error, expected))?;
    let unfit = |source| TlsError::Unfit { cert: cert.into(), key: key.into(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unfit)?;
    let mut config = config.with_no_client_auth().with_single_cert(certs, secret).map_err(unfit)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn wrong((setting, path): (&'static str, &Path), error: pem::Error, expected: &'static str) -> TlsError {
    let path = path.to_path_buf();
    match error {
        pem::Error::Io(source) => TlsError::Unreadable { setting, path, source },
        pem::Error::NoItemsFound => TlsError::Wrong { setting, path, words: "holds none".into(), expected },
        error => TlsError::Wrong { setting, path, words: error.to_string(), expected },
    }
}
