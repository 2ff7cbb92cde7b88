//! How the values of a job must go together.

use super::schema::COUNT_LIMIT;
use super::validated::Span;
use super::values::Values;
use super::{JobError, sources};

/// The contradictions between values, whatever the number of ranks; of a run of `steps`, where they are known.
/// A value that is not there, since it was refused by itself, contradicts nothing.
pub(super) fn contradictions(values: &Values, steps: Option<u64>) -> Vec<String> {
    let of_values: [fn(&Values) -> Option<String>; 15] = [
        final_learning_rate,
        final_with_constant,
        decay_without_wsd,
        |values| two_spans(values, "warmup"),
        |values| two_spans(values, "decay"),
        evaluation,
        sources::files_with_prepared,
        sources::two_evaluations,
        sources::field_of_nothing,
        sources::epochs_of_a_mixture,
        stop_without_evaluation,
        delta_without_patience,
        micro_batch_tokens,
        bf16_gradients_of_f32,
        gradients_with_deterministic,
    ];
    warmup(values, steps)
        .or_else(|| warmup_and_decay(values, steps))
        .into_iter()
        .chain(of_values.into_iter().filter_map(|check| check(values)))
        .collect()
}

/// How a message names the number of steps.
fn said(values: &Values, steps: u64) -> String {
    match values.get("train.tokens") {
        Some(tokens) => format!("the {steps} steps of train.tokens = {tokens}"),
        None => format!("train.steps = {steps}"),
    }
}

fn warmup(values: &Values, steps: Option<u64>) -> Option<String> {
    let warmup: u64 = values.read("optimizer.warmup_steps")?;
    let steps = steps?;
    (warmup > steps).then(|| {
        let said = said(values, steps);
        format!("optimizer.warmup_steps = {warmup} is more than {said}: write at most {steps}")
    })
}

/// With a stable part between them, warmup and decay must both find room. Two shares are compared as such:
/// rounding them to whole steps contradicts nothing.
fn warmup_and_decay(values: &Values, steps: Option<u64>) -> Option<String> {
    let share = |name: &str| values.read::<f64>(&format!("optimizer.{name}_share"));
    if let (Some(warmup), Some(decay)) = (share("warmup"), share("decay")) {
        return (warmup + decay > 1.0).then(|| {
            format!(
                "optimizer.warmup_share = {warmup:?} and optimizer.decay_share = {decay:?} are more than the \
                 whole run: write less for one of them"
            )
        });
    }
    let steps = steps?;
    let part = |name: &str| {
        let span = values.read(&format!("optimizer.{name}_steps")).map(Span::Steps);
        span.or_else(|| share(name).map(Span::Share)).map(|span| span.of(steps))
    };
    let (warmup, decay) = (part("warmup")?, part("decay")?);
    (warmup.saturating_add(decay) > steps).then(|| {
        format!(
            "optimizer: a warmup of {warmup} steps and a decay of {decay} are more than {}: write less for one \
             of them",
            said(values, steps)
        )
    })
}

/// Defaults fill in at most one of the two keys.
fn two_spans(values: &Values, name: &str) -> Option<String> {
    let (steps, share) = (format!("optimizer.{name}_steps"), format!("optimizer.{name}_share"));
    values.get(&steps)?;
    values.get(&share)?;
    Some(format!("{steps} and {share} are given, and say the same thing: remove one of them"))
}

