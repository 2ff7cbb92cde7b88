//! Reading and writing the keys of a Hugging Face `config.json`.

use crate::{ModelError, RopeSpec};
use serde_json::{Map, Value};

/// Dims above this are refused: no model has them, and products of two of them still fit in 64 bits.
const MAX_DIM: u64 = 1 << 24;

/// The checked numbers of a decoder's config.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dims of one head, even.
    pub head_dim: usize,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Whether the head shares the embedding's weight.
    pub tied: bool,
    /// Epsilon inside RMSNorm's root.
    pub norm_eps: f64,
    /// Standard deviation of random initial matrices.
    pub initializer_range: f64,
    /// Longest sequence that the model says it supports.
    pub max_positions: usize,
    /// Rotary embedding.
    pub rope: RopeSpec,
    raw: Map<String, Value>,
}

impl ModelConfig {
    /// Reads the text of a config.json.
    ///
    /// # Errors
    /// [`ModelError`] names the key that is missing, out of range, contradictory or not supported.
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        let value = serde_json::from_str(text).map_err(|e| ModelError::NotJson(e.to_string()))?;
        Self::from_value(&value)
    }

    /// Reads a config.json that is already parsed (or an inline table of a job file).
    ///
    /// # Errors
    /// As [`ModelConfig::from_json`].
    pub fn from_value(value: &Value) -> Result<Self, ModelError> {
        let raw = value.as_object().ok_or_else(|| ModelError::NotJson(kind_of(value).into()))?.clone();
        check_architecture(&raw)?;
        check_unsupported(&raw)?;
        let hidden_size = dim(&raw, "hidden_size", "width of the residual stream")?;
        let heads = dim(&raw, "num_attention_heads", "number of query heads")?;
        let kv_heads = optional_dim(&raw, "num_key_value_heads")?.unwrap_or(heads);
        if kv_heads > heads || heads % kv_heads != 0 {
            return Err(ModelError::Invalid {
                key: "num_key_value_heads",
                found: kv_heads.to_string(),
                expected: format!("a divisor of num_attention_heads ({heads})"),
            });
        }
        let head_dim = match optional_dim(&raw, "head_dim")? {
            Some(d) => d,
            None if hidden_size % heads == 0 => hidden_size / heads,
            None => {
                return Err(ModelError::Invalid {
                    key: "hidden_size",
                    found: hidden_size.to_string(),
                    expected: format!("a multiple of num_attention_heads ({heads}), or head_dim beside it"),
                });
            }
        };
        if head_dim % 2 != 0 || head_dim > 256 {
            return Err(ModelError::Invalid {
                key: "head_dim",
                found: head_dim.to_string(),
                expected: "an even number up to 256".into(),
            });
        }
        Ok(Self {
            hidden_size,
            intermediate_size: dim(&raw, "intermediate_size", "width of the MLP")?,
            layers: dim(&raw, "num_hidden_layers", "number of transformer blocks")?,
            heads,
            kv_heads,
            head_dim,
            vocab_size: dim(&raw, "vocab_size", "number of token ids")?,
            tied: flag(&raw, "tie_word_embeddings")?.unwrap_or(false),
            norm_eps: positive(&raw, "rms_norm_eps", 1e-6)?,
            initializer_range: positive(&raw, "initializer_range", 0.02)?,
            max_positions: optional_dim(&raw, "max_position_embeddings")?.unwrap_or(2048),
            rope: RopeSpec::from_config(value)?,
            raw,
        })
    }

    /// Whether `other` describes the same model, whatever keys it says it with.
    pub fn means_the_same_as(&self, other: &Self) -> bool {
        Self { raw: self.raw.clone(), ..other.clone() } == *self
    }

    /// The config.json of a model that is exported in `dtype` ("float32"): every key that was read,
    /// with what transformers needs to load the folder without being told the class.
    pub fn to_export_json(&self, dtype: &str, end_of_document: Option<u32>) -> Value {
        let mut out = self.raw.clone();
        let mut set_default = |key: &str, v: Value| {
            out.entry(key).or_insert(v);
        };
        set_default("architectures", serde_json::json!(["LlamaForCausalLM"]));
        set_default("model_type", "llama".into());
        set_default("num_key_value_heads", self.kv_heads.into());
        set_default("head_dim", self.head_dim.into());
        set_default("hidden_act", "silu".into());
        set_default("rms_norm_eps", self.norm_eps.into());
        set_default("tie_word_embeddings", self.tied.into());
        set_default("initializer_range", self.initializer_range.into());
        set_default("max_position_embeddings", self.max_positions.into());
        // Llama's class defaults to ids 1 and 2, which mean something else in most vocabularies.
        set_default("bos_token_id", Value::Null);
        set_default("eos_token_id", end_of_document.map_or(Value::Null, Value::from));
        if !out.contains_key("rope_parameters") {
            set_default_rope(&mut out, self.rope.theta);
        }
        out.remove("torch_dtype");
        out.insert("dtype".into(), dtype.into());
        Value::Object(out)
    }
}

fn set_default_rope(out: &mut Map<String, Value>, theta: f64) {
    out.entry("rope_theta").or_insert(theta.into());
}

fn check_architecture(raw: &Map<String, Value>) -> Result<(), ModelError> {
    let class = raw.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    if let Some(class) = class.filter(|c| *c != "LlamaForCausalLM") {
        return Err(ModelError::Architecture { found: class.into() });
    }
    match raw.get("model_type") {
        None => Ok(()),
        Some(Value::String(t)) if t == "llama" => Ok(()),
        Some(other) => Err(ModelError::Architecture {
            found: other.as_str().map_or_else(|| other.to_string(), str::to_owned),
        }),
    }
}

