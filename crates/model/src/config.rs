//! The checked numbers of a Hugging Face `config.json`.

use crate::keys::{self, Keys, dim, flag, given, only, only_switch, optional_dim, positive, rate};
use crate::{Family, ModelError, RopeSpec};
use serde_json::Value;

/// Shares of elements that training sets to zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Of the embedding's result.
    pub embedding: f64,
    /// Of attention's probabilities.
    pub attention: f64,
    /// Of what attention and MLP add to the residual stream.
    pub residual: f64,
}

impl Dropout {
    /// None.
    pub const NONE: Dropout = Dropout { embedding: 0.0, attention: 0.0, residual: 0.0 };
}

/// The checked numbers of a decoder's config.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dims of one head; even where there is a rotary embedding.
    pub head_dim: usize,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Whether the head shares the embedding's weight.
    pub tied: bool,
    /// Epsilon inside the norms' root.
    pub norm_eps: f64,
    /// Standard deviation of random initial matrices.
    pub initializer_range: f64,
    /// Longest sequence that the model says it supports.
    pub max_positions: usize,
    /// Rotary embedding; without one, positions are learned.
    pub rope: Option<RopeSpec>,
    /// For each block, the tokens that a token sees, itself included; `None` sees all before it.
    pub windows: Vec<Option<usize>>,
    /// Whether the projections of queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether attention's output projection has a bias.
    pub out_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Dropout.
    pub dropout: Dropout,
    pub(crate) raw: Keys,
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
        let raw = value.as_object().ok_or_else(|| ModelError::NotJson(keys::kind_of(value).into()))?;
        let family = Family::of(raw)?;
        if let Some(v) = given(raw, "quantization_config") {
            let reason = "only unquantized weights can be trained";
            return Err(ModelError::Unsupported { key: "quantization_config", found: v.to_string(), reason });
        }
        let config = if family == Family::Gpt2 { gpt2(raw) } else { llama_like(family, raw) }?;
        config.check()?;
        Ok(config)
    }

    /// Whether `other` describes the same model, whatever keys it says it with.
    pub fn means_the_same_as(&self, other: &Self) -> bool {
        Self { raw: self.raw.clone(), ..other.clone() } == *self
    }

    /// What no single key decides.
    fn check(&self) -> Result<(), ModelError> {
        if self.kv_heads > self.heads || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(ModelError::Invalid {
                key: "num_key_value_heads",
                found: self.kv_heads.to_string(),
                expected: format!("a divisor of num_attention_heads ({})", self.heads),
            });
        }
        let even = self.rope.is_none() || self.head_dim.is_multiple_of(2);
        if !even || self.head_dim > 256 {
            return Err(ModelError::Invalid {
                key: "head_dim",
                found: self.head_dim.to_string(),
                expected: "an even number up to 256".into(),
            });
        }
        if self.layers > MAX_LAYERS {
            return Err(ModelError::Invalid {
                key: self.key("num_hidden_layers", "n_layer"),
                found: self.layers.to_string(),
                expected: format!("at most {MAX_LAYERS}"),
            });
        }
        // Sums and products of dims stay far from 64 bits below this.
        let [d, f, v, n, layers] =
            [self.hidden_size, self.intermediate_size, self.vocab_size, self.max_positions, self.layers]
                .map(|n| n as u128);
        let width = self.heads as u128 * self.head_dim as u128;
        let parameters = layers * d * (4 * width + 3 * f) + (2 * v + n) * d;
        if parameters > MAX_PARAMETERS {
            return Err(ModelError::Invalid {
                key: self.key("hidden_size", "n_embd"),
                found: format!("{d}, and with the other dims about {parameters} parameters"),
                expected: format!("dims of a model of at most {MAX_PARAMETERS} parameters"),
            });
        }
        Ok(())
    }

    fn key(&self, llama: &'static str, gpt2: &'static str) -> &'static str {
        if self.family == Family::Gpt2 { gpt2 } else { llama }
    }
}

/// More blocks than any model has; each costs memory before anything is checked further.
const MAX_LAYERS: usize = 1 << 12;

/// More parameters than any model has.
const MAX_PARAMETERS: u128 = 1 << 48;

