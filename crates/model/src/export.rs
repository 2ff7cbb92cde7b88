//! The config.json of an exported model.

use crate::{Family, ModelConfig};
use serde_json::{Value, json};

impl ModelConfig {
    /// The config as it was given: what [`ModelConfig::from_value`] reads the same from.
    pub fn to_json(&self) -> Value {
        Value::Object(self.raw.clone())
    }

    /// The config.json of a model that is exported in `dtype` ("float32"): every key that was read,
    /// with what transformers needs to load the folder without being told the class.
    pub fn to_export_json(&self, dtype: &str, end_of_document: Option<u32>) -> Value {
        let mut out = self.raw.clone();
        let mut set_default = |key: &str, v: Value| {
            out.entry(key).or_insert(v);
        };
        set_default("architectures", json!([self.family.class()]));
        set_default("model_type", self.family.model_type().into());
        set_default("tie_word_embeddings", self.tied.into());
        set_default("initializer_range", self.initializer_range.into());
        // The classes default to ids that mean something else in most vocabularies.
        set_default("bos_token_id", Value::Null);
        set_default("eos_token_id", end_of_document.map_or(Value::Null, Value::from));
        if self.family == Family::Gpt2 {
            set_default("activation_function", "gelu_new".into());
            set_default("layer_norm_epsilon", self.norm_eps.into());
            set_default("n_positions", self.max_positions.into());
            set_default("embd_pdrop", self.dropout.embedding.into());
            set_default("attn_pdrop", self.dropout.attention.into());
            set_default("resid_pdrop", self.dropout.residual.into());
        } else {
            set_default("num_key_value_heads", self.kv_heads.into());
            set_default("head_dim", self.head_dim.into());
            set_default("hidden_act", "silu".into());
            set_default("rms_norm_eps", self.norm_eps.into());
            set_default("max_position_embeddings", self.max_positions.into());
            if self.family == Family::Mistral {
                set_default("sliding_window", self.windows[0].map_or(Value::Null, Value::from));
            }
            if let Some(rope) = self.rope.filter(|_| !out.contains_key("rope_parameters")) {
                out.entry("rope_theta").or_insert(rope.theta.into());
            }
        }
        out.remove("torch_dtype");
        out.insert("dtype".into(), dtype.into());
        Value::Object(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exported_config_reads_back_as_the_same_model() {
        let llama = json!({"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "tie_word_embeddings": true});
        let gpt2 = json!({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 80});
        let mut mistral = llama.clone();
        mistral["architectures"] = json!(["MistralForCausalLM"]);
        mistral["torch_dtype"] = "bfloat16".into();
        for config in [llama, gpt2, mistral] {
            let a = ModelConfig::from_value(&config).unwrap();
            let exported = a.to_export_json("float32", Some(7));
            assert_eq!(exported["dtype"], "float32");
            assert!(exported.get("torch_dtype").is_none(), "one key says the type, not two");
            let b = ModelConfig::from_value(&exported).unwrap();
            assert!(a.means_the_same_as(&b) && a != b);
            let other = ModelConfig { tied: !a.tied, ..b };
            assert!(!a.means_the_same_as(&other));
        }
    }
}
