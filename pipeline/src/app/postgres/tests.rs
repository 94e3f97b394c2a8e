//! The door over real connections, byte by byte: bounds, and bytes that are no messages.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use queries::{LiveTables, SqlEngine, SqlLimits, Topic};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use super::{PgDoor, columns, serve, session::STATEMENTS_MAX, tls};
use crate::config::{self, Overrides};

/// A door with two places, and where it is.
async fn door() -> SocketAddr {
    door_with(|_| {}).await
}

async fn door_with(change: impl FnOnce(&mut config::Server)) -> SocketAddr {
    let limits = SqlLimits {
        timeout: Duration::from_secs(60),
        memory_bytes: 64 << 20,
        rows_max: 1000,
        statement_bytes_max: 16 << 10,
        concurrent_max: 2,
    };
    let engine = SqlEngine::new(limits, Arc::new(LiveTables::for_sql(100)), tokio::runtime::Handle::current());
    let mut config = config::load(None, Overrides::default()).unwrap().server;
    config.pg_connections_max = 2;
    change(&mut config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Arc::new(PgDoor::new(&config, Arc::new(engine)).unwrap()), CancellationToken::new()));
    address
}

/// A message with its length.
fn message(kind: &[u8], body: &[u8]) -> Vec<u8> {
    [kind, &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

fn startup() -> Vec<u8> {
    message(b"", &[&196_608u32.to_be_bytes()[..], b"user\0ann\0database\0evenkeel\0\0"].concat())
}

async fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Messages up to one of a kind, or to the end: kinds and bodies.
async fn read(stream: &mut TcpStream, last: u8) -> Vec<(u8, String)> {
    let mut messages = Vec::new();
    while let Ok(kind) = stream.read_u8().await {
        let length = stream.read_u32().await.unwrap() as usize;
        let mut body = vec![0; length - 4];
        stream.read_exact(&mut body).await.unwrap();
        messages.push((kind, String::from_utf8_lossy(&body).into_owned()));
        if kind == last {
            break;
        }
    }
    messages
}

/// Scenario: a third client at a door with two places, then again when one has left.
/// Guarantees: it is told so with SQLSTATE 53300, and gets in afterwards.
#[tokio::test]
async fn a_crowded_door_says_so() {
    let address = door().await;
    let (mut first, mut second) = (send(address, &startup()).await, send(address, &startup()).await);
    read(&mut first, b'Z').await;
    read(&mut second, b'Z').await;
    let told = read(&mut send(address, &startup()).await, 0).await;
    assert!(told.iter().any(|(kind, text)| *kind == b'E' && text.contains("53300")), "{told:?}");
    first.write_all(&message(b"X", b"")).await.unwrap();
    assert!(read(&mut first, 0).await.is_empty());
    let mut third = send(address, &startup()).await;
    assert_eq!(read(&mut third, b'Z').await.last().map(|(kind, _)| *kind), Some(b'Z'));
}

/// Scenario: another protocol, a message of no kind, one that is said to be a gigabyte, and its first megabytes.
/// Guarantees: the connection is closed, and the door serves the next client.
#[tokio::test]
async fn nonsense_is_cut_off() {
    let address = door().await;
    read(&mut send(address, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await, 0).await;
    let mut odd = send(address, &startup()).await;
    read(&mut odd, b'Z').await;
    odd.write_all(&message(b"\x01", b"what")).await.unwrap();
    read(&mut odd, 0).await;
    let mut long = send(address, &startup()).await;
    read(&mut long, b'Z').await;
    long.write_all(&[&b"Q"[..], &(1u32 << 29).to_be_bytes()].concat()).await.unwrap();
    // The door stops reading at its bound, so that this ends with an error, sooner or later.
    let part = vec![b' '; 1 << 20];
    let mut sent = 0;
    while sent < 64 && long.write_all(&part).await.is_ok() {
        sent += 1;
    }
    assert!(sent < 64, "64 MiB of one message were taken");
    let mut next = send(address, &startup()).await;
    next.write_all(&message(b"Q", b"select 1 as one\0")).await.unwrap();
    read(&mut next, b'Z').await;
    assert!(read(&mut next, b'Z').await.iter().any(|(kind, _)| *kind == b'D'));
}

/// Scenario: more prepared statements than a session may have, after a statement that is no question.
/// Guarantees: 25006 for the first, 53400 for the one too many, and the session goes on.
#[tokio::test]
async fn statements_are_bounded() {
    let address = door().await;
    let mut client = send(address, &startup()).await;
    read(&mut client, b'Z').await;
    client.write_all(&[parse("no", "drop table faults"), message(b"S", b"")].concat()).await.unwrap();
    let told = read(&mut client, b'Z').await;
    assert!(told.iter().any(|(kind, text)| *kind == b'E' && text.contains("25006")), "{told:?}");
    let mut many: Vec<u8> = (0..=STATEMENTS_MAX).flat_map(|n| parse(&format!("s{n}"), "begin")).collect();
    many.extend(message(b"S", b""));
    client.write_all(&many).await.unwrap();
    let told = read(&mut client, b'Z').await;
    assert!(told.iter().any(|(kind, text)| *kind == b'E' && text.contains("53400")), "{told:?}");
    client.write_all(&message(b"Q", b"select 1\0")).await.unwrap();
    assert!(read(&mut client, b'Z').await.iter().any(|(kind, _)| *kind == b'D'));
}

/// A client that has logged in.
async fn client(address: SocketAddr) -> TcpStream {
    let mut client = send(address, &startup()).await;
    read(&mut client, b'Z').await;
    client
}

/// What a statement of the simple protocol is answered with: kinds of messages, the state of the transaction last, and the SQLSTATE of an
/// error.
async fn ask(client: &mut TcpStream, sql: &str) -> String {
    client.write_all(&message(b"Q", &[sql.as_bytes(), b"\0"].concat())).await.unwrap();
    told(client).await
}

async fn told(client: &mut TcpStream) -> String {
    let words = read(client, b'Z').await.into_iter().map(|(kind, body)| match kind {
        b'E' => body.split('\0').find_map(|field| field.strip_prefix('C')).unwrap_or_default().to_string(),
        b'Z' => body,
        b'C' => body.trim_end_matches('\0').to_string(),
        kind => char::from(kind).to_string(),
    });
    words.collect::<Vec<_>>().join(",")
}

fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b"P", &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat())
}

/// Binds a statement without parameters to a portal, for results as text.
fn bind(portal: &str, statement: &str) -> Vec<u8> {
    message(b"B", &[portal.as_bytes(), b"\0", statement.as_bytes(), b"\0\0\0\0\0\0\0"].concat())
}

fn execute(portal: &str, most: i32) -> Vec<u8> {
    message(b"E", &[portal.as_bytes(), b"\0", &most.to_be_bytes()].concat())
}

fn sync() -> Vec<u8> {
    message(b"S", b"")
}

/// Scenario: a portal run for two rows at a time, then for more than anybody has memory for, then again; one that does not exist.
/// Guarantees: rows come in parts, each once; the largest number is all that is left; 34000 for the unknown one.
#[tokio::test]
async fn portals_come_in_parts() {
    let mut client = client(door().await).await;
    let parts = [
        parse("", "select value from generate_series(1, 5)"),
        bind("p", ""),
        execute("p", 2),
        execute("p", 2),
        execute("p", i32::MAX),
        execute("p", 0),
        sync(),
    ];
    client.write_all(&parts.concat()).await.unwrap();
    assert_eq!(told(&mut client).await, "1,2,D,D,s,D,D,s,D,SELECT 1,SELECT 0,I");
    client.write_all(&[bind("q", ""), execute("q", -1), sync()].concat()).await.unwrap();
    assert_eq!(told(&mut client).await, "2,D,D,D,D,D,SELECT 5,I");
    client.write_all(&[execute("p", 0), sync()].concat()).await.unwrap();
    assert_eq!(told(&mut client).await, "34000,I");
}

/// Scenario: a mistake in a transaction with a savepoint; the transaction in one message; its end. Guarantees: statements are refused
/// until it goes back, and a portal of the transaction is gone after its end.
#[tokio::test]
async fn transactions_go_back_to_savepoints() {
    let mut client = client(door().await).await;
    assert_eq!(ask(&mut client, "rollback to a").await, "25P01,I");
    assert_eq!(ask(&mut client, "begin; savepoint a; select 1 as one").await, "BEGIN,SAVEPOINT,T,D,SELECT 1,T");
    assert_eq!(ask(&mut client, "select nothing; select 1").await, "42703,E");
    assert_eq!(ask(&mut client, "select 1").await, "25P02,E");
    assert_eq!(ask(&mut client, "savepoint b").await, "25P02,E");
    assert_eq!(ask(&mut client, "rollback to savepoint a; select 1").await, "ROLLBACK,T,D,SELECT 1,T");
    client.write_all(&[parse("", "select 1"), bind("p", ""), sync()].concat()).await.unwrap();
    assert_eq!(told(&mut client).await, "1,2,T");
    assert_eq!(ask(&mut client, "commit").await, "COMMIT,I");
    client.write_all(&[execute("p", 0), sync()].concat()).await.unwrap();
    assert_eq!(told(&mut client).await, "34000,I");
    assert_eq!(ask(&mut client, "begin; select nothing").await, "BEGIN,42703,E");
    assert_eq!(ask(&mut client, "commit").await, "ROLLBACK,I");
}

/// Scenario: a cursor as psql's FETCH_COUNT and psycopg use it: declared, described, fetched, moved, closed; outside a transaction; after its
/// end; WITH HOLD. Guarantees: rows in parts, tags with their numbers, and 25P01, 34000 and 42P03 where PostgreSQL says them.
#[tokio::test]
async fn cursors_go_through_an_answer() {
    let mut client = client(door().await).await;
    let declare = "declare c no scroll cursor for\nselect value as v from generate_series(1, 5)";
    assert_eq!(ask(&mut client, declare).await, "25P01,I");
    assert_eq!(ask(&mut client, "begin").await, "BEGIN,T");
    assert_eq!(ask(&mut client, declare).await, "DECLARE CURSOR,T");
    let describe = [message(b"D", b"Pc\0"), sync()].concat();
    client.write_all(&describe).await.unwrap();
    assert_eq!(told(&mut client).await, "T,T");
    assert_eq!(ask(&mut client, "fetch forward 2 from c").await, "T,D,D,FETCH 2,T");
    assert_eq!(ask(&mut client, "move 1 in c; fetch all c; fetch c").await, "MOVE 1,T,D,D,FETCH 2,T,FETCH 0,T");
    let prepared = [parse("", "fetch c"), message(b"D", b"S\0"), bind("", ""), execute("", 0), sync()].concat();
    client.write_all(&prepared).await.unwrap();
    assert_eq!(told(&mut client).await, "1,t,T,2,FETCH 0,T");
    assert_eq!(ask(&mut client, "close c").await, "CLOSE CURSOR,T");
    assert_eq!(ask(&mut client, "fetch c").await, "34000,E");
    assert_eq!(ask(&mut client, "rollback").await, "ROLLBACK,I");
    assert_eq!(ask(&mut client, "declare h cursor with hold for select 1").await, "DECLARE CURSOR,I");
    assert_eq!(ask(&mut client, "declare h cursor with hold for select 1").await, "42P03,I");
    assert_eq!(ask(&mut client, "begin; declare c cursor for select 2; commit").await, "BEGIN,DECLARE CURSOR,COMMIT,I");
    assert_eq!(ask(&mut client, "fetch c").await, "34000,I");
    assert_eq!(ask(&mut client, "fetch h; close all; fetch h").await, "T,D,FETCH 1,CLOSE CURSOR ALL,34000,I");
    assert_eq!(ask(&mut client, "declare d cursor with hold for drop table faults").await, "25006,I");
    client.write_all(&describe).await.unwrap();
    assert_eq!(told(&mut client).await, "34000,I");
}

/// A certificate for `localhost` and 127.0.0.1 with its key, made by openssl, in a folder of its own. `None`: there is no openssl.
fn certificate() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let wanted = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=localhost \
                  -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    let made = std::process::Command::new("openssl")
        .args(wanted.split_whitespace())
        .current_dir(folder.path())
        .stderr(std::process::Stdio::null())
        .status();
    match made {
        Ok(status) => assert!(status.success(), "openssl made no certificate"),
        Err(_) => {
            println!("SKIPPED (no openssl)");
            return None;
        }
    }
    Some(folder)
}

