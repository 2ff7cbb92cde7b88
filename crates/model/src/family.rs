//! The architectures that can be trained, and how a config.json names them.

use crate::ModelError;
use crate::keys::Keys;
use serde_json::Value;

/// An architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama 1 to 3, SmolLM2 and all that borrow its class: RMSNorm, rotary embedding, SwiGLU.
    Llama,
    /// Llama with a sliding window.
    Mistral,
    /// Qwen 2 and 2.5: Llama with biases on queries, keys and values.
    Qwen2,
    /// Qwen 3: Llama with norms on queries and keys.
    Qwen3,
    /// GPT-2: LayerNorm, learned positions, GELU, biases, dropout.
    Gpt2,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 5] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Gpt2];

    /// The class in transformers, as in `architectures`.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Gpt2 => "GPT2LMHeadModel",
        }
    }

    /// The value of `model_type`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gpt2 => "gpt2",
        }
    }

    /// What the names of all parameters but the head's begin with. Checkpoints of the bare decoder leave it out.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            _ => "model.",
        }
    }

    /// From `model_type` and `architectures`; Llama where there is neither.
    pub(crate) fn of(raw: &Keys) -> Result<Self, ModelError> {
        let unknown = |found: &Value| ModelError::Architecture {
            found: found.as_str().map_or_else(|| found.to_string(), str::to_owned),
        };
        let find = |v: &Value, name: fn(Self) -> &'static str| {
            Self::ALL.into_iter().find(|f| v.as_str() == Some(name(*f))).ok_or_else(|| unknown(v))
        };
        let class =
            raw.get("architectures").and_then(|a| a.get(0)).map(|v| find(v, Self::class)).transpose()?;
        let kind = raw.get("model_type").map(|v| find(v, Self::model_type)).transpose()?;
        match (class, kind) {
            (Some(a), Some(b)) if a != b => Err(ModelError::Invalid {
                key: "model_type",
                found: format!("{:?}", b.model_type()),
                expected: format!("{:?}, as architectures says {}", a.model_type(), a.class()),
            }),
            (a, b) => Ok(a.or(b).unwrap_or(Self::Llama)),
        }
    }
}
