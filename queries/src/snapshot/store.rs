//! How a URL becomes an object store: its settings, how long it may take, and what its refusals mean (SPEC E3).
//!
//! Invariants: a request to a store ends, with an answer or an error, within about twice [`StoreSettings::timeout`] (the last try
//! begins before the first timeout is over); a URL holds no secret, since targets are shown in rows and errors. An error says what
//! the store said, and which setting or variable to look at. No environment is read here: options are given.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use object_store::{
    ObjectStore, ObjectStoreScheme, RetryConfig,
    aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder,
    client::{HttpError, HttpErrorKind},
    gcp::GoogleCloudStorageBuilder,
};
use url::Url;

/// Longest time for reaching a store, where its timeout is longer.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest text of a store's own that an error repeats.
const WORDS_MAX: usize = 400;

/// What is known of a store beside its URL.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Names in lower case, such as `aws_region`, with values. Names that a store does not know are passed over.
    pub options: Vec<(String, String)>,
    /// How long a try of a request may take, from connecting to the end of its answer, and for how long it is tried again.
    pub timeout: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings { options: Vec::new(), timeout: Duration::from_secs(30) }
    }
}

impl StoreSettings {
    fn value(&self, names: &[&str]) -> Option<&str> {
        let found = |(name, value): &&(String, String)| names.contains(&name.as_str()) && !value.is_empty();
        self.options.iter().find(found).map(|(_, value)| value.as_str())
    }
}

/// Kinds of stores that snapshots are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    S3,
    Google,
    Azure,
}

/// The variables that a kind of store is set up by.
struct Names {
    /// Any of them: credentials are there.
    credentials: &'static [&'static str],
    /// What errors say of them.
    advice: &'static str,
    endpoint: &'static [&'static str],
    endpoint_advice: &'static str,
    /// Allows an endpoint without TLS; empty where none is asked for.
    plain_http: &'static str,
}

impl Kind {
    pub(super) fn of(scheme: &ObjectStoreScheme) -> Option<Kind> {
        match scheme {
            ObjectStoreScheme::AmazonS3 => Some(Kind::S3),
            ObjectStoreScheme::GoogleCloudStorage => Some(Kind::Google),
            ObjectStoreScheme::MicrosoftAzure => Some(Kind::Azure),
            _ => None,
        }
    }

    fn names(self) -> Names {
        match self {
            Kind::S3 => Names {
                credentials: &[
                    "aws_access_key_id",
                    "aws_web_identity_token_file",
                    "aws_container_credentials_relative_uri",
                    "aws_container_credentials_full_uri",
                    "aws_skip_signature",
                ],
                advice: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                endpoint: &["aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint"],
                endpoint_advice: "AWS_ENDPOINT_URL and AWS_REGION",
                plain_http: "AWS_ALLOW_HTTP",
            },
            Kind::Google => Names {
                credentials: &[
                    "google_service_account",
                    "google_service_account_path",
                    "google_service_account_key",
                    "google_application_credentials",
                    "google_skip_signature",
                ],
                advice: "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
                endpoint: &["google_base_url"],
                endpoint_advice: "GOOGLE_BASE_URL",
                plain_http: "",
            },
            Kind::Azure => Names {
                credentials: &[
                    "azure_storage_account_key",
                    "azure_storage_access_key",
                    "azure_storage_sas_token",
                    "azure_storage_sas_key",
                    "azure_storage_token",
                    "azure_client_secret",
                    "azure_storage_client_secret",
                    "azure_federated_token_file",
                    "azure_use_azure_cli",
                    "azure_skip_signature",
                    "azure_storage_use_emulator",
                ],
                advice: "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
                endpoint: &["azure_storage_endpoint", "azure_endpoint"],
                endpoint_advice: "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
                plain_http: "AZURE_ALLOW_HTTP",
            },
        }
    }
}

/// A cloud's store, and how to read its errors. Nothing is asked of it yet. Errors say what the settings lack.
pub(super) fn open(kind: Kind, url: &Url, settings: &StoreSettings) -> Result<(Arc<dyn ObjectStore>, Reading), String> {
    let reading = Reading::new(kind, settings);
    reading.check_endpoint(settings)?;
    let millis = |time: Duration| format!("{}ms", time.as_millis().max(1));
    let bounds =
        [("timeout", millis(settings.timeout)), ("connect_timeout", millis(settings.timeout.min(CONNECT_MAX)))];
    let options = settings.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let options = options.chain(bounds.iter().map(|(name, value)| (*name, value.as_str())));
    let retry = RetryConfig { retry_timeout: settings.timeout, ..RetryConfig::default() };
    // Three builders with the same methods and no trait between them.
    macro_rules! built {
        ($builder:ty) => {{
            let builder = <$builder>::new().with_url(url.as_str()).with_retry(retry);
            let builder = options.fold(builder, |builder, (name, value)| match name.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            });
            Arc::new(builder.build().map_err(|error| reading.unusable(&error))?) as Arc<dyn ObjectStore>
        }};
    }
    let store = match kind {
        Kind::S3 => built!(AmazonS3Builder),
        Kind::Google => built!(GoogleCloudStorageBuilder),
        Kind::Azure => built!(MicrosoftAzureBuilder),
    };
    Ok((store, reading))
}

