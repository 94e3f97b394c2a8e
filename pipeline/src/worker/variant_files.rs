//! Whether the files of a model's variants speak of the same tokens: the gateway tokenises once, whoever serves.
//!
//! Cost: the headers of the files are read. No state.

use std::path::Path;

use engine::{model::Gguf, speculation::vocabulary::same_vocabulary};

use crate::config::Variant;

/// A variant whose file does not go with the model's.
#[derive(Debug, thiserror::Error)]
#[error("model.variants: variant {name}, file {file}: {problem}")]
pub struct VariantFileError {
    name: String,
    file: String,
    problem: String,
}

/// Compares each variant's own file with the model's.
pub fn check(variants: &[Variant], model: &str) -> Result<(), VariantFileError> {
    for (variant, file) in variants.iter().filter_map(|variant| Some((variant, variant.file.as_deref()?))) {
        let compared = || -> Result<(), String> {
            let own = Gguf::open(Path::new(file)).map_err(|error| error.to_string())?;
            let served = Gguf::open(Path::new(model)).map_err(|error| error.to_string())?;
            same_vocabulary(&served, &own).map_err(|error| error.to_string())
        };
        compared().map_err(|problem| VariantFileError { name: variant.name.clone(), file: file.into(), problem })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use engine::model::{
        Family,
        tiny::{tiny_gguf, tiny_llama_gguf},
    };

    use super::*;

    /// Scenario: a file of other weights, one of another vocabulary, one that is not there.
    /// Guarantees: the first goes; the others are refused with the variant's name and what is wrong.
    #[test]
    fn files_must_share_the_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, bytes: Vec<u8>| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path.display().to_string()
        };
        let model = path("model.gguf", tiny_llama_gguf(1));
        let variant = |name: &str, file: String| Variant { file: Some(file), ..Variant::named(name) };
        let alike = variant("alike", path("alike.gguf", tiny_llama_gguf(2)));
        let other = variant("other", path("other.gguf", tiny_gguf(Family::Gemma3, 1)));
        let missing = variant("missing", folder.path().join("missing.gguf").display().to_string());
        assert!(check(&[Variant::named("itself"), alike], &model).is_ok());
        let text = check(&[other], &model).unwrap_err().to_string();
        assert!(text.contains("variant other") && text.contains("other.gguf"), "{text}");
        assert!(check(&[missing], &model).unwrap_err().to_string().contains("variant missing"));
    }
}