/// Defaults fill neither key in with another schedule.
fn decay_without_wsd(values: &Values) -> Option<String> {
    let schedule: String = values.read("optimizer.schedule").filter(|schedule| schedule != "wsd")?;
    let key =
        ["optimizer.decay_steps", "optimizer.decay_share"].into_iter().find(|k| values.get(k).is_some())?;
    Some(format!(
        "{key} contradicts optimizer.schedule = {schedule:?}, which has no stable part: remove it, or write \
         schedule = \"wsd\""
    ))
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
             it, or write another schedule"
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

fn stop_without_evaluation(values: &Values) -> Option<String> {
    let patience: u64 = values.read("train.stop_patience")?;
    let every: u64 = values.read("train.evaluate_every")?;
    (patience > 0 && every == 0).then(|| {
        format!(
            "train.stop_patience = {patience} counts evaluations, but train.evaluate_every = 0 makes none before \
             the end: write how many steps lie between evaluations"
        )
    })
}

fn delta_without_patience(values: &Values) -> Option<String> {
    let delta: f64 = values.read("train.stop_min_delta")?;
    let patience: u64 = values.read("train.stop_patience")?;
    (delta > 0.0 && patience == 0).then(|| {
        format!(
            "train.stop_min_delta = {delta:?} has no effect with train.stop_patience = 0: remove it, or write after \
             how many evaluations without improvement the run stops"
        )
    })
}

fn bf16_gradients_of_f32(values: &Values) -> Option<String> {
    let mode: String = values.read("precision.mode")?;
    let gradients: String = values.read("precision.gradients")?;
    (mode == "f32" && gradients == "bf16").then(|| {
        "precision.gradients = \"bf16\" contradicts precision.mode = \"f32\": remove it, or write mode = \"bf16\""
            .to_owned()
    })
}

/// The default is not filled in, so a value there was given.
fn gradients_with_deterministic(values: &Values) -> Option<String> {
    let gradients: String = values.read("precision.gradients")?;
    let deterministic: bool = values.read("train.deterministic")?;
    deterministic.then(|| {
        format!(
            "precision.gradients = {gradients:?} contradicts train.deterministic = true, which sums gradients as \
             64-bit integers: remove one of them"
        )
    })
}

/// bf16 has 8 bits of significance: a sum of several micro-batches loses terms below 1/256 of it.
pub(super) fn bf16_sums(values: &Values, micro_batches: usize) -> Option<String> {
    let gradients: String = values.read("precision.gradients")?;
    (gradients == "bf16" && micro_batches > 1).then(|| {
        format!(
            "precision.gradients = \"bf16\" cannot sum {micro_batches} micro-batches a step without losing small \
             terms: remove it (gradients are then f32, 2 bytes a parameter more), or write a train.micro_batch that \
             makes one micro-batch a step"
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

/// The steps that `train.tokens` comes to, where it is given.
pub(super) fn steps_of_tokens(values: &Values, global_batch: usize) -> Result<Option<u64>, JobError> {
    let Some(tokens) = values.read::<u64>("train.tokens") else { return Ok(None) };
    let sequence: u64 = values.need("data.sequence_length")?;
    let a_step = (global_batch as u64).saturating_mul(sequence).max(1);
    limited(format_args!("train.tokens = {tokens}"), tokens.div_ceil(a_step)).map(Some)
}

/// The steps that `train.epochs` comes to, where it is given, when an epoch has `samples` sequences.
pub(super) fn steps_of_epochs(values: &Values, samples: u64) -> Result<Option<u64>, JobError> {
    /// What a product of two numbers may lie above a whole number for its rounding alone.
    const ROUNDING: f64 = 1e-12;
    let Some(epochs) = values.read::<f64>("train.epochs") else { return Ok(None) };
    let global_batch: u64 = values.need("train.global_batch")?;
    let exact = epochs * samples as f64;
    let below = exact.round();
    // A cast from a float saturates.
    let samples = if exact - below <= ROUNDING * exact { below } else { exact.ceil() } as u64;
    limited(format_args!("train.epochs = {epochs:?}"), samples.max(1).div_ceil(global_batch.max(1))).map(Some)
}

/// Refuses more steps than `train.steps` could say.
fn limited(said: std::fmt::Arguments<'_>, steps: u64) -> Result<u64, JobError> {
    if steps <= COUNT_LIMIT as u64 {
        return Ok(steps);
    }
    Err(JobError::one(format!("{said} comes to {steps} steps, more than {COUNT_LIMIT}: write less")))
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
        let ranks = format!("parallel.ranks={ranks}");
        resolve(FINE_TUNE, &[sets, &[ranks.as_str()]].concat()).unwrap().validate().unwrap_err().to_string()
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
                 or write another schedule",
            ),
            (
                &["data.validation=0", "train.evaluate_every=5"],
                "train.evaluate_every = 5 contradicts data.validation = 0, which holds out nothing to evaluate \
                 on: remove it, or write a validation above 0",
            ),
            (
                &["optimizer.warmup_share=0.1", "optimizer.warmup_steps=1"],
                "optimizer.warmup_steps and optimizer.warmup_share are given, and say the same thing: remove one \
                 of them",
            ),
            (
                &["optimizer.schedule=wsd", "optimizer.decay_share=0.1", "optimizer.decay_steps=1"],
                "optimizer.decay_steps and optimizer.decay_share are given, and say the same thing: remove one of \
                 them",
            ),
            (
                &["optimizer.decay_share=0.1"],
                "optimizer.decay_share contradicts optimizer.schedule = \"cosine\", which has no stable part: \
                 remove it, or write schedule = \"wsd\"",
            ),
            (
                &["optimizer.schedule=wsd", "optimizer.decay_share=0.6", "optimizer.warmup_share=0.5"],
                "optimizer.warmup_share = 0.5 and optimizer.decay_share = 0.6 are more than the whole run: write \
                 less for one of them",
            ),
            (
                &["optimizer.schedule=wsd", "optimizer.decay_steps=6", "optimizer.warmup_steps=5"],
                "optimizer: a warmup of 5 steps and a decay of 6 are more than train.steps = 10: write less for \
                 one of them",
            ),
            (
                &["optimizer.schedule=wsd", "optimizer.decay_share=0.6", "optimizer.warmup_steps=5"],
                "optimizer: a warmup of 5 steps and a decay of 6 are more than train.steps = 10: write less for \
                 one of them",
            ),
            (
                &["train.stop_patience=2"],
                "train.stop_patience = 2 counts evaluations, but train.evaluate_every = 0 makes none before the \
                 end: write how many steps lie between evaluations",
            ),
            (
                &["train.stop_min_delta=0.1"],
                "train.stop_min_delta = 0.1 has no effect with train.stop_patience = 0: remove it, or write after \
                 how many evaluations without improvement the run stops",
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
    fn refuses_more_sequences_at_once_than_can_be_counted() {
        let start = "train.micro_batch (2147483648) x data-parallel ranks (64) is not from 1 to";
        assert!(problems(&["train.micro_batch=2147483648"], 64).contains(start));
    }

    #[test]
    fn reports_all_contradictions() {
        let sets = ["optimizer.warmup_steps=11", "train.micro_batch=4", "train.global_batch=10"];
        assert_eq!(problems(&sets, 1).lines().count(), 2);
    }
}
