//! `memwall model inspect`: what it says of a model, and of folders that are not what they say.

mod common;

use common::Place;
use serde_json::{Value, json};

/// HuggingFaceTB/SmolLM2-135M's config.json, without what training does not read.
const SMOL: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
    "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "max_position_embeddings": 8192,
    "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "rms_norm_eps": 1e-05,
    "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152
}"#;

#[test]
fn a_published_config_has_the_published_counts() {
    let p = Place::new();
    p.write("smol.json", SMOL);
    let v: Value =
        serde_json::from_str(&p.ok(&["model", "inspect", "smol.json", "--sequence", "2048", "--json"]))
            .unwrap();
    // The size of the published model.safetensors in bf16 is 2 x 134,515,008 bytes and its header.
    assert_eq!(v["parameters"], 134_515_008);
    assert_eq!((&v["architecture"], &v["tied"]), (&json!("LlamaForCausalLM"), &json!(true)));
    let block = &v["units"][1];
    // 2 norms of 576; q and o 576 x 576, k and v 192 x 576; three of 1536 x 576.
    let each = 2 * 576 + 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576;
    assert_eq!(block["parameters_each"], each);
    assert_eq!(
        (&block["name"], &block["units"], &block["tensors"]),
        (&json!("blocks 0-29"), &json!(30), &json!(9))
    );
    assert_eq!(v["units"].as_array().unwrap().len(), 3);
    // 6 a weight that multiplies, norms not; attention 12 x layers x width x (length + 1) / 2.
    let linear = 6 * (30 * (each - 2 * 576) + 49152 * 576);
    assert_eq!(v["linear_flops_per_token"], linear);
    assert_eq!(v["attention_flops_per_token"], 6_u64 * 30 * 576 * 2049);
    assert_eq!(v["flops_per_token"], linear as u64 + 6 * 30 * 576 * 2049);
    let bytes: Vec<u64> =
        v["states"].as_array().unwrap().iter().map(|s| s["bytes_a_parameter"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [16, 16, 18]);
    assert_eq!(v["states"][2]["bytes"], 18_u64 * 134_515_008);
    assert_eq!(v["decay_groups"]["no_decay"]["tensors"], 61);
    assert_eq!(v["decay_groups"]["no_decay"]["parameters"], 61 * 576);
    assert_eq!(v["decay_groups"]["decay"]["tensors"], 30 * 7 + 1);
    assert_eq!(v["weights"], Value::Null);

    let text = p.ok(&["model", "inspect", "smol.json"]);
    for words in [
        "134.52 M parameters",
        "blocks 0-29",
        "9 tensors, 3.54 M parameters each",
        "tied",
        "at 8192 tokens",
        "18 bytes a parameter",
        "model.layers.*.input_layernorm.weight",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn a_folder_says_whether_its_weights_are_its_configs() {
    let p = Place::new();
    p.ok(&["train", "job.toml", "--set", "train.steps=2"]);
    let inspect = |more: &[&'static str]| [&["model", "inspect", "run/export"], more].concat();
    let v: Value = serde_json::from_str(&p.ok(&inspect(&["--json"]))).unwrap();
    assert_eq!(v["weights"]["match"], true);
    assert_eq!(
        v["weights"]["files"],
        json!([{"path": "run/export/model.safetensors", "types": {"F32": 21}}])
    );
    assert!(p.ok(&inspect(&[])).contains("model.safetensors: tensors 21 of F32"));

    // Without weights the config alone is shown; with an index that leads nowhere it is refused.
    let export = p.path("run/export");
    let (whole, away) = (export.join("model.safetensors"), export.join("away"));
    std::fs::rename(&whole, &away).unwrap();
    assert!(p.ok(&inspect(&[])).contains("none in this folder"));
    let index = export.join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"a": "no.safetensors"}}"#).unwrap();
    assert!(p.refused(&inspect(&[])).contains("no.safetensors"));
    std::fs::remove_file(&index).unwrap();
    std::fs::rename(&away, &whole).unwrap();

    let config = export.join("config.json");
    let good = std::fs::read_to_string(&config).unwrap();
    for (from, to, words) in [
        (
            "\"intermediate_size\": 40",
            "\"intermediate_size\": 48",
            "mlp.up_proj.weight has shape [40, 24], not [48, 24]",
        ),
        (
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 3",
            "model.layers.2.input_layernorm.weight is missing",
        ),
        (
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 1",
            "model.layers.1.input_layernorm.weight is not a parameter",
        ),
    ] {
        assert!(good.contains(from));
        std::fs::write(&config, good.replace(from, to)).unwrap();
        let said = p.refused(&inspect(&[]));
        assert!(said.contains(words), "no {words:?} in {said}");
        let out = p.memwall(&inspect(&["--json"]));
        let v: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(v["weights"]["match"], false);
    }
}

#[test]
fn blocks_that_differ_are_shown_apart() {
    let p = Place::new();
    let config = SMOL.replace("LlamaForCausalLM", "Qwen2ForCausalLM").replace(
        "\"llama\"",
        "\"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 28",
    );
    p.write("qwen.json", &config);
    let text = p.ok(&["model", "inspect", "qwen.json"]);
    assert!(text.contains("blocks 0-27 ") && text.contains("blocks 28-29 "), "{text}");
    assert!(text.contains("each, sees 64 tokens back"), "{text}");
    // Biases of queries, keys and values do not decay.
    assert!(text.contains("model.layers.*.self_attn.q_proj.bias"), "{text}");
    p.write("gpt2.json", r#"{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}"#);
    let v: Value = serde_json::from_str(&p.ok(&["model", "inspect", "gpt2.json", "--json"])).unwrap();
    // The published GPT-2 small.
    assert_eq!(v["parameters"], 124_439_808);
    assert_eq!(v["units"][1]["units"], 12);
}

#[test]
fn a_config_that_is_refused_is_refused_with_the_reason() {
    let p = Place::new();
    p.write("mamba.json", r#"{"architectures": ["MambaForCausalLM"]}"#);
    assert!(p.refused(&["model", "inspect", "mamba.json"]).contains("MambaForCausalLM"));
    assert!(p.refused(&["model", "inspect", "nowhere"]).contains("nowhere"));
    p.write("smol.json", SMOL);
    let text = p.refused(&["model", "inspect", "smol.json", "--sequence", "8193"]);
    assert!(text.contains("8193") && text.contains("8192"), "{text}");
    p.refused(&["model", "inspect", "smol.json", "--sequence", "0"]);
}

// verl #5070, Fast-LLM #542: weight decay reached norms and biases. What decays shrinks when no gradient moves it.
#[test]
fn verl_5070_fast_llm_542_what_is_listed_as_not_decaying_does_not() {
    let p = Place::new();
    let args = [
        "--set",
        "train.steps=1",
        "--set",
        "optimizer.warmup_steps=0",
        "--set",
        "optimizer.learning_rate=0.01",
        "--set",
        "data.validation=0",
        "--set",
        "train.evaluate_every=0",
        "--set",
        "optimizer.no_decay=[\"*.k_proj.weight\", \"lm_head.*\"]",
    ];
    let run = |dir: &str, decay: &str| {
        let (dir, decay) = (format!("run.dir={dir}"), format!("optimizer.weight_decay={decay}"));
        p.ok(&[&["train", "job.toml", "--set", &dir, "--set", &decay], &args[..]].concat())
    };
    run("without", "0");
    let out = run("with", "0.5");
    let plan: Value =
        serde_json::from_str(&p.ok(&[&["plan", "job.toml", "--json"], &args[..]].concat())).unwrap();
    let groups = &plan["decay_groups"];
    let said = format!(
        "decay      by 0.5 in {} tensors, {:.2} k parameters; none in {} tensors, {:.2} k parameters",
        groups["decay"]["tensors"],
        groups["decay"]["parameters"].as_f64().unwrap() / 1e3,
        groups["no_decay"]["tensors"],
        groups["no_decay"]["parameters"].as_f64().unwrap() / 1e3,
    );
    assert!(out.contains(&said), "no {said:?} in {out}");
    assert!(p.ok(&["plan", "job.toml"]).contains("decay      by 0.1 in 16 tensors"));
    let names =
        |group: &str| -> Vec<String> { serde_json::from_value(groups[group]["names"].clone()).unwrap() };
    let tensors = |run: &str| common::tensors(&p.path(run).join("export/model.safetensors"));
    let (without, with) = (tensors("without"), tensors("with"));
    assert_eq!(names("decay").len() + names("no_decay").len(), without.len());
    for name in names("no_decay") {
        assert!(
            name.contains("norm") || name.ends_with("k_proj.weight") || name == "lm_head.weight",
            "{name}"
        );
        assert_eq!(with[&name], without[&name], "{name}");
    }
    for name in names("decay") {
        assert_ne!(with[&name], without[&name], "{name}");
    }
    let text = p.refused(&["plan", "job.toml", "--set", "optimizer.no_decay=model.embed_token.*"]);
    assert!(text.contains("matches no parameter") && text.contains("model.embed_tokens.weight"), "{text}");
}
