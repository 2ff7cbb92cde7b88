//! Why a model description was refused.

use crate::Family;
use serde_json::Value;
use thiserror::Error;

/// A config that cannot be trained as it is. The text names the key, what it holds and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The text is not JSON, or not a JSON object.
    #[error("the model config is not a JSON object: {0}")]
    NotJson(String),
    /// The architecture is not one that memwall trains.
    #[error("the architecture {found:?} is not supported; supported: {}", supported())]
    Architecture {
        /// What the config names.
        found: String,
    },
    /// A key is missing and has no default.
    #[error("the model config has no {key:?}; add it ({meaning})")]
    Missing {
        /// Key of config.json.
        key: &'static str,
        /// What the key means.
        meaning: &'static str,
    },
    /// A key holds a value of the wrong kind or range.
    #[error("the model config has {key} = {found}, expected {expected}")]
    Invalid {
        /// Key of config.json.
        key: &'static str,
        /// What it holds.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A feature that the config switches on is not supported.
    #[error("the model config has {key} = {found}, which is not supported: {reason}")]
    Unsupported {
        /// Key of config.json.
        key: &'static str,
        /// What it holds.
        found: String,
        /// Why, and what is.
        reason: &'static str,
    },
}

impl ModelError {
    pub(crate) fn invalid(key: &'static str, found: &Value, expected: impl Into<String>) -> Self {
        Self::Invalid { key, found: found.to_string(), expected: expected.into() }
    }
}

/// The architectures by class and type.
fn supported() -> String {
    Family::ALL.map(|f| format!("{} (model_type {:?})", f.class(), f.model_type())).join(", ")
}
