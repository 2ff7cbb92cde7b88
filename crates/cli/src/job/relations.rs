//! How the values of a job must go together.

use super::JobError;
use super::schema::COUNT_LIMIT;
use super::values::Values;

/// The contradictions between values, whatever the number of ranks. A value that is not there, since
/// it was refused by itself, contradicts nothing.
pub(super) fn contradictions(values: &Values) -> Vec<String> {
    [warmup, final_learning_rate, final_with_constant, evaluation, micro_batch_tokens]
        .into_iter()
        .filter_map(|check| check(values))
        .collect()
}

fn warmup(values: &Values) -> Option<String> {
    let warmup: u64 = values.read("optimizer.warmup_steps")?;
    let steps: u64 = values.read("train.steps")?;
    (warmup > steps).then(|| {
        format!("optimizer.warmup_steps = {warmup} is more than train.steps = {steps}: write at most {steps}")
    })
}

fn final_learning_rate(values: &Values) -> Option<String> {
    let last: f64 = values.read("optimizer.final_learning_rate")?;
    let highest: f64 = values.read("optimizer.learning_rate")?;
    (last > highest).then(|| {
        format!(
            "optimizer.final_learning_rate = {last:?} is more than optimizer.learning_rate = {highest:?}: \
             write at most {highest:?}"
        )
    })
}

/// The default is not filled in with a constant schedule, so a value there was given.
fn final_with_constant(values: &Values) -> Option<String> {
    let last: f64 = values.read("optimizer.final_learning_rate")?;
    let schedule: String = values.read("optimizer.schedule")?;
    (schedule == "constant").then(|| {
        format!(
            "optimizer.final_learning_rate = {last:?} contradicts optimizer.schedule = \"constant\": remove \
             it, or write schedule = \"linear\" or \"cosine\""
        )
    })
}

fn evaluation(values: &Values) -> Option<String> {
    let every: u64 = values.read("train.evaluate_every")?;
    let share: f64 = values.read("data.validation")?;
    (every > 0 && share == 0.0).then(|| {
        format!(
            "train.evaluate_every = {every} contradicts data.validation = 0, which holds out nothing to \
             evaluate on: remove it, or write a validation above 0"
        )
    })
}

fn micro_batch_tokens(values: &Values) -> Option<String> {
    let sequences: i64 = values.read("train.micro_batch")?;
    too_many_tokens(values, "train.micro_batch", sequences)
}

/// Refuses a batch of more tokens than any job needs; below, arithmetic on tokens cannot overflow.
fn too_many_tokens(values: &Values, name: &str, sequences: i64) -> Option<String> {
    let length: i64 = values.read("data.sequence_length")?;
    // Each factor is at most 2^31.
    let tokens = sequences.saturating_mul(length);
    (tokens > COUNT_LIMIT).then(|| {
        format!(
            "{name} ({sequences}) x data.sequence_length ({length}) = {tokens} tokens is more than \
             {COUNT_LIMIT}: write less for one of them"
        )
    })
}

/// The sequences that all ranks together compute at once: `train.micro_batch` x `ranks`.
pub(super) fn sequences_at_once(values: &Values, ranks: usize) -> Result<i64, JobError> {
    let micro_batch: i64 = values.need("train.micro_batch")?;
    i64::try_from(ranks)
        .ok()
        .and_then(|ranks| micro_batch.checked_mul(ranks))
        .filter(|unit| (1..=COUNT_LIMIT).contains(unit))
        .ok_or_else(|| {
            JobError::one(format!(
                "train.micro_batch ({micro_batch}) x data-parallel ranks ({ranks}) is not from 1 to \
                 {COUNT_LIMIT}: write a smaller micro_batch, or run on other ranks"
            ))
        })
}

