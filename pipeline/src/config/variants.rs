//! The precisions that the model is served in (SPEC D1), as declared: `[[model.variants]]`, or `--variant NAME=KEY:VALUE,…`.
//!
//! Invariant: what is left out is as `[workers]` and `[model]` say. Bound: [`VARIANTS_MAX`] variants, names of at most
//! [`NAME_MAX`] bytes, which fit into a header.

use serde::{Deserialize, Serialize};

use super::{Arithmetic, ConfigError, require};
use crate::policy::DEFAULT_VARIANT;

pub const VARIANTS_MAX: usize = 16;
pub const NAME_MAX: usize = 64;

/// Keys of a variant, for error texts.
pub(super) const KEYS: [&str; 6] = ["name", "workers", "file", "weights", "arithmetic", "kv"];

/// What matrices are held in; see `engine::model::WeightFormat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Weights {
    /// As the file has them.
    #[default]
    AsStored,
    F32,
    F16,
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q8,
    #[serde(rename = "q4_0")]
    #[value(name = "q4_0")]
    Q4,
}

/// What keys and values are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum KvFormat {
    /// As exact as the arithmetic: f16 beside int8, f32 beside f32.
    #[default]
    Auto,
    F16,
    F32,
}

/// One precision of the model, in worker processes of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub name: String,
    #[serde(default = "one")]
    pub workers: u32,
    /// Path of a model file with the same vocabulary. `None`: the model's.
    pub file: Option<String>,
    #[serde(default)]
    pub weights: Weights,
    pub arithmetic: Option<Arithmetic>,
    pub kv: Option<KvFormat>,
}

fn one() -> u32 {
    1
}

impl Variant {
    /// A variant that is the model as it is.
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), workers: 1, file: None, weights: Weights::AsStored, arithmetic: None, kv: None }
    }
}

/// Names of all variants; the one that stands for the model itself if none is declared.
pub(super) fn names(variants: &[Variant]) -> Vec<String> {
    match variants {
        [] => vec![DEFAULT_VARIANT.into()],
        some => some.iter().map(|variant| variant.name.clone()).collect(),
    }
}

/// Reads `NAME` or `NAME=KEY:VALUE,KEY:VALUE`, as in `q8=weights:q8_0,workers:2`.
pub fn parse_variant(text: &str) -> Result<Variant, String> {
    let (name, rest) = text.split_once('=').unwrap_or((text, ""));
    let mut fields = serde_json::Map::from_iter([("name".to_string(), name.into())]);
    for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once(':').ok_or_else(|| format!("`{pair}`: expected KEY:VALUE"))?;
        if !KEYS[1..].contains(&key) {
            let known: Vec<String> = KEYS[1..].iter().map(ToString::to_string).collect();
            let hint = super::did_you_mean(key, &known);
            return Err(format!("unknown key `{key}`; expected one of {}{hint}", known.join(", ")));
        }
        let value = value.parse::<u32>().map_or_else(|_| value.into(), serde_json::Value::from);
        fields.insert(key.into(), value);
    }
    serde_json::from_value(serde_json::Value::Object(fields)).map_err(|error| error.to_string())
}

pub(super) fn validate(variants: &[Variant]) -> Result<(), ConfigError> {
    const KEY: &str = "model.variants";
    require(variants.len() <= VARIANTS_MAX, KEY, variants.len(), format!("at most {VARIANTS_MAX}"))?;
    for (place, variant) in variants.iter().enumerate() {
        let name = &variant.name;
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        require(
            is_plain && (1..=NAME_MAX).contains(&name.len()),
            KEY,
            format!("{name:?}"),
            format!("names of 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`"),
        )?;
        require(!variants[..place].iter().any(|other| other.name == *name), KEY, name, "each name once")?;
        require((1..=256).contains(&variant.workers), "model.variants.workers", variant.workers, "1 to 256")?;
    }
    let workers: u32 = variants.iter().map(|variant| variant.workers).sum();
    require(workers <= 256, "model.variants.workers", workers, "at most 256 in all")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a bare name, every key, an unknown one, a value of the wrong kind, a piece without a value.
    /// Guarantees: what is right becomes a variant; what is wrong is named with what would be right.
    #[test]
    fn a_variant_is_read_from_the_command_line() {
        assert_eq!(parse_variant("int8"), Ok(Variant::named("int8")));
        let all = parse_variant("q8=weights:q8_0,workers:2,arithmetic:int8,kv:f16,file:a b.gguf").unwrap();
        let expected = Variant {
            workers: 2,
            file: Some("a b.gguf".into()),
            weights: Weights::Q8,
            arithmetic: Some(Arithmetic::Int8),
            kv: Some(KvFormat::F16),
            ..Variant::named("q8")
        };
        assert_eq!(all, expected);
        let wrong = |text| parse_variant(text).unwrap_err();
        assert_eq!(
            wrong("a=arithmetik:int8"),
            "unknown key `arithmetik`; expected one of workers, file, weights, arithmetic, kv; did you mean `arithmetic`?"
        );
        assert!(
            wrong("a=weights:q9").contains("unknown variant `q9`, expected one of `as_stored`"),
            "{}",
            wrong("a=weights:q9")
        );
        assert_eq!(wrong("a=kv"), "`kv`: expected KEY:VALUE");
    }

    /// Scenario: the same name twice, a name no header can carry, no workers.
    /// Guarantees: each is refused by its key.
    #[test]
    fn wrong_declarations_are_named() {
        let refusal = |variants: &[Variant]| validate(variants).unwrap_err().to_string();
        assert_eq!(validate(&[Variant::named("a"), Variant::named("b")]).map_err(|error| error.to_string()), Ok(()));
        assert_eq!(refusal(&[Variant::named("a"), Variant::named("a")]), "model.variants = a: expected each name once");
        assert!(refusal(&[Variant::named("a b")]).starts_with("model.variants = \"a b\": expected names of 1 to 64"));
        assert_eq!(
            refusal(&[Variant { workers: 0, ..Variant::named("a") }]),
            "model.variants.workers = 0: expected 1 to 256"
        );
    }
}
