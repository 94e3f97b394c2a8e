//! Who is asking: `Authorization: Bearer <key>` against the keys of the configuration (SPEC A1's tenant and class).
//!
//! Keys are compared by their SHA-256, so the time of a comparison says nothing about how much of a guess was right. With
//! no keys configured everyone is the tenant `local` with class High; the configuration allows that on loopback only.

use std::{collections::HashMap, time::Duration};

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::error::ApiError;
use crate::{
    config::{Key, KeySql, LOCAL_TENANT, TierHeader},
    ids::Name,
    policy::Tier,
};

/// The party a request counts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub name: Name,
    /// Best tier its requests may have.
    pub class: Tier,
    /// What its headers may ask for; see [`Key`].
    pub first_token_min: Option<Duration>,
    pub whole_min: Option<Duration>,
    pub tier_header: TierHeader,
    /// Limits of its SQL.
    pub sql: KeySql,
}

impl Tenant {
    fn of(key: &Key) -> Self {
        Self {
            name: key.tenant.as_str().into(),
            class: key.class,
            first_token_min: key.first_token_min,
            whole_min: key.whole_min,
            tier_header: key.tier_header,
            sql: key.sql,
        }
    }

    /// Everybody, where there are no keys: nothing is held back from them.
    fn local() -> Self {
        let none = Some(Duration::ZERO);
        Self {
            name: LOCAL_TENANT.into(),
            class: Tier::High,
            first_token_min: none,
            whole_min: none,
            tier_header: TierHeader::Choose,
            sql: KeySql::default(),
        }
    }
}

/// All keys, hashed once at start.
pub struct Keys {
    tenants: HashMap<[u8; 32], Tenant>,
}

impl Keys {
    pub fn new(keys: &[Key]) -> Self {
        Self { tenants: keys.iter().map(|key| (digest(&key.key), Tenant::of(key))).collect() }
    }

    /// The tenant of a request, from its headers.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Tenant, ApiError> {
        if self.tenants.is_empty() {
            return Ok(Tenant::local());
        }
        let value = headers.get(header::AUTHORIZATION).ok_or(ApiError::KeyMissing)?;
        let text = value.to_str().map_err(|_| ApiError::KeyWrong)?;
        let (scheme, key) = text.split_once(' ').ok_or(ApiError::KeyWrong)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ApiError::KeyWrong);
        }
        self.tenants.get(&digest(key.trim())).cloned().ok_or(ApiError::KeyWrong)
    }
}

impl Keys {
    /// The tenant of a key that came another way than in a header. `None`: nobody's, and keys are configured.
    pub fn of_key(&self, key: &str) -> Option<Tenant> {
        if self.tenants.is_empty() {
            return Some(Tenant::local());
        }
        self.tenants.get(&digest(key.trim())).cloned()
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}
