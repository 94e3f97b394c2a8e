//! How clouds' stores are reached, and what is said where they refuse or do not answer (SPEC E3). The stores are sockets of this
//! machine that say one thing, or nothing.

use std::{
    io::{Read, Write},
    net::TcpListener,
    time::Duration,
};

use queries::snapshot::{Place, SnapshotError, StoreSettings};

const S3_KEYS: [(&str, &str); 3] =
    [("aws_access_key_id", "a"), ("aws_secret_access_key", "b"), ("aws_allow_http", "true")];
const AZURE_KEYS: [(&str, &str); 3] =
    [("azure_storage_account_name", "fleet"), ("azure_storage_account_key", "aGVsbG8="), ("azure_allow_http", "true")];

fn settings<'a>(options: impl IntoIterator<Item = (&'a str, &'a str)>) -> StoreSettings {
    let options = options.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    StoreSettings { options, timeout: Duration::from_millis(300) }
}

/// Answers every request with one status line and body, or takes connections and never answers.
fn store(answer: Option<(&'static str, &'static str)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if let Some((status, body)) = answer {
                let mut request = [0; 8192];
                let _ = stream.read(&mut request);
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(format!("{head}{body}").as_bytes());
            } else {
                open.push(stream);
            }
        }
    });
    address
}

/// An address that nobody listens on.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

async fn refusal(target: &str, settings: &StoreSettings) -> String {
    Place::open(target, settings).unwrap().snapshots().await.unwrap_err().to_string()
}

/// Scenario: each kind of store without the bucket, and with keys that it does not take, as the kinds say so.
/// Guarantees: the error names the target, what the store said, and what to do; no XML is repeated.
#[tokio::test]
async fn refusals_say_what_to_do() {
    let no_bucket = "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not \
                     exist</Message><BucketName>fleet</BucketName></Error>";
    let no_container = "<?xml version=\"1.0\"?>\n<Error>\n  <Code>ContainerNotFound</Code>\n  <Message>The specified container \
                        does not exist.\nRequestId:5dc72a9e\nTime:2026-11-30T13:26:57.270Z</Message>\n</Error>";
    let bad_key = "<Error><Code>InvalidAccessKeyId</Code><Message>The key is not in our records.</Message></Error>";
    let bad_signature =
        "<Error><Code>AuthorizationFailure</Code><Message>Server failed to authenticate.</Message></Error>";
    let cases = [
        ("s3://fleet/a", ("404 Not Found", no_bucket), "NoSuchBucket: The specified bucket does not exist; create it"),
        ("gs://fleet/a", ("404 Not Found", no_bucket), "NoSuchBucket: The specified bucket does not exist; create it"),
        ("az://fleet/a", ("404 Not Found", no_container), "The specified container does not exist; create it"),
        (
            "s3://fleet/a",
            ("403 Forbidden", bad_key),
            "in our records; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        (
            "az://fleet/a",
            ("403 Forbidden", bad_signature),
            "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        ),
        ("gs://fleet/a", ("403 Forbidden", bad_key), "check GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT"),
    ];
    for (target, answer, words) in cases {
        let address = store(Some(answer));
        let account = format!("{address}/fleet");
        let error = refusal(target, &settings(reached_at(&address, &account))).await;
        assert!(error.starts_with(target) && error.contains(words), "{error}");
        assert!(!error.contains('<') && !error.contains('\n'), "{error}");
    }
}

/// Credentials and the address of all kinds.
fn reached_at<'a>(address: &'a str, account: &'a str) -> Vec<(&'a str, &'a str)> {
    let own = [
        ("aws_endpoint_url", address),
        ("azure_storage_endpoint", account),
        ("google_base_url", address),
        ("google_skip_signature", "true"),
    ];
    S3_KEYS.into_iter().chain(AZURE_KEYS).chain(own).collect()
}

/// Scenario: a store that takes connections and never answers; an address that nobody listens on; no credentials, where the
/// machine has none either.
/// Guarantees: each ends in an error; it names the setting and its value, the address and its variable, the missing variables.
#[tokio::test]
async fn a_store_that_does_not_answer_is_an_error() {
    for target in ["s3://fleet/a", "az://fleet/a", "gs://fleet/a"] {
        let silent = store(None);
        let error = refusal(target, &settings(reached_at(&silent, &silent))).await;
        assert!(error.contains(&format!("no answer from {silent} within snapshots.store_timeout = 300ms")), "{error}");
        let nobody = nobody();
        let error = refusal(target, &settings(reached_at(&nobody, &nobody))).await;
        assert!(error.contains(&format!("cannot reach {nobody}; check ")), "{error}");
    }
    let nobody = nobody();
    let machine = [("aws_metadata_endpoint", nobody.as_str()), ("aws_region", "eu-west-1"), ("aws_allow_http", "true")];
    let error = refusal("s3://fleet/a", &settings(machine)).await;
    assert!(error.contains("names no credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"), "{error}");
}

/// Scenario: an endpoint without TLS that is not allowed, a value that is none, an account that is missing.
/// Guarantees: opening is refused in words that name the variable; they do not say that the target is wrong.
#[test]
fn settings_that_cannot_be_are_refused_at_once() {
    let plain = [("aws_access_key_id", "a"), ("aws_secret_access_key", "b"), ("aws_endpoint", "http://127.0.0.1:1")];
    let cases = [
        ("s3://fleet/a", settings(plain), "AWS_ALLOW_HTTP=true"),
        ("s3://fleet/a", settings([("aws_allow_http", "maybe")]), "failed to parse \"maybe\""),
        ("az://fleet/a", settings([("azure_storage_account_key", "aGVsbG8=")]), "AZURE_STORAGE_ACCOUNT_NAME"),
    ];
    for (target, settings, words) in cases {
        let error = Place::open(target, &settings).unwrap_err();
        assert!(matches!(error, SnapshotError::Settings { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Scenario: targets with a user and a password, with options, with a token behind a `#`; Azure's account before the `@`, a path with
/// a question mark.
/// Guarantees: the first three are refused and not repeated in the error; the others are taken.
#[test]
fn targets_hold_no_secrets() {
    for target in ["s3://me:sesame@fleet/a", "s3://sesame@fleet/a", "az://fleet/a?sig=sesame", "gs://fleet/a#sesame"] {
        let error = Place::check(target).unwrap_err().to_string();
        assert!(error.contains("credentials come from the environment") && !error.contains("sesame"), "{error}");
    }
    for target in ["az://fleet@account/a", "/srv/why?"] {
        Place::check(target).unwrap();
    }
}