/// The sequences in one step, and the micro-batches that each of `ranks` computes for it.
pub(super) fn batches(values: &Values, ranks: usize) -> Result<(usize, usize), JobError> {
    let unit = sequences_at_once(values, ranks)?;
    let global: i64 = values.read("train.global_batch").unwrap_or(unit);
    // A micro-batch that is too much by itself is reported once, not for the batch it is part of too.
    if micro_batch_tokens(values).is_none()
        && let Some(problem) = too_many_tokens(values, "train.global_batch", global)
    {
        return Err(JobError::one(problem));
    }
    if global % unit == 0 {
        return Ok((count(global)?, count(global / unit)?));
    }
    let micro_batch: i64 = values.need("train.micro_batch")?;
    let below = global / unit * unit;
    let above = below + unit;
    let valid = if below == 0 {
        format!("the nearest valid value is {above}")
    } else {
        format!("nearest valid values are {below} and {above}")
    };
    Err(JobError::one(format!(
        "train.global_batch = {global} is not a multiple of micro_batch ({micro_batch}) x data-parallel ranks \
         ({ranks}) = {unit}: {valid}"
    )))
}

/// A count as an index type. Counts are at most 2^31, so this fails on no machine that trains.
fn count(count: i64) -> Result<usize, JobError> {
    usize::try_from(count)
        .map_err(|_| JobError::one(format!("train.global_batch = {count} is out of range: write less")))
}

#[cfg(test)]
mod tests {
    use crate::job::tests::{FINE_TUNE, resolve};

    fn problems(sets: &[&str], ranks: usize) -> String {
        resolve(FINE_TUNE, sets).unwrap().validate(ranks).unwrap_err().to_string()
    }

    #[test]
    fn refuses_contradictions() {
        for (sets, message) in [
            (
                &["optimizer.warmup_steps=11"][..],
                "optimizer.warmup_steps = 11 is more than train.steps = 10: write at most 10",
            ),
            (
                &["optimizer.final_learning_rate=0.1"],
                "optimizer.final_learning_rate = 0.1 is more than optimizer.learning_rate = 0.001: write at \
                 most 0.001",
            ),
            (
                &["optimizer.schedule=constant", "optimizer.final_learning_rate=0"],
                "optimizer.final_learning_rate = 0.0 contradicts optimizer.schedule = \"constant\": remove it, \
                 or write schedule = \"linear\" or \"cosine\"",
            ),
            (
                &["data.validation=0", "train.evaluate_every=5"],
                "train.evaluate_every = 5 contradicts data.validation = 0, which holds out nothing to evaluate \
                 on: remove it, or write a validation above 0",
            ),
            (
                &["train.micro_batch=16777217"],
                "train.micro_batch (16777217) x data.sequence_length (128) = 2147483776 tokens is more than \
                 2147483648: write less for one of them",
            ),
            (
                &["train.global_batch=16777217"],
                "train.global_batch (16777217) x data.sequence_length (128) = 2147483776 tokens is more than \
                 2147483648: write less for one of them",
            ),
        ] {
            assert_eq!(problems(sets, 1), message);
        }
    }

    #[test]
    fn refuses_a_global_batch_that_ranks_cannot_share() {
        for (global, ranks, end) in [
            (10, 1, "(1) = 4: nearest valid values are 8 and 12"),
            (3, 1, "(1) = 4: the nearest valid value is 4"),
            (20, 2, "(2) = 8: nearest valid values are 16 and 24"),
        ] {
            let sets = ["train.micro_batch=4", &format!("train.global_batch={global}")];
            let start = format!("train.global_batch = {global} is not a multiple of micro_batch (4) x");
            assert_eq!(problems(&sets, ranks), format!("{start} data-parallel ranks {end}"));
        }
    }

    #[test]
    fn refuses_absurd_ranks() {
        for ranks in [0, usize::MAX] {
            let start = format!("train.micro_batch (1) x data-parallel ranks ({ranks}) is not from 1 to");
            assert!(problems(&[], ranks).starts_with(&start));
        }
    }

    #[test]
    fn reports_all_contradictions() {
        let sets = ["optimizer.warmup_steps=11", "train.micro_batch=4", "train.global_batch=10"];
        assert_eq!(problems(&sets, 1).lines().count(), 2);
    }
}