/// Switches whose other position would be silently ignored if they were not refused here.
fn check_unsupported(raw: &Map<String, Value>) -> Result<(), ModelError> {
    for (key, reason) in [
        ("attention_bias", "projections with biases are not trained yet"),
        ("mlp_bias", "projections with biases are not trained yet"),
    ] {
        if flag(raw, key)? == Some(true) {
            return Err(ModelError::Unsupported { key, found: "true".into(), reason });
        }
    }
    if let Some(v) = raw.get("hidden_act").filter(|v| !matches!(v.as_str(), Some("silu" | "swish"))) {
        return Err(ModelError::Unsupported {
            key: "hidden_act",
            found: v.to_string(),
            reason: "only \"silu\" is",
        });
    }
    if let Some(v) = raw.get("attention_dropout").filter(|v| v.as_f64() != Some(0.0)) {
        let reason = "only 0.0 is: dropout is not trained yet";
        return Err(ModelError::Unsupported { key: "attention_dropout", found: v.to_string(), reason });
    }
    if let Some(v) = raw.get("quantization_config").filter(|v| !v.is_null()) {
        let reason = "only unquantized weights can be trained";
        return Err(ModelError::Unsupported { key: "quantization_config", found: v.to_string(), reason });
    }
    Ok(())
}

fn kind_of(v: &Value) -> &'static str {
    match v {
        Value::Null => "it is null",
        Value::Bool(_) => "it is a boolean",
        Value::Number(_) => "it is a number",
        Value::String(_) => "it is a string",
        Value::Array(_) => "it is an array",
        Value::Object(_) => "it is an object",
    }
}

fn dim(raw: &Map<String, Value>, key: &'static str, meaning: &'static str) -> Result<usize, ModelError> {
    optional_dim(raw, key)?.ok_or(ModelError::Missing { key, meaning })
}

fn optional_dim(raw: &Map<String, Value>, key: &'static str) -> Result<Option<usize>, ModelError> {
    match raw.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => match v.as_u64() {
            Some(n) if (1..=MAX_DIM).contains(&n) => Ok(Some(n as usize)),
            _ => Err(ModelError::Invalid {
                key,
                found: v.to_string(),
                expected: format!("a whole number from 1 to {MAX_DIM}"),
            }),
        },
    }
}

fn flag(raw: &Map<String, Value>, key: &'static str) -> Result<Option<bool>, ModelError> {
    match raw.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(b)) => Ok(Some(*b)),
        Some(v) => Err(ModelError::Invalid { key, found: v.to_string(), expected: "true or false".into() }),
    }
}

fn positive(raw: &Map<String, Value>, key: &'static str, default: f64) -> Result<f64, ModelError> {
    match raw.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(v) => match v.as_f64() {
            Some(x) if x > 0.0 && x.is_finite() => Ok(x),
            _ => Err(ModelError::Invalid { key, found: v.to_string(), expected: "a positive number".into() }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tiny() -> Value {
        json!({"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80})
    }

    fn with(key: &str, v: Value) -> Result<ModelConfig, ModelError> {
        let mut c = tiny();
        c[key] = v;
        ModelConfig::from_value(&c)
    }

    #[test]
    fn head_dim_is_derived_or_given() {
        assert_eq!(with("vocab_size", json!(80)).unwrap().head_dim, 8);
        assert_eq!(with("head_dim", json!(12)).unwrap().head_dim, 12);
    }

    #[test]
    fn impossible_dims_are_refused_by_key() {
        for (key, v) in [
            ("hidden_size", json!(0)),
            ("hidden_size", json!(-32)),
            ("hidden_size", json!(1u64 << 60)),
            ("hidden_size", json!("32")),
            ("num_hidden_layers", json!(1.5)),
            ("num_key_value_heads", json!(3)),
            ("num_key_value_heads", json!(8)),
            ("head_dim", json!(7)),
            ("rms_norm_eps", json!(0)),
            ("tie_word_embeddings", json!("yes")),
        ] {
            let e = with(key, v.clone()).unwrap_err();
            assert!(e.to_string().contains(key), "{key} = {v}: {e}");
        }
    }

    #[test]
    fn missing_dims_are_refused_by_key() {
        for key in
            ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
        {
            let mut c = tiny();
            c.as_object_mut().unwrap().remove(key);
            let e = ModelConfig::from_value(&c).unwrap_err();
            assert!(e.to_string().contains(key), "{e}");
        }
    }

    #[test]
    fn other_architectures_and_switches_are_refused_by_name() {
        for (key, v, word) in [
            ("architectures", json!(["MambaForCausalLM"]), "MambaForCausalLM"),
            ("model_type", json!("mixtral"), "mixtral"),
            ("attention_bias", json!(true), "attention_bias"),
            ("hidden_act", json!("gelu"), "gelu"),
            ("attention_dropout", json!(0.1), "attention_dropout"),
            ("quantization_config", json!({"bits": 4}), "quantization_config"),
        ] {
            let e = with(key, v).unwrap_err();
            assert!(e.to_string().contains(word), "{e}");
        }
    }

    #[test]
    fn an_exported_config_reads_back_as_the_same_model() {
        let a = with("tie_word_embeddings", json!(true)).unwrap();
        let b = ModelConfig::from_value(&a.to_export_json("float32", Some(7))).unwrap();
        assert!(a.means_the_same_as(&b) && a != b);
        assert!(!a.means_the_same_as(&with("tie_word_embeddings", json!(false)).unwrap()));
    }
}
