//! A model's config.json: read, laid out, counted, and exported again.

use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_model::{ModelConfig, ModelSpec};
use std::path::Path;

pub(super) const DEFINITION: Definition = Definition {
    name: "config",
    form: Form::Text,
    words: &[
        "\"LlamaForCausalLM\"",
        "\"GPT2LMHeadModel\"",
        "\"llama\"",
        "\"gpt2\"",
        "\"architectures\"",
        "\"model_type\"",
        "\"hidden_size\"",
        "\"intermediate_size\"",
        "\"num_hidden_layers\"",
        "\"num_attention_heads\"",
        "\"num_key_value_heads\"",
        "\"head_dim\"",
        "\"vocab_size\"",
        "\"tie_word_embeddings\"",
        "\"rms_norm_eps\"",
        "\"layer_norm_epsilon\"",
        "\"initializer_range\"",
        "\"max_position_embeddings\"",
        "\"rope_theta\"",
        "\"rope_scaling\"",
        "\"rope_parameters\"",
        "\"rope_type\"",
        "\"type\"",
        "\"factor\"",
        "\"low_freq_factor\"",
        "\"high_freq_factor\"",
        "\"original_max_position_embeddings\"",
        "\"llama3\"",
        "\"linear\"",
        "\"default\"",
        "\"yarn\"",
        "\"dynamic\"",
        "\"attention_bias\"",
        "\"mlp_bias\"",
        "\"hidden_act\"",
        "\"silu\"",
        "\"gelu_new\"",
        "\"attention_dropout\"",
        "\"quantization_config\"",
        "\"n_embd\"",
        "\"n_layer\"",
        "\"n_head\"",
        "\"n_positions\"",
        "\"n_inner\"",
        "\"Qwen2ForCausalLM\"",
        "\"mistral\"",
        "\"layer_types\"",
        "\"sliding_attention\"",
        "\"sliding_window\"",
        "\"use_sliding_window\"",
        "\"max_window_layers\"",
        "\"partial_rotary_factor\"",
        "\"attn_pdrop\"",
    ],
    inputs: Vec::new,
    target: |_: &Path| Box::new(Config),
    for_tests: false,
};

struct Config;

impl Target for Config {
    fn run(&mut self, input: &[u8]) -> Outcome {
        let Ok(text) = std::str::from_utf8(input) else { return Outcome::Refused("not UTF-8".into()) };
        let config = match ModelConfig::from_json(text) {
            Ok(config) => config,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        let exported = config.to_export_json("float32", Some(0));
        let spec = ModelSpec::new(config);
        // Counted anew in integers that do not overflow.
        let dims = |shape: &[usize]| shape.iter().map(|d| *d as u128).product::<u128>();
        let count: u128 = spec.params.iter().map(|p| dims(&p.shape)).sum();
        assert_eq!(u128::from(spec.parameter_count()), count, "the parameters are miscounted");
        let flops = u128::from(spec.flops_per_token(spec.config.max_positions));
        let matrices: u128 = spec.units[1..]
            .iter()
            .flat_map(|u| &u.params)
            .map(|p| spec.param(*p))
            .filter(|p| p.shape.len() == 2)
            .map(|p| dims(&p.shape))
            .sum();
        assert!(flops >= 6 * matrices, "{flops} FLOPs overflowed");
        let again =
            ModelConfig::from_value(&exported).unwrap_or_else(|e| panic!("exported, it is refused: {e}"));
        let again = ModelSpec::new(again);
        assert!(again.params == spec.params && again.units == spec.units, "exported, it is another model");
        Outcome::Accepted
    }
}
