//! Well-known models by name, so that what one costs can be asked without a file.
//!
//! `presets.json` has the keys of each model's config.json that its size depends on, with the public repository on
//! the Hugging Face Hub that it is from, and the number of parameters that the repository states.

use crate::{ModelConfig, ModelError};
use serde_json::{Map, Value};

const PRESETS: &str = include_str!("presets.json");

/// A well-known model.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// What it is called here.
    pub name: String,
    /// The repository on the Hugging Face Hub that its config.json is from.
    pub source: String,
    /// Parameters, as the repository states them.
    pub parameters: u64,
    /// Keys of its config.json.
    pub config: Map<String, Value>,
}

impl Preset {
    /// All of them, family by family, the smallest first.
    ///
    /// # Panics
    /// When the table in this crate is no table: a test would have failed.
    pub fn all() -> Vec<Self> {
        let table: Vec<Value> = serde_json::from_str(PRESETS).expect("the table is JSON");
        table.iter().map(|row| Self::of(row).expect("every row is whole")).collect()
    }

    fn of(row: &Value) -> Option<Self> {
        Some(Self {
            name: row["name"].as_str()?.into(),
            source: row["source"].as_str()?.into(),
            parameters: row["parameters"].as_u64()?,
            config: row["config"].as_object()?.clone(),
        })
    }

    /// The model of this name, whatever its case.
    pub fn find(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// Its config, checked.
    ///
    /// # Errors
    /// None for a row of the table.
    pub fn model_config(&self) -> Result<ModelConfig, ModelError> {
        ModelConfig::from_value(&Value::Object(self.config.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSpec;

    // The dims and the count are stated apart from each other.
    #[test]
    fn every_preset_has_the_parameters_that_are_published() {
        for p in Preset::all() {
            let spec = ModelSpec::new(p.model_config().unwrap_or_else(|e| panic!("{}: {e}", p.name)));
            assert_eq!(spec.parameter_count(), p.parameters, "{}", p.name);
        }
    }

    #[test]
    fn presets_have_names_of_their_own_and_say_where_they_are_from() {
        let all = Preset::all();
        for (i, p) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|q| q.name != p.name) && p.source.contains('/'), "{}", p.name);
            assert_eq!(Preset::find(&p.name.to_uppercase()).as_ref(), Some(p));
        }
        for name in ["llama-3.1-8b", "qwen3-0.6b", "gpt2-xl", "mistral-7b", "smollm2-135m", "tinyllama-1.1b"]
        {
            assert!(Preset::find(name).is_some(), "{name}");
        }
        assert_eq!(Preset::find("gpt5"), None);
    }
}