/// How errors of one store are read.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    kind: Kind,
    has_credentials: bool,
    endpoint: Option<String>,
    timeout: Duration,
}

impl Reading {
    fn new(kind: Kind, settings: &StoreSettings) -> Reading {
        let names = kind.names();
        Reading {
            kind,
            has_credentials: settings.value(names.credentials).is_some(),
            endpoint: settings.value(names.endpoint).map(str::to_string),
            timeout: settings.timeout,
        }
    }

    fn check_endpoint(&self, settings: &StoreSettings) -> Result<(), String> {
        let allow = self.kind.names().plain_http;
        let Some(endpoint) = self.endpoint.as_ref().filter(|_| !allow.is_empty()) else { return Ok(()) };
        let is_plain = endpoint.to_ascii_lowercase().starts_with("http://");
        let own_name = allow.to_ascii_lowercase();
        match is_plain && settings.value(&[own_name.as_str(), "allow_http"]).is_none() {
            true => Err(format!("the endpoint {endpoint:?} has no TLS: name one with https://, or set {allow}=true")),
            false => Ok(()),
        }
    }

    fn unusable(&self, error: &object_store::Error) -> String {
        let names = self.kind.names();
        format!("{error}; it is set up by {} and {}", names.advice, names.endpoint_advice)
    }

    /// What went wrong and where to look.
    pub(super) fn explain(&self, error: &object_store::Error) -> String {
        let text = error.to_string();
        let (names, said) = (self.kind.names(), StoreWords::of(&text));
        let words = said.as_ref().map_or_else(|| shortened(&text), ToString::to_string);
        let code = said.map_or("", |said| said.code);
        let lost = http_error(error).map(HttpError::kind);
        let is_missing = ["NoSuchBucket", "ContainerNotFound"].contains(&code);
        let is_refused = REFUSALS.contains(&code)
            || matches!(
                error,
                object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }
            );
        if is_missing {
            return format!("{words}; create it, or correct the target");
        }
        if is_refused && self.has_credentials {
            let rights = "they must allow listing, reading, writing and deleting there";
            return format!("{words}; check {}: {rights}", names.advice);
        }
        if !self.has_credentials {
            let note = "so it was tried with those of this machine";
            return format!("{words}; the environment names no credentials ({}), {note}", names.advice);
        }
        let place = self.endpoint.as_deref().unwrap_or("the store's own address");
        match lost {
            Some(HttpErrorKind::Timeout) => {
                format!("no answer from {place} within snapshots.store_timeout = {:?}: {words}", self.timeout)
            }
            Some(HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Interrupted) => {
                format!("cannot reach {place}; check {}: {words}", names.endpoint_advice)
            }
            _ => words,
        }
    }
}

/// Codes of refusals that have to do with who asks.
const REFUSALS: [&str; 9] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "AuthorizationFailure",
    "AuthenticationFailed",
    "AuthorizationPermissionMismatch",
    "InvalidAuthenticationInfo",
];

/// What a store says of an error: all three kinds answer with `<Error><Code>…</Code><Message>…</Message>…</Error>`.
struct StoreWords<'a> {
    code: &'a str,
    message: &'a str,
}

impl<'a> StoreWords<'a> {
    fn of(text: &'a str) -> Option<StoreWords<'a>> {
        let between = |open: &str, close: &str| {
            let (_, rest) = text.split_once(open)?;
            rest.split_once(close).map(|(inner, _)| inner.trim())
        };
        let code = between("<Code>", "</Code>")?;
        // Azure puts the request's number and time on lines of their own.
        let message = between("<Message>", "</Message>").and_then(|message| message.lines().next()).unwrap_or_default();
        Some(StoreWords { code, message })
    }
}

impl fmt::Display for StoreWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store says {}: {}", self.code, shortened(self.message.trim_end_matches('.')))
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_string(),
    }
}

/// The error of the connection, if that is what it was.
fn http_error(error: &object_store::Error) -> Option<&HttpError> {
    let causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |error| (**error).source());
    causes.filter_map(|cause| cause.downcast_ref::<HttpError>()).last()
}

/// Refuses a URL that holds what belongs in the environment.
pub(super) fn check_no_secret(url: &Url, scheme: &ObjectStoreScheme) -> Result<(), String> {
    // In az://container@account the name before the @ is no secret.
    let has_user = !url.username().is_empty() && *scheme != ObjectStoreScheme::MicrosoftAzure;
    match has_user || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        true => {
            Err("a target has no user, password or options in it; credentials come from the environment".to_string())
        }
        false => Ok(()),
    }
}

/// A location without what may be secret in it.
pub fn without_secrets(location: &str) -> String {
    let plain = location.split(['?', '#']).next().unwrap_or_default();
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            match host.rsplit_once('@').filter(|(user, _)| user.contains(':') || !scheme.starts_with("a")) {
                Some((_, host)) => format!("{scheme}://{host}{path}"),
                None => plain.to_string(),
            }
        }
        // A path may have any of these characters.
        None => location.to_string(),
    }
}
