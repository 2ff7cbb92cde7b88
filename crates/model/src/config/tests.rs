use super::*;
use serde_json::json;

fn tiny() -> Value {
    json!({"hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80})
}

fn tiny_gpt2() -> Value {
    json!({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 80})
}

fn changed(mut config: Value, changes: &[(&str, Value)]) -> Result<ModelConfig, ModelError> {
    for (key, v) in changes {
        config[key] = v.clone();
    }
    ModelConfig::from_value(&config)
}

fn with(key: &str, v: Value) -> Result<ModelConfig, ModelError> {
    changed(tiny(), &[(key, v)])
}

#[test]
fn head_dim_is_derived_or_given() {
    assert_eq!(with("vocab_size", json!(80)).unwrap().head_dim, 8);
    assert_eq!(with("head_dim", json!(12)).unwrap().head_dim, 12);
    assert_eq!(with("head_dim", Value::Null).unwrap().head_dim, 8);
    assert_eq!(with("model_type", json!("qwen3")).unwrap().head_dim, 128);
}

#[test]
fn one_key_value_head_may_serve_all_queries() {
    assert_eq!(with("num_key_value_heads", json!(1)).unwrap().kv_heads, 1);
}

#[test]
fn impossible_values_are_refused_by_key() {
    for (key, v) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-32)),
        ("hidden_size", json!(1u64 << 60)),
        ("hidden_size", json!("32")),
        ("num_hidden_layers", json!(1.5)),
        ("num_hidden_layers", json!(1 << 20)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(8)),
        ("head_dim", json!(7)),
        ("head_dim", json!(512)),
        ("rms_norm_eps", json!(0)),
        ("tie_word_embeddings", json!("yes")),
        ("attention_dropout", json!(1.0)),
        ("attention_dropout", json!(-0.1)),
    ] {
        let e = with(key, v.clone()).unwrap_err();
        assert!(e.to_string().contains(key), "{key} = {v}: {e}");
    }
    for (key, v) in [("n_embd", json!(30)), ("n_positions", json!(0)), ("resid_pdrop", json!(2))] {
        let e = changed(tiny_gpt2(), &[(key, v)]).unwrap_err();
        assert!(e.to_string().contains(key), "{e}");
    }
}

#[test]
fn dims_that_are_possible_one_by_one_but_not_together_are_refused_and_counts_never_overflow() {
    let most = json!(1 << 24);
    let dims = [("hidden_size", most.clone()), ("intermediate_size", most.clone()), ("head_dim", json!(8))];
    let e = changed(tiny(), &dims).unwrap_err().to_string();
    assert!(e.contains("a model of at most 281474976710656 parameters"), "{e}");
    let dims = [("n_embd", most.clone()), ("vocab_size", most.clone()), ("n_head", json!(1 << 16))];
    let e = changed(tiny_gpt2(), &dims).unwrap_err().to_string();
    assert!(e.contains("n_embd = 16777216, and with the other dims about"), "{e}");
    // Many heads on a narrow stream, over the longest sequence: attention's pairs alone are beyond 64 bits.
    let wide = [
        ("hidden_size", json!(1)),
        ("num_attention_heads", most.clone()),
        ("num_key_value_heads", most.clone()),
        ("head_dim", json!(256)),
        ("max_position_embeddings", most),
    ];
    let spec = crate::ModelSpec::new(changed(tiny(), &wide).unwrap());
    // Two blocks, 12 FLOPs for each dim of each of (n + 1) / 2 keys.
    let (n, width) = (1u128 << 24, 1u128 << 32);
    assert_eq!(
        u128::from(spec.attention_flops_per_token(n as usize)),
        2 * (12 * width * (n * (n + 1) / 2) / n)
    );
}

#[test]
fn missing_dims_are_refused_by_key() {
    let llama =
        ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    let gpt2 = ["n_embd", "n_layer", "n_head", "vocab_size"];
    for (config, keys) in [(tiny(), &llama[..]), (tiny_gpt2(), &gpt2[..])] {
        for key in keys {
            let mut c = config.clone();
            c.as_object_mut().unwrap().remove(*key);
            let e = ModelConfig::from_value(&c).unwrap_err();
            assert!(e.to_string().contains(key), "{e}");
        }
    }
}