/// What PostgreSQL's clients send to ask for TLS.
fn ssl_request() -> Vec<u8> {
    message(b"", &80_877_103u32.to_be_bytes())
}

/// Scenario: a client asks for TLS at a door without it, then at one with it, where it verifies the certificate and asks a question; a
/// client without TLS at that door; bytes that were sent before the handshake. Guarantees: N and S as PostgreSQL answers, an answer
/// through TLS and one without, and nothing from before the handshake is taken for what came through it.
#[tokio::test]
async fn tls_is_there_if_it_is_set() {
    let mut refused = send(door().await, &ssl_request()).await;
    assert_eq!(refused.read_u8().await.unwrap(), b'N');

    let Some(files) = certificate() else { return };
    let (cert, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
    let address = door_with(|config| (config.pg_tls_cert, config.pg_tls_key) = (cert.clone(), key)).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_file(&cert).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let connector = pgwire::tokio::TlsConnector::from(Arc::new(config));

    let mut plain = send(address, &ssl_request()).await;
    assert_eq!(plain.read_u8().await.unwrap(), b'S');
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut client = connector.connect(name.clone(), plain).await.unwrap();
    client.write_all(&startup()).await.unwrap();
    client.write_all(&message(b"Q", b"select 1 as one\0")).await.unwrap();
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains("SELECT 1") {
        assert_ne!(client.read_buf(&mut bytes).await.unwrap(), 0, "the connection ended early");
    }
    let mut without = self::client(address).await;
    assert_eq!(ask(&mut without, "select 1").await, "T,D,SELECT 1,I");

    let mut early = send(address, &[ssl_request(), startup()].concat()).await;
    assert_eq!(early.read_u8().await.unwrap(), b'S');
    if let Ok(mut client) = connector.connect(name, early).await {
        let mut bytes = Vec::new();
        let _ = client.read_to_end(&mut bytes).await;
        assert!(bytes.is_empty(), "{bytes:?}");
    }
}

/// Scenario: files for TLS that are not there, hold nothing, hold another thing, or do not go together. Guarantees: each is refused at
/// start with the setting and the file.
#[test]
fn wrong_files_for_tls_are_told() {
    let (Some(one), Some(other)) = (certificate(), certificate()) else { return };
    let empty = one.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let (cert, key) = (one.path().join("cert.pem"), one.path().join("key.pem"));
    let told = |cert: &Path, key: &Path| match tls::acceptor(cert, key) {
        Ok(_) => "none".to_string(),
        Err(error) => error.to_string(),
    };
    assert_eq!(told(&cert, &key), "none");
    let missing = one.path().join("missing.pem");
    for (told, setting, words) in [
        (told(&missing, &key), "server.pg_tls_cert", "cannot be read"),
        (told(&cert, &missing), "server.pg_tls_key", "cannot be read"),
        (told(&empty, &key), "server.pg_tls_cert", "holds none"),
        (told(&key, &key), "server.pg_tls_cert", "holds none"),
        (told(&cert, &cert), "server.pg_tls_key", "one private key"),
        (told(&cert, &other.path().join("key.pem")), "server.pg_tls_key", "do not go together"),
    ] {
        assert!(told.contains(setting) && told.contains(words), "{told}");
    }
}

/// Scenario: columns of one name, and expressions without one. Guarantees: names as PostgreSQL gives them, twice if need be.
#[tokio::test]
async fn columns_have_postgres_names() {
    let mut client = client(door().await).await;
    let sql = b"select d.datname, d.datname, count(*), 1 + 1 from pg_database d group by 1\0";
    client.write_all(&message(b"Q", sql)).await.unwrap();
    let told = read(&mut client, b'Z').await;
    let (_, described) = told.iter().find(|(kind, _)| *kind == b'T').unwrap();
    let at = |name: &str| described.match_indices(&format!("{name}\0")).count();
    assert_eq!((at("datname"), at("count"), at("?column?")), (2, 1, 1), "{described:?}");
}

/// Scenario: a statement over columns of text with parameters beside them is described, over tables that hold text as views.
/// Guarantees: parameters and columns are `text`.
#[tokio::test]
async fn columns_of_text_are_text() {
    let mut client = client(door().await).await;
    let sql = "select tier, tenant || '!' as loud from requests where tier = $1 and tenant like $2";
    client.write_all(&[parse("", sql), message(b"D", b"S\0"), sync()].concat()).await.unwrap();
    let told = read(&mut client, b'Z').await;
    let texts = |wanted: u8| {
        let (_, body) = told.iter().find(|(kind, _)| *kind == wanted).unwrap();
        body.matches("\0\0\0\u{19}").count()
    };
    assert_eq!((texts(b't'), texts(b'T')), (2, 2), "{told:?}");
}

/// Scenario: every column of every table. Guarantees: its type is the same in `pg_attribute` and where rows are described.
#[test]
fn types_are_the_same_everywhere() {
    for topic in Topic::ALL {
        let schema = columns::flat(&topic.schema());
        let described = columns::fields(&schema, &pgwire::api::portal::Format::UnifiedText).unwrap();
        for (field, info) in topic.schema().fields().iter().zip(&described) {
            let told = queries::postgres::type_of(field.data_type());
            assert_eq!(i64::from(info.datatype().oid()), told, "{}.{}", topic.name(), field.name());
        }
    }
}
