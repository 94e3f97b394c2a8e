//! Who is asking. With keys configured the user is a tenant and the password its key, by SCRAM-SHA-256: the key itself is never sent,
//! so that a connection without TLS does not give it away. Without keys everybody on this machine may ask, and no password is wanted.
//!
//! A tenant with several keys: `tenant` is the first, `tenant#2` the second, and so on, since SCRAM settles on one password before it
//! sees the proof. A tenant that does not exist fails as one with a wrong key does.
//! Cost: 4096 hashes a key at start, none of them later.

use std::{collections::HashMap, fmt, sync::Arc};

use async_trait::async_trait;
use futures::Sink;
use pgwire::{
    api::{
        ClientInfo, ConnectionGuard, ConnectionHandle, ConnectionManager, PidSecretKeyGenerator,
        RandomPidSecretKeyGenerator,
        auth::{
            AuthSource, DefaultServerParameterProvider, LoginInfo, Password, StartupHandler, finish_authentication,
            protocol_negotiation,
            sasl::{
                SASLAuthStartupHandler,
                scram::{SCRAM_ITERATIONS, ScramAuth, gen_salted_password},
            },
            save_startup_parameters_to_metadata,
        },
    },
    error::{PgWireError, PgWireResult},
    messages::{PgWireBackendMessage, PgWireFrontendMessage},
};
use sha2::{Digest, Sha256};

use super::PgDoor;
use crate::config::Key;

const SALT_BYTES: usize = 16;

/// Salted passwords by user.
pub(super) struct Passwords {
    users: HashMap<String, User>,
    /// Makes salts for users that do not exist, the same each time.
    secret: [u8; 32],
}

struct User {
    tenant: String,
    key: String,
    salt: Vec<u8>,
    salted: Vec<u8>,
}

impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passwords").field("users", &self.users.len()).finish_non_exhaustive()
    }
}

impl Passwords {
    pub(super) fn new(keys: &[Key]) -> Passwords {
        let mut users: HashMap<String, User> = HashMap::new();
        for key in keys {
            let same = users.values().filter(|user| user.tenant == key.tenant).count();
            let name = if same == 0 { key.tenant.clone() } else { format!("{}#{}", key.tenant, same + 1) };
            let salt = rand::random::<[u8; SALT_BYTES]>().to_vec();
            let salted = gen_salted_password(&key.key, &salt, SCRAM_ITERATIONS);
            users.insert(name, User { tenant: key.tenant.clone(), key: key.key.clone(), salt, salted });
        }
        Passwords { users, secret: rand::random() }
    }

    /// The key of a user that has logged in.
    pub(super) fn key(&self, user: &str) -> Option<&str> {
        self.users.get(user).map(|user| user.key.as_str())
    }
}

// The trait leaves the lifetime out, and an implementation has to do as it does.
#[allow(elided_lifetimes_in_paths)]
#[async_trait]
impl AuthSource for Passwords {
    async fn get_password(&self, login: &LoginInfo) -> PgWireResult<Password> {
        let name = login.user().unwrap_or_default();
        if let Some(user) = self.users.get(name) {
            return Ok(Password::new(Some(user.salt.clone()), user.salted.clone()));
        }
        let made_up = Sha256::new().chain_update(self.secret).chain_update(name).finalize();
        Ok(Password::new(Some(made_up[..SALT_BYTES].to_vec()), self.secret.to_vec()))
    }
}

/// The beginning of a session.
pub(super) enum Login {
    Open {
        told: Arc<DefaultServerParameterProvider>,
        running: Arc<ConnectionManager>,
        numbers: Arc<RandomPidSecretKeyGenerator>,
    },
    Scram(Box<SASLAuthStartupHandler<DefaultServerParameterProvider>>),
}

impl Login {
    pub(super) fn new(door: &PgDoor) -> Login {
        let told = Arc::new(told());
        match &door.passwords {
            None => Login::Open { told, running: door.running.clone(), numbers: door.numbers.clone() },
            Some(passwords) => Login::Scram(Box::new(
                SASLAuthStartupHandler::new(told)
                    .with_scram(ScramAuth::new(passwords.clone()))
                    .with_pid_secret_key_generator(door.numbers.clone())
                    .with_connection_manager(door.running.clone()),
            )),
        }
    }
}

/// What a client is told of the server when it has logged in.
fn told() -> DefaultServerParameterProvider {
    let mut told = DefaultServerParameterProvider::default();
    told.server_version = format!("{} (Evenkeel {})", queries::postgres::SERVER_VERSION, env!("CARGO_PKG_VERSION"));
    told.is_superuser = false;
    told.default_transaction_read_only = true;
    told.time_zone = "UTC".into();
    told
}

#[async_trait]
impl StartupHandler for Login {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: fmt::Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        match self {
            Login::Scram(scram) => scram.on_startup(client, message).await,
            Login::Open { told, running, numbers } => {
                let PgWireFrontendMessage::Startup(startup) = &message else { return Ok(()) };
                protocol_negotiation(client, startup).await?;
                save_startup_parameters_to_metadata(client, startup);
                let (number, secret) = numbers.generate(client);
                client.set_pid_and_secret_key(number, secret.clone());
                let (handle, guard) = running.register(number, secret);
                client.session_extensions().insert::<Arc<ConnectionHandle>>(handle);
                client.session_extensions().insert::<ConnectionGuard>(guard);
                finish_authentication(client, told.as_ref()).await
            }
        }
    }
}
