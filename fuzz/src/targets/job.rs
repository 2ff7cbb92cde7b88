//! A job file: parsed, resolved, validated, and written out again.

use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_cli::job;
use memwall_model::ModelConfig;
use std::fs;
use std::path::{Path, PathBuf};

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
    target: |folder: &Path| {
        Box::new(Job { file: folder.join("job.toml"), again: folder.join("again").join("job.toml") })
    },
    for_tests: false,
};

struct Job {
    file: PathBuf,
    again: PathBuf,
}

impl Target for Job {
    fn run(&mut self, input: &[u8]) -> Outcome {
        fs::write(&self.file, input).expect("the scratch folder can be written");
        let resolved = match job::load(&self.file, &[]) {
            Ok(resolved) => resolved,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        fs::create_dir_all(self.again.parent().expect("it has a folder"))
            .and_then(|()| fs::write(&self.again, resolved.to_toml()))
            .expect("the scratch folder can be written");
        let again = job::load(&self.again, &[]).unwrap_or_else(|e| panic!("as resolved, it is refused: {e}"));
        assert!(again == resolved, "as resolved, it is another job: {:?}", again.differences(&resolved));
        let job = match resolved.pinned_to(1).and_then(|pinned| pinned.validate(1)) {
            Ok(job) => job,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        match &job.model {
            job::ModelSource::ConfigTable(table) => Outcome::of(ModelConfig::from_value(table)),
            _ => Outcome::Accepted,
        }
    }
}
