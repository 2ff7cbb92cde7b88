//! No key is accepted and ignored: whatever value a job takes for it shows in the validated job.

use toml::Value;

use super::kind::Kind;
use super::schema::{KEYS, Key};
use super::tests::{FINE_TUNE, FROM_TABLE, resolve};
use super::{Job, ResolvedJob};

/// Jobs to change a key of: a key that has a meaning only beside others needs one that has those.
fn bases() -> Vec<ResolvedJob> {
    let longer = |text: &str, length: &str| text.replace("steps = 10", length);
    [
        (FINE_TUNE.to_owned(), &[][..]),
        (FROM_TABLE.to_owned(), &[]),
        (longer(FINE_TUNE, "tokens = 17920"), &[]),
        (longer(FINE_TUNE, "epochs = 3"), &[]),
        (FINE_TUNE.to_owned(), &["optimizer.schedule=wsd"]),
        (FINE_TUNE.replace("train = 'data/*.txt'", "prepared = 'p'"), &[]),
        (FINE_TUNE.to_owned(), &["data.evaluation=e"]),
        (FINE_TUNE.to_owned(), &["optimizer.schedule=wsd", "optimizer.decay_steps=3"]),
        (FINE_TUNE.to_owned(), &["train.evaluate_every=2", "train.stop_patience=3"]),
        (FINE_TUNE.to_owned(), &["precision.mode=bf16"]),
        (FINE_TUNE.to_owned(), &["train.deterministic=true"]),
        (FINE_TUNE.to_owned(), &["parallel.zero=1"]),
    ]
    .into_iter()
    .map(|(text, sets)| {
        // Written out: giving what it would be anyway is no change. bf16 gradients need one micro-batch a step, and
        // beside deterministic ones their type is refused.
        let batch =
            if sets == ["precision.mode=bf16"] { "train.global_batch=1" } else { "train.global_batch=14" };
        let gradients = (sets != ["train.deterministic=true"]).then_some("precision.gradients=f32");
        let written: Vec<&str> = [batch].into_iter().chain(gradients).collect();
        resolve(&text, &[sets, &written].concat()).unwrap()
    })
    .collect()
}

/// Values that a key may take, spread over its range.
fn candidates(key: &Key) -> Vec<Value> {
    let source = "x = [{files = 'else/*', weight = 2}]".parse::<toml::Table>().unwrap()["x"].clone();
    let values: Vec<Value> = match key.kind {
        Kind::Whole { min, max } => [min, min + 1, min + 6, 1_000_000, max].map(Value::Integer).into(),
        Kind::Number(..) => [0.0, 1e-4, 0.25, 0.5, 0.75, 1.0, 2.0].map(Value::Float).into(),
        Kind::Switch => [true, false].map(Value::Boolean).into(),
        Kind::Choice(choices) => choices.iter().map(|c| Value::from(*c)).collect(),
        Kind::Text | Kind::TextOrTable => vec!["else/where".into()],
        Kind::Texts => vec![Value::Array(vec!["else/*".into(), "where".into()])],
        Kind::Sources => vec!["else/*".into(), source],
        Kind::Size => vec!["3 GiB".into(), Value::Integer(4096)],
    };
    values.into_iter().filter(|value| key.kind.check(&key.path(), value).is_ok()).collect()
}

// llm.c zero.cuh, accelerate dataclasses.py: an option was accepted and ignored.
#[test]
fn llmc_zero_no_key_is_accepted_and_ignored() {
    let bases: Vec<(ResolvedJob, Job)> = bases()
        .into_iter()
        .map(|base| {
            let job = base.validate().unwrap();
            (base, job)
        })
        .collect();
    for key in KEYS {
        let (path, mut taken) = (key.path(), 0);
        for ((base, before), value) in
            bases.iter().flat_map(|b| candidates(key).into_iter().map(move |v| (b, v)))
        {
            let Ok(changed) = base.with(&path, value.clone()) else { continue };
            let Ok(after) = changed.validate() else { continue };
            if changed.differences(base).is_empty() {
                continue; // The base has this value already.
            }
            taken += 1;
            assert_ne!(after, *before, "{path} = {value} is accepted and changes nothing");
        }
        let only_one = matches!(key.kind, Kind::Choice([_]));
        assert!(taken > 0 || only_one, "no job here takes another {path}: give it one in bases()");
    }
}
