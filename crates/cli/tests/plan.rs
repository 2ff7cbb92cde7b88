//! `memwall plan`: what it says of a job, from a config alone, and that a run measures it.

mod common;

use common::{JOB, Place};
use memwall_tensor::Description;
use serde_json::Value;
use std::path::Path;

/// The plan as JSON.
fn plan(p: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&p.ok(&[&["plan", "--json"], args].concat())).unwrap()
}

fn bytes(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number of bytes"))
}

#[test]
fn a_plan_says_phases_the_moment_of_the_peak_and_the_largest_allocations() {
    let p = Place::new();
    let v = plan(&p, &["job.toml"]);
    let predicted = &v["predicted"];
    let phases = ["init", "forward", "backward", "optimizer_step", "evaluation", "checkpoint"];
    let highest = phases.map(|phase| bytes(&predicted["at_peak_of_phase"][phase]["total"]));
    assert_eq!(highest.into_iter().max(), predicted["peak_bytes"].as_u64());
    let moment = &predicted["peak_moment"];
    assert_eq!(moment["phase"], "backward");
    assert!(
        moment["unit"].is_u64() && moment["operation"].as_str().is_some_and(|o| !o.is_empty()),
        "{moment}"
    );
    let largest = v["largest_at_peak"].as_array().unwrap();
    assert_eq!(largest.len(), 10);
    assert!(largest.is_sorted_by_key(|a| std::cmp::Reverse(bytes(&a["bytes"]))));
    assert!(largest.iter().all(|a| a["since"]["phase"].is_string() && a["category"].is_string()));
    for (all, attention) in
        [("step_flops", "step_attention_flops"), ("flops_per_token", "attention_flops_per_token")]
    {
        assert!(v[all].as_u64() > v[attention].as_u64() && v[attention].as_u64() > Some(0));
    }
    assert_eq!(v["heaviest_rank"], 0);
    // Without evaluation there is no such phase.
    let none = plan(&p, &["job.toml", "--set", "data.validation=0", "--set", "train.evaluate_every=0"]);
    assert_eq!(none["predicted"]["at_peak_of_phase"]["evaluation"], Value::Null);

    let text = p.ok(&["plan", "job.toml"]);
    for words in
        ["phases     init ", "peak       in backward, ", "largest ", "a step     w weights", "process  "]
    {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert!(text.lines().filter(|l| l.ends_with("  peak")).count() == 1, "{text}");
}

#[test]
fn a_plan_needs_a_config_and_neither_weights_nor_data_nor_a_tokenizer() {
    let p = Place::new();
    std::fs::create_dir(p.path("model")).unwrap();
    let config = r#"{"model_type": "qwen3", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "head_dim": 6, "vocab_size": 257}"#;
    p.write("model/config.json", config);
    let rest = JOB.split_once("[data]").unwrap().1.replace("tokenizer = \"bytes\"\n", "");
    p.write(
        "tune.toml",
        &format!("[model]\npath = \"model\"\n[data]{rest}").replace("text/*.txt", "nowhere/*"),
    );
    assert!(bytes(&plan(&p, &["tune.toml"])["predicted"]["peak_bytes"]) > 0);
}

#[test]
fn the_picture_is_a_self_contained_svg_of_every_phase_and_category() {
    let p = Place::new();
    p.ok(&["plan", "job.toml", "--picture", "memory.svg"]);
    let svg = std::fs::read_to_string(p.path("memory.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("http").count(), 1, "it refers to something but the name of SVG");
    for word in ["forward", "backward", "optimizer", "evaluation", "weights", "activations", "Peak: ", "head"]
    {
        assert!(svg.contains(word), "no {word}");
    }
    // Every element is closed, and every number is one.
    let elements = ["text", "path", "svg", "title"];
    for e in elements {
        let (open, close) = (svg.matches(&format!("<{e}")).count(), svg.matches(&format!("</{e}>")).count());
        assert_eq!(open, close, "{e}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf\""));
    let text = p.refused(&["plan", "job.toml", "--picture", "no/such/folder.svg"]);
    assert!(text.contains("no/such/folder.svg"), "{text}");
}

#[test]
fn a_well_known_model_is_planned_without_any_file() {
    let p = Place::new();
    let base = plan(&p, &["--model", "llama-3.1-8b"]);
    assert_eq!(base["parameters"], 8_030_261_248u64);
    let states = ["weights", "master_weights", "gradients", "optimizer_state"];
    let held: u64 = states.iter().map(|c| bytes(&base["lasting"][c])).sum();
    assert_eq!(held as f64 / 8_030_261_248.0 / 16.0, 1.0);
    let peak = |args: &[&str]| {
        bytes(&plan(&p, &[&["--model", "Llama-3.1-8B"], args].concat())["predicted"]["peak_bytes"])
    };
    let all = peak(&[]);
    assert!(peak(&["--recompute", "full"]) < all && peak(&["--sequence", "8192"]) > all);
    assert!(peak(&["--micro-batch", "2"]) > all && peak(&["--set", "train.global_batch=4"]) > all);
    assert!(peak(&["--precision", "f32"]) > all);
    let text = p.refused(&["plan", "--model", "llama-3.1-8b", "--budget", "80 GB"]);
    assert!(text.contains("does not fit its budget of 74.51 GiB"), "{text}");
    p.ok(&["plan", "--model", "qwen3-0.6b", "--budget", "80 GB"]);
    let text = p.refused(&["plan", "--model", "llama"]);
    assert!(text.contains("did you mean llama-") && text.contains("smollm2-135m"), "{text}");
    let list = p.ok(&["plan", "--list-models"]);
    assert!(list.lines().count() >= 39 && list.contains("openai-community/gpt2-xl"), "{list}");
}

/// PyTorch issues 147179 and 82001: active, reserved and process memory differ, and nobody can say why.
#[test]
fn pt_147179_ledger_reserved_and_process_bytes_are_three_figures_each_predicted_and_measured() {
    let p = Place::new();
    let larger = [
        "model.config.hidden_size=256",
        "model.config.intermediate_size=1024",
        "model.config.num_hidden_layers=6",
    ];
    for (run, sets) in
        [("small", &[][..]), ("larger", &larger), ("bf16", &["precision.mode=bf16", larger[0]])]
    {
        let dir = format!("run.dir={run}");
        let mut args =
            vec!["job.toml", "--set", &dir, "--set", "train.steps=2", "--set", "memory.exact=require"];
        args.extend(sets.iter().flat_map(|s| ["--set", s]));
        let predicted = plan(&p, &args);
        let out = p.ok(&[&["train"], &args[..]].concat());
        let memory = &p.json(&format!("{run}/summary.json"))["memory"];
        for figure in ["peak_bytes", "reserved_bytes"] {
            assert_eq!(memory["measured"][figure], predicted["predicted"][figure], "{run}");
        }
        assert_eq!(
            (&memory["equal"], &memory["first_difference"]),
            (&Value::Bool(true), &Value::Null),
            "{memory}"
        );
        // The process: within 3% or 32 MiB, with every part named.
        let (resident, measured) = (&memory["resident"], bytes(&memory["resident"]["measured_bytes"]));
        assert_eq!(resident["predicted"], predicted["resident"], "{run}");
        let total = bytes(&resident["predicted"]["total"]);
        assert!(measured.abs_diff(total) <= (total * 3 / 100).max(32 << 20), "{run}: {measured} for {total}");
        assert_eq!(resident["agrees"], true, "{run}");
        let parts = resident["predicted"]["parts"].as_object().unwrap();
        assert_eq!(parts.values().map(bytes).sum::<u64>(), total);
        assert!(out.contains("resident at most") && out.contains("as predicted"), "{out}");
        // What is resident holds what is reserved, but for pages that nothing touched.
        let reserved = bytes(&memory["measured"]["reserved_bytes"]);
        assert!(
            measured + (1 << 20) > reserved && reserved >= bytes(&memory["measured"]["peak_bytes"]),
            "{run}"
        );
    }
}

/// Peaks of the example jobs without the kernels' scratch: bytes in use, and of the arena.
const GOLDEN: [(&str, u64, u64); 6] = [
    ("fine-tune", 2256011392, 2256765056),
    ("fine-tune-bf16", 3725590656, 3725590656),
    ("mixture", 972646528, 973678720),
    ("pretrain-wsd", 46237824, 46940288),
    ("quickstart", 40576128, 40927360),
    ("sharded", 70725056, 71076288),
];

/// torchtitan issue 191: a layout's peak grew from 71 to 87 GB unnoticed.
#[test]
fn tt_191_the_peak_of_every_example_is_the_golden_one() {
    let p = Place::new();
    // The model that the examples of fine-tuning are given.
    std::fs::create_dir(p.path("model")).unwrap();
    let config = memwall_model::Preset::find("smollm2-135m").unwrap().config;
    p.write("model/config.json", &serde_json::to_string(&config).unwrap());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut found: Vec<(String, u64, u64)> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let mut args = vec![path.to_str().unwrap(), "--set", "run.threads=2", "--budget", "1 TiB"];
            if name.starts_with("fine-tune") {
                args.extend(["--set", "model.path=model"]);
            }
            let plan = plan(&p, &args);
            let (predicted, threads) = (&plan["predicted"], bytes(&plan["layout"]["threads_each"]));
            let scratch = Description { threads: threads as usize }.scratch_bytes() as u64;
            (name, bytes(&predicted["peak_bytes"]) - scratch, bytes(&predicted["reserved_bytes"]) - scratch)
        })
        .collect();
    found.sort();
    let rows = |rows: &[(String, u64, u64)]| {
        rows.iter().map(|(name, peak, end)| format!("    (\"{name}\", {peak}, {end}),\n")).collect::<String>()
    };
    let golden = GOLDEN.map(|(name, peak, end)| (name.to_owned(), peak, end));
    assert!(found == golden, "peaks are no longer\n{}but\n{}", rows(&golden), rows(&found));
}
