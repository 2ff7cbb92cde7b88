//! The page of what is supported: found by asking the validator, not by writing down what is believed.
//!
//! Each row of the tables here is a probe: a model config, or keys of a job. A probe is given to the code that
//! reads configs and jobs, and the page says what that said.

use crate::failure::Failure;
use crate::job::{self, JobError};
use crate::setup::Setup;
use memwall_model::{Family, ModelConfig};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::Path;

/// Architectures that users ask for and that are not trained, by class and model_type.
const OTHERS: &[(&str, &str)] = &[
    ("GemmaForCausalLM", "gemma"),
    ("Phi3ForCausalLM", "phi3"),
    ("GPTNeoXForCausalLM", "gpt_neox"),
    ("MixtralForCausalLM", "mixtral"),
    ("Qwen3MoeForCausalLM", "qwen3_moe"),
    ("DeepseekV3ForCausalLM", "deepseek_v3"),
    ("MambaForCausalLM", "mamba"),
];

/// Switches of a config.json, as JSON objects that are laid over an architecture's smallest config.
const SWITCHES: &[(&str, &str)] = &[
    ("tied embeddings", r#"{"tie_word_embeddings": true}"#),
    ("untied embeddings", r#"{"tie_word_embeddings": false}"#),
    ("fewer key/value heads", r#"{"num_key_value_heads": 2}"#),
    ("heads wider than hidden_size / heads", r#"{"head_dim": 32}"#),
    ("RoPE scaling: linear", r#"{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}"#),
    (
        "RoPE scaling: llama3",
        r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}"#,
    ),
    ("RoPE scaling: yarn", r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#),
    ("RoPE scaling: dynamic", r#"{"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}"#),
    ("biases in attention", r#"{"attention_bias": true}"#),
    ("biases in the MLP", r#"{"mlp_bias": true}"#),
    ("sliding window", r#"{"sliding_window": 64}"#),
    (
        "sliding window in some layers",
        r#"{"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 1}"#,
    ),
    ("dropout in attention", r#"{"attention_dropout": 0.1}"#),
    ("GELU in a gated MLP", r#"{"hidden_act": "gelu"}"#),
    ("GPT-2: ReLU", r#"{"activation_function": "relu"}"#),
    ("GPT-2: no dropout", r#"{"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}"#),
    ("GPT-2: scores divided by the block's number", r#"{"scale_attn_by_inverse_layer_idx": true}"#),
    ("quantized weights", r#"{"quantization_config": {"bits": 4}}"#),
];

/// A feature of a job: its name and what it sets.
struct Feature {
    name: &'static str,
    sets: &'static [&'static str],
}

impl Feature {
    /// Whether the two give one key different values, so that no job can have both.
    fn excludes(&self, other: &Self) -> bool {
        let key = |set: &'static str| set.split_once('=').map(|(key, _)| key);
        self.sets.iter().any(|a| other.sets.iter().any(|b| key(a) == key(b) && a != b))
    }
}

const FEATURES: &[Feature] = &[
    Feature { name: "tied embeddings", sets: &["model.config.tie_word_embeddings=true"] },
    Feature { name: "several micro-batches a step", sets: &["train.global_batch=8", "train.micro_batch=2"] },
    Feature { name: "deterministic gradients", sets: &["train.deterministic=true"] },
    Feature { name: "bf16", sets: &["precision.mode=bf16"] },
    Feature { name: "gradients in bf16", sets: &["precision.mode=bf16", "precision.gradients=bf16"] },
    Feature { name: "2 ranks", sets: &["parallel.ranks=2"] },
    Feature { name: "ZeRO-1", sets: &["parallel.ranks=2", "parallel.zero=1"] },
    Feature { name: "ZeRO-2", sets: &["parallel.ranks=2", "parallel.zero=2"] },
    Feature { name: "ZeRO-3", sets: &["parallel.ranks=2", "parallel.zero=3"] },
    Feature {
        name: "hybrid sharding",
        sets: &["parallel.ranks=4", "parallel.dp_replicate=2", "parallel.zero=3"],
    },
    Feature { name: "gradient clipping off", sets: &["train.clip=0"] },
    Feature { name: "recomputation", sets: &["memory.recompute=full"] },
    Feature { name: "length in steps", sets: &["train.steps=100"] },
    Feature { name: "length in tokens", sets: &["train.tokens=1000000"] },
    Feature { name: "length in epochs", sets: &["train.epochs=1.5"] },
    Feature { name: "schedule: constant", sets: &["optimizer.schedule=constant"] },
    Feature { name: "schedule: linear", sets: &["optimizer.schedule=linear"] },
    Feature { name: "schedule: wsd", sets: &["optimizer.schedule=wsd"] },
    Feature { name: "decay as a share", sets: &["optimizer.schedule=wsd", "optimizer.decay_share=0.2"] },
    Feature { name: "decay in steps", sets: &["optimizer.schedule=wsd", "optimizer.decay_steps=20"] },
    Feature { name: "final learning rate", sets: &["optimizer.final_learning_rate=1e-5"] },
    Feature { name: "warmup in steps", sets: &["optimizer.warmup_steps=10"] },
    Feature { name: "warmup as a share", sets: &["optimizer.warmup_share=0.1"] },
    Feature { name: "parameters without decay", sets: &["optimizer.no_decay=[\"model.embed_tokens.*\"]"] },
    Feature { name: "frozen parameters", sets: &["train.freeze=[\"model.embed_tokens.*\"]"] },
    Feature { name: "evaluation", sets: &["train.evaluate_every=10"] },
    Feature { name: "early stop", sets: &["train.evaluate_every=10", "train.stop_patience=3"] },
    Feature { name: "nothing held out", sets: &["data.validation=0"] },
    Feature { name: "files to evaluate on", sets: &["data.evaluation=[\"held/*.txt\"]"] },
    Feature { name: "a mixture", sets: &["data.train=[{files = \"a/*\"}, {files = \"b/*\", weight = 2}]"] },
    Feature { name: "one document a sequence", sets: &["data.packing=documents"] },
    Feature { name: "periodic checkpoints", sets: &["checkpoint.every=10"] },
    Feature { name: "memory as predicted, or failure", sets: &["memory.exact=require"] },
];

/// The job that features are added to; it has no length until one says it.
const JOB: &str = r#"
[model.config]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
vocab_size = 257
[data]
train = ["text/*.txt"]
tokenizer = "bytes"
sequence_length = 64
[optimizer]
learning_rate = 1e-3
"#;

/// The page.
///
/// # Errors
/// A table here is wrong: an overlay that is no JSON object, or a job that is refused without any feature.
pub(crate) fn page() -> Result<String, Failure> {
    let mut page = String::from(
        "# What is supported\n\
         \n\
         <!-- Generated: cargo run -- docs support > docs/support.md -->\n\
         \n\
         Every cell was found by giving a model config or a job to the code that checks them before a run: `yes` was \
         taken, a number was refused for the reason that stands under the table; `same` was taken too, and is the \
         family's default or nothing that it has, so that the model is the same; `-` are two values of one key.\n\
         \n\
         ## Architectures\n\n",
    );
    architectures(&mut page)?;
    page.push_str("\n## Pairs of features of a job\n\n");
    pairs(&mut page)?;
    Ok(page)
}

/// Reasons with their numbers, in the order in which they came up.
#[derive(Default)]
struct Reasons(Vec<String>);

impl Reasons {
    /// "yes", or the number of the reason.
    fn cell(&mut self, outcome: Result<(), String>) -> String {
        let Err(reason) = outcome else { return "yes".into() };
        let at = self.0.iter().position(|known| *known == reason).unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        format!("{}", at + 1)
    }

    /// The list under a table.
    fn list(&self) -> String {
        let mut text = String::from("\n");
        for (i, reason) in self.0.iter().enumerate() {
            let _ = writeln!(text, "{}. {reason}", i + 1);
        }
        text
    }
}

/// The smallest config of an architecture, with the names of its family.
fn config(class: &str, model_type: &str) -> Map<String, Value> {
    let value = match model_type {
        "gpt2" => json!({"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 257}),
        _ => json!({
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 257, "max_position_embeddings": 128,
        }),
    };
    let mut config = value.as_object().cloned().unwrap_or_default();
    config.insert("architectures".into(), json!([class]));
    config.insert("model_type".into(), model_type.into());
    config
}

/// What the reader of configs says of one.
fn probe(config: Map<String, Value>) -> Result<ModelConfig, String> {
    ModelConfig::from_value(&Value::Object(config)).map_err(|e| e.to_string())
}

fn architectures(page: &mut String) -> Result<(), Failure> {
    let ours = Family::ALL.map(|f| (f.class(), f.model_type()));
    let taken = |(class, model_type): &(&str, &str)| probe(config(class, model_type)).is_ok();
    let (trained, refused): (Vec<_>, Vec<_>) =
        ours.into_iter().chain(OTHERS.iter().copied()).partition(taken);
    let mut reasons = Reasons::default();
    let _ = writeln!(
        page,
        "| config.json |{}",
        trained.iter().map(|(class, _)| format!(" {class} |")).collect::<String>()
    );
    let _ = writeln!(page, "|---|{}", "---|".repeat(trained.len()));
    for (name, overlay) in SWITCHES {
        let _ = write!(page, "| {name} |");
        let overlay: Map<String, Value> = serde_json::from_str(overlay)
            .map_err(|e| Failure::Failed(format!("the config switch {name:?} is not a JSON object: {e}")))?;
        for (class, model_type) in &trained {
            let mut config = config(class, model_type);
            let before = probe(config.clone());
            config.extend(overlay.clone());
            let cell = match probe(config) {
                Ok(after) if before.is_ok_and(|before| before.means_the_same_as(&after)) => "same".into(),
                outcome => reasons.cell(outcome.map(|_| ())),
            };
            let _ = write!(page, " {cell} |");
        }
        page.push('\n');
    }
    page.push_str(&reasons.list());
    page.push_str("\nRefused by name:\n\n");
    for (class, model_type) in refused {
        if let Err(reason) = probe(config(class, model_type)) {
            // What is supported instead is the table's first row.
            let reason = reason.split_once("; supported").map_or(reason.as_str(), |(reason, _)| reason);
            let _ = writeln!(page, "- {class}: {reason}");
        }
    }
    Ok(())
}

fn pairs(page: &mut String) -> Result<(), Failure> {
    try_job(&[])
        .map_err(|e| Failure::Failed(format!("the job that features are added to is refused: {e}")))?;
    let mut reasons = Reasons::default();
    let numbers: String = (1..=FEATURES.len()).map(|n| format!(" {n} |")).collect();
    let _ = writeln!(page, "| | with |{numbers}\n|---|---|{}", "---|".repeat(FEATURES.len()));
    for (i, a) in FEATURES.iter().enumerate() {
        let _ = write!(page, "| {} | {} |", i + 1, a.name);
        for (j, b) in FEATURES.iter().enumerate() {
            let cell = match j.cmp(&i) {
                // The table is symmetric: the diagonal is a feature by itself.
                std::cmp::Ordering::Greater => String::new(),
                _ if a.excludes(b) => "-".into(),
                _ => reasons.cell(try_job(&[a, b])),
            };
            let _ = write!(page, " {cell} |");
        }
        page.push('\n');
    }
    page.push_str(&reasons.list());
    page.push_str("\nWhat each one sets:\n\n");
    for (i, feature) in FEATURES.iter().enumerate() {
        let _ = writeln!(page, "{}. {}: `{}`", i + 1, feature.name, feature.sets.join("`, `"));
    }
    Ok(())
}

/// What the validator says of a job with these features.
fn try_job(features: &[&Feature]) -> Result<(), String> {
    let mut sets: Vec<String> = features.iter().flat_map(|f| f.sets).map(|set| (*set).to_owned()).collect();
    if !sets
        .iter()
        .any(|set| ["train.steps=", "train.tokens=", "train.epochs="].iter().any(|l| set.starts_with(l)))
    {
        sets.push("train.steps=100".into());
    }
    let one_line = |e: &dyn std::fmt::Display| e.to_string().replace('\n', "; ");
    let resolved = job::parse(Path::new("probe.toml"), JOB, &sets)
        .and_then(|job| job.pinned())
        .map_err(|e: JobError| one_line(&e))?;
    Setup::new(resolved).map(|_| ()).map_err(|e| one_line(&e))
}