/// Dims of a head where the config does not give them.
fn derived_head_dim(
    key: &'static str,
    heads_key: &str,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ModelError> {
    if hidden_size.is_multiple_of(heads) {
        return Ok(hidden_size / heads);
    }
    let beside = if key == "hidden_size" { ", or head_dim beside it" } else { "" };
    Err(ModelError::Invalid {
        key,
        found: hidden_size.to_string(),
        expected: format!("a multiple of {heads_key} ({heads}){beside}"),
    })
}

/// Llama and its kin.
fn llama_like(family: Family, raw: &Keys) -> Result<ModelConfig, ModelError> {
    only(raw, "hidden_act", &["silu", "swish"], "only \"silu\" is, in this architecture")?;
    if let Some(v) = given(raw, "partial_rotary_factor").filter(|v| v.as_f64() != Some(1.0)) {
        let reason = "the rotary embedding turns all dims of a head, or none";
        return Err(ModelError::Unsupported { key: "partial_rotary_factor", found: v.to_string(), reason });
    }
    let hidden_size = dim(raw, "hidden_size", "width of the residual stream")?;
    let heads = dim(raw, "num_attention_heads", "number of query heads")?;
    let head_dim = match optional_dim(raw, "head_dim")? {
        Some(d) => d,
        // The class's own default, whatever the width.
        None if family == Family::Qwen3 => 128,
        None => derived_head_dim("hidden_size", "num_attention_heads", hidden_size, heads)?,
    };
    let layers = dim(raw, "num_hidden_layers", "number of transformer blocks")?;
    let (qkv_bias, out_bias) = match family {
        Family::Llama | Family::Qwen3 => {
            let bias = flag(raw, "attention_bias")?.unwrap_or(false);
            (bias, bias)
        }
        Family::Qwen2 => (true, false),
        _ => (false, false),
    };
    let mlp_bias = family == Family::Llama && flag(raw, "mlp_bias")?.unwrap_or(false);
    Ok(ModelConfig {
        family,
        hidden_size,
        intermediate_size: dim(raw, "intermediate_size", "width of the MLP")?,
        layers,
        heads,
        kv_heads: optional_dim(raw, "num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        vocab_size: dim(raw, "vocab_size", "number of token ids")?,
        tied: flag(raw, "tie_word_embeddings")?.unwrap_or(false),
        norm_eps: positive(raw, "rms_norm_eps", 1e-6)?,
        initializer_range: positive(raw, "initializer_range", 0.02)?,
        max_positions: optional_dim(raw, "max_position_embeddings")?.unwrap_or(match family {
            Family::Mistral => 131_072,
            Family::Qwen2 | Family::Qwen3 => 32_768,
            _ => 2048,
        }),
        rope: Some(RopeSpec::from_config(raw)?),
        windows: windows(family, raw, layers)?,
        qkv_bias,
        out_bias,
        mlp_bias,
        dropout: Dropout { attention: rate(raw, "attention_dropout", 0.0)?, ..Dropout::NONE },
        raw: raw.clone(),
    })
}

/// The sliding window of each block.
fn windows(family: Family, raw: &Keys, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    // Bounded before anything is allocated for each of them.
    let all = |window| vec![window; layers.min(MAX_LAYERS)];
    let window = optional_dim(raw, "sliding_window")?;
    match family {
        // The class's own default is 4096 where the key is missing, and none where it is null.
        Family::Mistral if !raw.contains_key("sliding_window") => Ok(all(Some(4096))),
        Family::Mistral => Ok(all(window)),
        Family::Qwen2 | Family::Qwen3 if flag(raw, "use_sliding_window")?.unwrap_or(false) => {
            let Some(window) = window else { return Ok(all(None)) };
            if let Some(types) = given(raw, "layer_types") {
                return layer_types(types, window, layers);
            }
            let full = match given(raw, "max_window_layers") {
                None => 28,
                Some(v) => v.as_u64().ok_or_else(|| {
                    ModelError::invalid("max_window_layers", v, "a whole number of 0 or more")
                })?,
            };
            Ok((0..layers.min(MAX_LAYERS)).map(|i| (i as u64 >= full).then_some(window)).collect())
        }
        _ => Ok(all(None)),
    }
}

fn layer_types(types: &Value, window: usize, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let expected = || format!("{layers} times \"full_attention\" or \"sliding_attention\"");
    let wrong = || ModelError::invalid("layer_types", types, expected());
    let list = types.as_array().filter(|l| l.len() == layers).ok_or_else(wrong)?;
    list.iter()
        .map(|t| match t.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => Ok(Some(window)),
            _ => Err(wrong()),
        })
        .collect()
}

/// GPT-2.
fn gpt2(raw: &Keys) -> Result<ModelConfig, ModelError> {
    let gelu = ["gelu_new", "gelu_pytorch_tanh"];
    only(raw, "activation_function", &gelu, "only \"gelu_new\" is, in this architecture")?;
    only_switch(raw, "scale_attn_weights", true, "scores are divided by the root of the head's dims")?;
    only_switch(raw, "scale_attn_by_inverse_layer_idx", false, "scores are scaled alike in all blocks")?;
    only_switch(raw, "add_cross_attention", false, "only a decoder by itself is")?;
    let hidden_size = dim(raw, "n_embd", "width of the residual stream")?;
    let heads = dim(raw, "n_head", "number of heads")?;
    let layers = dim(raw, "n_layer", "number of transformer blocks")?;
    Ok(ModelConfig {
        family: Family::Gpt2,
        hidden_size,
        intermediate_size: optional_dim(raw, "n_inner")?.unwrap_or(4 * hidden_size),
        layers,
        heads,
        kv_heads: heads,
        head_dim: derived_head_dim("n_embd", "n_head", hidden_size, heads)?,
        vocab_size: dim(raw, "vocab_size", "number of token ids")?,
        tied: flag(raw, "tie_word_embeddings")?.unwrap_or(true),
        norm_eps: positive(raw, "layer_norm_epsilon", 1e-5)?,
        initializer_range: positive(raw, "initializer_range", 0.02)?,
        max_positions: optional_dim(raw, "n_positions")?.unwrap_or(1024),
        rope: None,
        windows: vec![None; layers.min(MAX_LAYERS)],
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        dropout: Dropout {
            embedding: rate(raw, "embd_pdrop", 0.1)?,
            attention: rate(raw, "attn_pdrop", 0.1)?,
            residual: rate(raw, "resid_pdrop", 0.1)?,
        },
        raw: raw.clone(),
    })
}

#[cfg(test)]
mod tests;
