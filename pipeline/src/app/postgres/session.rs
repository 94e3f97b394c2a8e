//! What a connection has set, and its questions to the engine.
//!
//! Settings are kept and told again, and mean nothing, but for `statement_timeout` and `evenkeel.as_of`. Bounds: [`SETTINGS_MAX`] settings of
//! [`SETTING_BYTES_MAX`] each, [`STATEMENTS_MAX`], [`PORTALS_MAX`].

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pgwire::{
    api::{ClientInfo, METADATA_USER},
    error::{PgWireError, PgWireResult},
};
use queries::{Caller, Described, QueryResult, Question, ScalarValue, SqlError, postgres::command::SETTINGS};

use super::{PgDoor, cursors::Cursors, errors, line::Gone};
use crate::app::sql_routes::{caller, moment};

/// The setting that names the moment as which tables are seen.
const AS_OF: &str = "evenkeel.as_of";
/// Most settings of a session beside PostgreSQL's own.
const SETTINGS_MAX: usize = 64;
/// Longest name and value of a setting.
const SETTING_BYTES_MAX: usize = 1024;
/// Most prepared statements of a session.
pub(super) const STATEMENTS_MAX: usize = 256;
/// Most portals of a session; each may hold an answer.
pub(super) const PORTALS_MAX: usize = 16;

/// One connection's session.
pub(super) struct Session {
    door: Arc<PgDoor>,
    gone: Gone,
    settings: Mutex<BTreeMap<String, String>>,
    statements: Mutex<HashSet<String>>,
    portals: Mutex<HashSet<String>>,
    pub(super) cursors: Cursors,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(super) fn new(door: Arc<PgDoor>, gone: Gone) -> Session {
        let (settings, statements, portals, cursors) = Default::default();
        Session { door, gone, settings, statements, portals, cursors }
    }

    /// Who asks: the tenant of the key that the client logged in with.
    fn caller(&self, client: &impl ClientInfo) -> PgWireResult<Caller> {
        let user = client.metadata().get(METADATA_USER).map(String::as_str).unwrap_or_default();
        let key = self.door.passwords.as_ref().map(|passwords| passwords.key(user));
        let tenant = match key {
            None => self.door.keys.of_key(""),
            Some(key) => key.and_then(|key| self.door.keys.of_key(key)),
        };
        let tenant = tenant.ok_or_else(|| PgWireError::InvalidPassword(user.to_string()))?;
        let mut caller = caller(&tenant);
        if let Some(own) = self.statement_timeout() {
            caller.timeout = Some(caller.timeout.map_or(own, |given| given.min(own)));
        }
        Ok(caller)
    }

    /// Answers one statement. A client that goes away stops it.
    pub(super) async fn answer(
        &self,
        client: &impl ClientInfo,
        (sql, parameters): (&str, Vec<ScalarValue>),
    ) -> PgWireResult<QueryResult> {
        let question = self.question(client, (sql, parameters))?;
        self.ask(sql, self.door.answers.answer(question)).await
    }

    /// Says what a statement would answer if its parameters were of these types.
    pub(super) async fn describe(
        &self,
        client: &impl ClientInfo,
        (sql, parameters): (&str, Vec<ScalarValue>),
    ) -> PgWireResult<Described> {
        let question = self.question(client, (sql, parameters))?;
        self.ask(sql, self.door.answers.describe(question)).await
    }

    fn question(
        &self,
        client: &impl ClientInfo,
        (sql, parameters): (&str, Vec<ScalarValue>),
    ) -> PgWireResult<Question> {
        let (caller, as_of) = (self.caller(client)?, self.as_of());
        Ok(Question { parameters, as_of, ..Question::new(sql, caller) })
    }

    /// The moment that `evenkeel.as_of` names.
    fn as_of(&self) -> Option<i64> {
        lock(&self.settings).get(AS_OF).and_then(|text| moment(text))
    }

    async fn ask<T>(&self, sql: &str, answer: impl Future<Output = Result<T, SqlError>>) -> PgWireResult<T> {
        tokio::select! {
            answer = answer => answer.map_err(|error| errors::sql(&error, sql)),
            () = self.gone.wait() => Err(errors::user("FATAL", "08006", "the client has gone")),
        }
    }

