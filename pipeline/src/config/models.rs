//! Several models behind one entry (SPEC D3), as declared: `[[models]]`, or `--model NAME=KEY:VALUE,…` several times. The
//! form with one model, `[model]`, is the group that stands alone.
//!
//! Invariant: what is left out is as `[workers]` says. Bound: [`MODELS_MAX`] models, names of at most [`MODEL_NAME_MAX`] bytes.

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, Model, Speculation, Variant, require, variants};

pub const MODELS_MAX: usize = 16;
/// A name goes into every error that lists what there is.
pub const MODEL_NAME_MAX: usize = 128;

/// Keys of a model, for error texts.
pub(super) const KEYS: [&str; 4] = ["name", "file", "workers", "variants"];

/// One model in worker processes of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelGroup {
    /// What requests call it; without `file` also where it comes from.
    pub name: String,
    /// Catalogue name, path of a .gguf file, or `simulated`. `None`: the name is that, and a path is called by its stem.
    pub file: Option<String>,
    /// `None`: `workers.count`. Variants have their own.
    pub workers: Option<u32>,
    #[serde(default)]
    pub variants: Vec<Variant>,
}

impl ModelGroup {
    /// The model of that name or path, as it is.
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), file: None, workers: None, variants: Vec::new() }
    }

    fn of(model: &Model) -> Self {
        Self { variants: model.variants.clone(), ..Self::named(&model.name) }
    }

    /// Where it comes from.
    pub fn source(&self) -> &str {
        self.file.as_deref().unwrap_or(&self.name)
    }

    /// Names of its variants, as they are declared; the one that stands for the model itself if none is.
    pub fn variant_names(&self) -> Vec<String> {
        variants::names(&self.variants)
    }

    /// Its worker processes, where `[workers]` says `count`.
    pub fn worker_count(&self, count: u32) -> u32 {
        match self.variants.as_slice() {
            [] => self.workers.unwrap_or(count),
            variants => variants.iter().map(|variant| variant.workers).sum(),
        }
    }
}

impl Config {
    /// What is served: `[[models]]`, or `[model]` alone. Not empty.
    pub fn groups(&self) -> Vec<ModelGroup> {
        match self.models.as_slice() {
            [] => vec![ModelGroup::of(&self.model)],
            groups => groups.to_vec(),
        }
    }

    /// Worker processes of all models.
    pub fn worker_count(&self) -> u32 {
        self.groups().iter().map(|group| group.worker_count(self.workers.count)).sum()
    }
}

/// Names of the variants of all models, each once.
pub(super) fn variant_names(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in config.groups().iter().flat_map(ModelGroup::variant_names) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Reads `NAME`, a path, or `NAME=KEY:VALUE,KEY:VALUE` with the keys `file` and `workers`, as in
/// `chat=file:smollm2-135m,workers:2`.
pub fn parse_model(text: &str) -> Result<ModelGroup, String> {
    let Some((name, rest)) = text.split_once('=').filter(|(_, rest)| begins_with_key(rest)) else {
        return Ok(ModelGroup::named(text));
    };
    let mut group = ModelGroup::named(name);
    for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
        match pair.split_once(':') {
            Some(("file", value)) => group.file = Some(value.into()),
            Some(("workers", value)) => {
                let count = value.parse().map_err(|_| format!("workers:{value}: expected a number"))?;
                group.workers = Some(count);
            }
            Some((key, _)) => {
                let hint = super::did_you_mean(key, &["file".into(), "workers".into()]);
                return Err(format!("unknown key `{key}`; expected file or workers{hint}"));
            }
            None => return Err(format!("`{pair}`: expected KEY:VALUE")),
        }
    }
    Ok(group)
}

/// A path may have a `=` in it; what follows it there is no key.
fn begins_with_key(rest: &str) -> bool {
    rest.split_once(':').is_some_and(|(key, _)| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase()))
}

