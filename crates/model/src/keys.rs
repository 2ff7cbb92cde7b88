//! Reading single keys of a config.json, each checked for kind and range.

use crate::ModelError;
use serde_json::{Map, Value};

/// A config.json's keys.
pub(crate) type Keys = Map<String, Value>;

/// Dims above this are refused: no model has them, and products of two of them still fit in 64 bits.
const MAX_DIM: u64 = 1 << 24;

/// What kind of value stands where an object should.
pub(crate) fn kind_of(v: &Value) -> &'static str {
    match v {
        Value::Null => "it is null",
        Value::Bool(_) => "it is a boolean",
        Value::Number(_) => "it is a number",
        Value::String(_) => "it is a string",
        Value::Array(_) => "it is an array",
        Value::Object(_) => "it is an object",
    }
}

/// A key that is neither missing nor null.
pub(crate) fn given<'a>(raw: &'a Keys, key: &str) -> Option<&'a Value> {
    raw.get(key).filter(|v| !v.is_null())
}

/// A size that must be there.
pub(crate) fn dim(raw: &Keys, key: &'static str, meaning: &'static str) -> Result<usize, ModelError> {
    optional_dim(raw, key)?.ok_or(ModelError::Missing { key, meaning })
}

/// A size.
pub(crate) fn optional_dim(raw: &Keys, key: &'static str) -> Result<Option<usize>, ModelError> {
    match given(raw, key) {
        None => Ok(None),
        Some(v) => match v.as_u64() {
            Some(n) if (1..=MAX_DIM).contains(&n) => Ok(Some(n as usize)),
            _ => Err(ModelError::invalid(key, v, format!("a whole number from 1 to {MAX_DIM}"))),
        },
    }
}

/// A switch.
pub(crate) fn flag(raw: &Keys, key: &'static str) -> Result<Option<bool>, ModelError> {
    match given(raw, key) {
        None => Ok(None),
        Some(Value::Bool(b)) => Ok(Some(*b)),
        Some(v) => Err(ModelError::invalid(key, v, "true or false")),
    }
}

/// A positive number.
pub(crate) fn positive(raw: &Keys, key: &'static str, default: f64) -> Result<f64, ModelError> {
    match given(raw, key) {
        None => Ok(default),
        Some(v) => positive_value(key, v),
    }
}

/// A positive number, from its value.
pub(crate) fn positive_value(key: &'static str, v: &Value) -> Result<f64, ModelError> {
    match v.as_f64() {
        Some(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err(ModelError::invalid(key, v, "a positive number")),
    }
}

/// A dropout rate.
pub(crate) fn rate(raw: &Keys, key: &'static str, default: f64) -> Result<f64, ModelError> {
    match given(raw, key) {
        None => Ok(default),
        Some(v) => match v.as_f64() {
            Some(x) if (0.0..1.0).contains(&x) => Ok(x),
            _ => Err(ModelError::invalid(key, v, "a share from 0 to below 1")),
        },
    }
}

/// Refuses any value of `key` but those in `accepted`.
pub(crate) fn only(
    raw: &Keys,
    key: &'static str,
    accepted: &[&str],
    reason: &'static str,
) -> Result<(), ModelError> {
    match given(raw, key) {
        Some(v) if !v.as_str().is_some_and(|s| accepted.contains(&s)) => {
            Err(ModelError::Unsupported { key, found: v.to_string(), reason })
        }
        _ => Ok(()),
    }
}

/// Refuses a switch that is not `wanted`.
pub(crate) fn only_switch(
    raw: &Keys,
    key: &'static str,
    wanted: bool,
    reason: &'static str,
) -> Result<(), ModelError> {
    match flag(raw, key)? {
        Some(found) if found != wanted => {
            Err(ModelError::Unsupported { key, found: found.to_string(), reason })
        }
        _ => Ok(()),
    }
}