#[test]
fn other_architectures_and_switches_are_refused_by_name() {
    for (key, v, word) in [
        ("architectures", json!(["MambaForCausalLM"]), "MambaForCausalLM"),
        ("model_type", json!("mixtral"), "mixtral"),
        ("model_type", json!(7), "7"),
        ("hidden_act", json!("gelu"), "gelu"),
        ("quantization_config", json!({"bits": 4}), "quantization_config"),
        ("partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2.0}), "yarn"),
    ] {
        let e = with(key, v).unwrap_err();
        assert!(e.to_string().contains(word), "{e}");
    }
    for (key, v) in [
        ("activation_function", json!("relu")),
        ("scale_attn_weights", json!(false)),
        ("scale_attn_by_inverse_layer_idx", json!(true)),
        ("add_cross_attention", json!(true)),
    ] {
        let e = changed(tiny_gpt2(), &[(key, v)]).unwrap_err();
        assert!(e.to_string().contains(key), "{e}");
    }
}

#[test]
fn class_and_type_must_agree() {
    let both = [("architectures", json!(["LlamaForCausalLM"])), ("model_type", json!("mistral"))];
    let e = changed(tiny(), &both).unwrap_err();
    assert!(e.to_string().contains("mistral") && e.to_string().contains("LlamaForCausalLM"), "{e}");
}

#[test]
fn each_family_has_the_biases_of_its_class() {
    let biases = |c: ModelConfig| [c.qkv_bias, c.out_bias, c.mlp_bias];
    let of = |kind: &str, changes: &[(&str, Value)]| {
        let mut c = tiny();
        c["model_type"] = kind.into();
        biases(changed(c, changes).unwrap())
    };
    let on = [("attention_bias", json!(true)), ("mlp_bias", json!(true))];
    assert_eq!(of("llama", &[]), [false; 3]);
    assert_eq!(of("llama", &on), [true; 3]);
    assert_eq!(of("mistral", &[]), [false; 3]);
    assert_eq!(of("qwen2", &[]), [true, false, false]);
    assert_eq!(of("qwen3", &[]), [false; 3]);
    assert_eq!(of("qwen3", &on), [true, true, false]);
    assert_eq!(biases(ModelConfig::from_value(&tiny_gpt2()).unwrap()), [true; 3]);
}

#[test]
fn windows_follow_the_switches_of_their_class() {
    let of = |changes: &[(&str, Value)]| changed(tiny(), changes).map(|c| c.windows);
    let (mistral, qwen) = (("model_type", json!("mistral")), ("model_type", json!("qwen2")));
    let window = ("sliding_window", json!(5));
    let on = ("use_sliding_window", json!(true));
    assert_eq!(of(std::slice::from_ref(&window)).unwrap(), [None; 2], "Llama has no window");
    assert_eq!(of(&[mistral.clone(), window.clone()]).unwrap(), [Some(5); 2]);
    assert_eq!(of(&[mistral.clone(), ("sliding_window", Value::Null)]).unwrap(), [None; 2]);
    assert_eq!(of(&[mistral]).unwrap(), [Some(4096); 2]);
    assert_eq!(of(&[qwen.clone(), window.clone()]).unwrap(), [None; 2]);
    let some = ("max_window_layers", json!(1));
    assert_eq!(of(&[qwen.clone(), window.clone(), on.clone(), some]).unwrap(), [None, Some(5)]);
    let types = ("layer_types", json!(["sliding_attention", "full_attention"]));
    assert_eq!(of(&[qwen.clone(), window.clone(), on.clone(), types]).unwrap(), [Some(5), None]);
    for bad in [json!(["full_attention"]), json!(["full_attention", "chunked_attention"]), json!(3)] {
        let e = of(&[qwen.clone(), window.clone(), on.clone(), ("layer_types", bad)]).unwrap_err();
        assert!(e.to_string().contains("layer_types"), "{e}");
    }
}

#[test]
fn dropout_is_read_with_the_defaults_of_its_class() {
    let llama = with("attention_dropout", json!(0.25)).unwrap().dropout;
    assert_eq!(llama, Dropout { attention: 0.25, ..Dropout::NONE });
    let gpt2 = ModelConfig::from_value(&tiny_gpt2()).unwrap().dropout;
    assert_eq!(gpt2, Dropout { embedding: 0.1, attention: 0.1, residual: 0.1 });
}

#[test]
fn gpt2_derives_what_it_does_not_say() {
    let c = ModelConfig::from_value(&tiny_gpt2()).unwrap();
    assert_eq!((c.intermediate_size, c.max_positions, c.tied, c.norm_eps), (128, 1024, true, 1e-5));
}
