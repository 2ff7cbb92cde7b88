//! A job file: parsed, resolved, validated, and written out again.

use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_cli::job;
use memwall_model::ModelConfig;
use std::path::Path;

pub(super) const DEFINITION: Definition = Definition {
    name: "job",
    form: Form::Text,
    words: &[
        "[model]",
        "[data]",
        "[train]",
        "[optimizer]",
        "[memory]",
        "[checkpoint]",
        "[run]",
        "[model.config]",
        "[[model]]",
        "path",
        "config",
        "train",
        "tokenizer",
        "sequence_length",
        "validation",
        "steps",
        "micro_batch",
        "tokens",
        "epochs",
        "early_stop",
        "patience",
        "no_decay",
        "\"wsd\"",
        "decay_steps",
        "global_batch",
        "seed",
        "deterministic",
        "clip",
        "evaluate_every",
        "evaluate_batches",
        "kind",
        "learning_rate",
        "beta1",
        "beta2",
        "eps",
        "weight_decay",
        "schedule",
        "warmup_steps",
        "final_learning_rate",
        "budget",
        "recompute",
        "every",
        "keep",
        "dir",
        "threads",
        "\"adamw\"",
        "\"cosine\"",
        "\"constant\"",
        "\"full\"",
        "\"8 GiB\"",
        "\"1.5 MB\"",
        "'''",
        "\"\"\"",
        "1979-05-27T07:32:00Z",
        "0x1f",
        "1_0",
        "=",
        ".",
        "#",
        "\r\n",
    ],
    inputs: Vec::new,
    target: |_: &Path| Box::new(Job),
    for_tests: false,
};

/// Where the text is said to come from.
const PATH: &str = "runs/job.toml";

struct Job;

impl Target for Job {
    fn run(&mut self, input: &[u8]) -> Outcome {
        let Ok(text) = std::str::from_utf8(input) else { return Outcome::Refused("not UTF-8".into()) };
        let parse = |text: &str| job::parse(Path::new(PATH), text, &[]);
        let resolved = match parse(text) {
            Ok(resolved) => resolved,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        let again = parse(&resolved.to_toml()).unwrap_or_else(|e| panic!("as resolved, it is refused: {e}"));
        assert!(again == resolved, "as resolved, it is another job: {:?}", again.differences(&resolved));
        let pinned = resolved.pinned().and_then(|job| job.pinned_to_data(1000));
        let job = match pinned.and_then(|job| job.validate()) {
            Ok(job) => job,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        match &job.model {
            job::ModelSource::ConfigTable(table) => Outcome::of(ModelConfig::from_value(table)),
            _ => Outcome::Accepted,
        }
    }
}
