//! The models that a server is to serve, with their text sides, before anything is started (SPEC D3).
//!
//! Invariant: names are distinct, and every file of a variant speaks of the tokens of its model. A model of the catalogue that is
//! not there yet is fetched. Cost: the headers of the files, and the download. State: none.

use std::sync::Arc;

use anyhow::{Context, bail};

use super::text::ModelText;
use crate::{
    config::{Config, ModelGroup},
    gateway::deps::TextModel,
    models::{Catalogue, ModelFile, PullRequest, progress, pull, resolve},
    worker::{supervisor::ServedModel, variant_files},
};

/// A model that is served, with its text side.
pub(super) struct Loaded {
    pub(super) group: ModelGroup,
    pub(super) model: ServedModel,
    pub(super) text: Arc<ModelText>,
}

impl Loaded {
    /// In the order of the configuration. Names are distinct. None at all: foreign workers serve alone.
    pub(super) fn all(config: &Config) -> anyhow::Result<Vec<Loaded>> {
        let mut all: Vec<Loaded> = Vec::new();
        for group in config.groups().into_iter().filter(|group| !group.name.is_empty()) {
            let model = served_model(config, &group)?;
            let text = ModelText::load(&model.name, &model.path, config.workers.block_size)
                .with_context(|| format!("model {} ({})", model.name, model.path))?;
            variant_files::check(&group.variants, &model.path)?;
            if let Some(other) = all.iter().find(|other| other.model.name == model.name) {
                let (name, first, second) = (&model.name, &other.model.path, &model.path);
                bail!(
                    "models.name: {first} and {second} are both called {name}; give one another name, NAME=file:PATH"
                );
            }
            all.push(Loaded { group, model, text: Arc::new(text) });
        }
        Ok(all)
    }

    pub(super) fn text(&self) -> Arc<dyn TextModel> {
        self.text.clone()
    }
}

/// The model's name and file; pulls it if it is in the catalogue and not there yet.
fn served_model(config: &Config, group: &ModelGroup) -> anyhow::Result<ServedModel> {
    let named = |name: String| if group.file.is_some() { group.name.clone() } else { name };
    if group.source() == "simulated" {
        return Ok(ServedModel { name: named("simulated".into()), path: "simulated".into() });
    }
    match resolve(Catalogue::embedded(), group.source())? {
        ModelFile::Local { name, path } => Ok(ServedModel { name: named(name), path: path.display().to_string() }),
        ModelFile::Listed(entry) => {
            let request = PullRequest { entry, models_dir: &config.model.models_dir, from: None };
            let path = pull(&request, progress::for_stderr().as_ref())?;
            Ok(ServedModel { name: named(entry.name.clone()), path: path.display().to_string() })
        }
    }
}