pub(super) fn validate(config: &Config) -> Result<(), ConfigError> {
    let models = &config.models;
    require(models.len() <= MODELS_MAX, "models", models.len(), format!("at most {MODELS_MAX}"))?;
    for (place, group) in models.iter().enumerate() {
        let name = &group.name;
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte));
        require(
            !name.is_empty() && (group.file.is_none() || is_plain && name.len() <= MODEL_NAME_MAX),
            "models.name",
            format!("{name:?}"),
            format!("names of 1 to {MODEL_NAME_MAX} letters, digits, `-`, `_`, `.`, `/` and `:`"),
        )?;
        require(!models[..place].iter().any(|other| other.name == *name), "models.name", name, "each name once")?;
        let count = group.workers.unwrap_or(1);
        require((1..=256).contains(&count), "models.workers", count, "1 to 256")?;
        variants::validate(&group.variants)?;
    }
    let workers = config.worker_count();
    require(workers <= 256, "models.workers", workers, "at most 256 in all")?;
    require(
        models.is_empty() || config.model.variants.is_empty(),
        "model.variants",
        config.model.variants.len(),
        "none beside [[models]], which have their own",
    )?;
    require(
        models.len() < 2 || config.workers.speculation != Speculation::Draft,
        "workers.speculation",
        "draft",
        "\"off\" or \"prompt_lookup\" with several models: one drafting model does not have the vocabulary of all",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, load};

    /// Scenario: a name, a path with `=` in it, every key, an unknown one, a number that is none.
    /// Guarantees: what is right becomes a group; what is wrong is named with what would be right.
    #[test]
    fn a_model_is_read_from_the_command_line() {
        assert_eq!(parse_model("smollm2-135m"), Ok(ModelGroup::named("smollm2-135m")));
        assert_eq!(parse_model("/data/a=b.gguf"), Ok(ModelGroup::named("/data/a=b.gguf")));
        let all = ModelGroup { file: Some("/a b.gguf".into()), workers: Some(2), ..ModelGroup::named("chat") };
        assert_eq!(parse_model("chat=file:/a b.gguf,workers:2"), Ok(all));
        let wrong = |text| parse_model(text).unwrap_err();
        assert_eq!(wrong("a=worker:2"), "unknown key `worker`; expected file or workers; did you mean `workers`?");
        assert_eq!(wrong("a=workers:two"), "workers:two: expected a number");
    }

    fn with(models: Vec<ModelGroup>) -> Result<Config, ConfigError> {
        load(None, Overrides::default().set("models", Some(models)))
    }

    /// Scenario: no list; a list with and without numbers of workers and with variants.
    /// Guarantees: without a list the one model is the group; workers are counted by group.
    #[test]
    fn groups_and_their_workers() {
        let alone = with(vec![]).unwrap();
        assert_eq!((alone.groups(), alone.worker_count()), (vec![ModelGroup::named(&alone.model.name)], 2));
        let two = Variant { workers: 2, ..Variant::named("exact") };
        let several = with(vec![
            ModelGroup { workers: Some(3), ..ModelGroup::named("a") },
            ModelGroup::named("b"),
            ModelGroup { variants: vec![two, Variant::named("q4")], ..ModelGroup::named("c") },
        ])
        .unwrap();
        assert_eq!(several.worker_count(), 3 + 2 + 3);
        assert_eq!(several.policy.variants.order, ["default", "exact", "q4"]);
    }

    /// Scenario: a name twice, an empty one, no workers, variants of `[model]` beside the list.
    /// Guarantees: each is refused by its key.
    #[test]
    fn wrong_lists_are_named() {
        let refusal = |models| with(models).unwrap_err().to_string();
        let lines = [
            refusal(vec![ModelGroup::named("a"), ModelGroup::named("a")]),
            refusal(vec![ModelGroup::named("")]),
            refusal(vec![ModelGroup { workers: Some(0), ..ModelGroup::named("a") }]),
            refusal(
                vec![ModelGroup { workers: Some(250), ..ModelGroup::named("a") }; 1]
                    .into_iter()
                    .chain([ModelGroup { workers: Some(9), ..ModelGroup::named("b") }])
                    .collect(),
            ),
        ];
        expect_test::expect![[r#"
            models.name = a: expected each name once
            models.name = "": expected names of 1 to 128 letters, digits, `-`, `_`, `.`, `/` and `:`
            models.workers = 0: expected 1 to 256
            models.workers = 259: expected at most 256 in all"#]]
        .assert_eq(&lines.join("\n"));
        let both = Overrides::default()
            .set("models", Some(vec![ModelGroup::named("a")]))
            .set("model.variants", Some(vec![Variant::named("q4")]));
        assert!(load(None, both).unwrap_err().to_string().starts_with("model.variants = 1: expected none beside"));
    }
}