    /// `statement_timeout`, if it is set and not zero.
    fn statement_timeout(&self) -> Option<Duration> {
        let text = lock(&self.settings).get("statement_timeout").cloned()?;
        milliseconds(&text).filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// Keeps a setting.
    pub(super) fn set(&self, name: &str, value: &str) -> PgWireResult<()> {
        let wrong = |expected: &str| {
            errors::user(
                "ERROR",
                "22023",
                &format!("invalid value for parameter {name:?}: {value:?}; expected {expected}"),
            )
        };
        if name.len() > SETTING_BYTES_MAX || value.len() > SETTING_BYTES_MAX {
            return Err(errors::user("ERROR", "54000", "the setting is too long"));
        }
        if name == "statement_timeout" && value != "default" && milliseconds(value).is_none() {
            return Err(wrong("milliseconds, or a time such as '5s'"));
        }
        if name == AS_OF && value != "default" && moment(value).is_none() {
            return Err(wrong("a time such as '2026-01-31T12:00:00Z'"));
        }
        let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        if name == "client_encoding" && !["utf8", "unicode", "default"].contains(&plain(value).as_str()) {
            return Err(wrong("UTF8"));
        }
        let mut settings = lock(&self.settings);
        if settings.len() >= SETTINGS_MAX && !settings.contains_key(name) {
            return Err(errors::user("ERROR", "54000", &format!("more than {SETTINGS_MAX} settings in a session")));
        }
        match value {
            "default" => settings.remove(name),
            value => settings.insert(name.to_string(), value.to_string()),
        };
        Ok(())
    }

    /// Forgets a setting, or all.
    pub(super) fn reset(&self, name: Option<&str>) {
        match name {
            Some(name) => drop(lock(&self.settings).remove(name)),
            None => lock(&self.settings).clear(),
        }
    }

    /// What a setting is.
    pub(super) fn show(&self, name: &str) -> PgWireResult<String> {
        if let Some(value) = lock(&self.settings).get(name) {
            return Ok(value.clone());
        }
        let known = SETTINGS.iter().find(|(known, _)| *known == name);
        known
            .map(|(_, value)| value.to_string())
            .ok_or_else(|| errors::user("ERROR", "42704", &format!("unrecognized configuration parameter {name:?}")))
    }

    /// All settings with their values, by name.
    pub(super) fn show_all(&self) -> Vec<(String, String)> {
        let mut all: BTreeMap<String, String> =
            SETTINGS.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        all.extend(lock(&self.settings).clone());
        all.into_iter().collect()
    }

    /// Counts a prepared statement in.
    pub(super) fn prepare(&self, name: &str) -> PgWireResult<()> {
        admit(&self.statements, name, STATEMENTS_MAX, "prepared statements")
    }

    /// Counts a portal in.
    pub(super) fn open(&self, name: &str) -> PgWireResult<()> {
        admit(&self.portals, name, PORTALS_MAX, "open portals")
    }

    pub(super) fn forget_statement(&self, name: &str) {
        lock(&self.statements).remove(name);
    }

    pub(super) fn forget_portal(&self, name: &str) {
        lock(&self.portals).remove(name);
    }

    pub(super) fn forget_portals(&self) {
        lock(&self.portals).clear();
    }

    /// Names of all prepared statements, which are forgotten.
    pub(super) fn forget_statements(&self) -> Vec<String> {
        lock(&self.statements).drain().collect()
    }
}

fn admit(names: &Mutex<HashSet<String>>, name: &str, most: usize, what: &str) -> PgWireResult<()> {
    let mut names = lock(names);
    if names.len() >= most && !names.contains(name) {
        return Err(errors::user("ERROR", "53400", &format!("more than {most} {what} in a session")));
    }
    names.insert(name.to_string());
    Ok(())
}

/// `5000`, `5000ms`, `5s`, `1min` in milliseconds.
fn milliseconds(text: &str) -> Option<u64> {
    match text.trim().parse() {
        Ok(ms) => Some(ms),
        Err(_) => {
            humantime::parse_duration(text.trim()).ok().map(|time| time.as_millis().min(u128::from(u64::MAX)) as u64)
        }
    }
}
