//! The models behind the entry (SPEC D3), by the name that requests give.
//!
//! A request is resolved to its [`Model`] once, while its body is parsed, and carries it from there. Invariants: names are
//! distinct; block hashes of two models are never the same, since each model but the first has a salt of its own in its
//! chain (the first has none, so that its hashes are those other projects compute); orders of variants are the model's own.
//! Cost: one comparison a model for each request. Bound: [`MODELS_MAX`](crate::config::MODELS_MAX).

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::{deps::TextModel, error::ApiError, json_body};
use crate::config::{Config, ModelGroup, Policy};

/// One model that is served.
pub struct Model {
    pub text: Arc<dyn TextModel>,
    /// The policies as they hold for it.
    pub policy: Policy,
    /// What its block hashes begin with; 0 for the first.
    pub cache_salt: u64,
    /// `system_fingerprint` of its answers: the same while program and model are.
    pub fingerprint: String,
    /// Place in the registry.
    pub(super) place: usize,
}

impl Model {
    pub fn name(&self) -> &str {
        self.text.name()
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.name()).finish()
    }
}

/// All of them, as they are declared.
#[derive(Debug)]
pub struct Registry(Vec<Arc<Model>>);

impl Registry {
    /// `texts`: one a group of the configuration, in its order.
    ///
    /// # Panics
    /// There is none, or two have one name: whoever loads them says so before.
    pub fn new(config: &Config, texts: Vec<Arc<dyn TextModel>>) -> Registry {
        assert!(!texts.is_empty(), "an entry serves at least one model");
        let declared = config.groups().iter().map(ModelGroup::variant_names).collect::<Vec<_>>();
        assert_eq!(texts.len(), declared.len(), "a text a declared model");
        let model = |(place, (text, declared)): (usize, (Arc<dyn TextModel>, Vec<String>))| {
            let variants = config.policy.variants.of_model(&declared);
            Arc::new(Model {
                policy: Policy { variants, ..config.policy.clone() },
                cache_salt: if place == 0 { 0 } else { xxh3_64(text.name().as_bytes()).max(1) },
                fingerprint: fingerprint(text.name()),
                place,
                text,
            })
        };
        let models: Vec<Arc<Model>> = texts.into_iter().zip(declared).enumerate().map(model).collect();
        for (place, model) in models.iter().enumerate() {
            assert!(!models[..place].iter().any(|other| other.name() == model.name()), "each model has its own name");
        }
        Registry(models)
    }

    /// Of an entry whose models are all served by foreign workers, which keep registries of their own.
    pub fn none() -> Registry {
        Registry(Vec::new())
    }

    /// The model that requests call so.
    ///
    /// # Errors
    /// There is none; the error lists what there is.
    pub fn resolve(&self, name: &str) -> Result<Arc<Model>, ApiError> {
        self.0.iter().find(|model| model.name() == name).cloned().ok_or_else(|| ApiError::UnknownModel {
            asked: json_body::shorten(name),
            served: self.names().join("`, `"),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.0.iter()
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|model| model.name()).collect()
    }

    /// Tokens of a KV block; one figure for all models. 1 without any.
    pub fn block_size(&self) -> usize {
        self.0.first().map_or(1, |model| model.text.block_size())
    }

    /// The model of every request, where there is only one.
    pub fn only(&self) -> Option<&Arc<Model>> {
        self.0.first().filter(|_| self.0.len() == 1)
    }
}

fn fingerprint(name: &str) -> String {
    let digest = Sha256::digest(format!("{} {name}", env!("CARGO_PKG_VERSION")));
    let hex: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("fp_{hex}")
}
