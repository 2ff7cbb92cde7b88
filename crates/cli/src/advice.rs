//! What would fit, when a job does not: each way out has been dry-run.

use crate::job::{Precision, ResolvedJob, exact_bytes, show_bytes};
use crate::machine;
use crate::report;
use crate::setup::Setup;
use memwall_engine::{EngineError, Zero};
use std::fmt::Write;

/// What to say of a job that does not fit its budget.
pub(crate) fn does_not_fit(setup: &Setup, error: &EngineError) -> String {
    let mut text = format!("the job does not fit its budget of {}: {error}\n", show_bytes(setup.budget));
    if let Some(e) = error.out_of_memory() {
        text.push_str(&report::live_table(&e.live));
    }
    // The cheapest way out first: smaller micro-batches cost almost nothing, sharding bytes between ranks, recomputation
    // time, bf16 digits; a larger budget costs hardware.
    let ways = ways(setup);
    if ways.is_empty() {
        text.push_str("No smaller micro-batch, recomputation or bf16 fits this budget. ");
    }
    text.push_str("What fits (dry-run):\n");
    for (what, bytes) in ways {
        let _ = writeln!(text, "  {what}: {}, fits", show_bytes(bytes));
    }
    if let Ok(p) = setup.predict(machine::ADDRESS_SPACE) {
        let need = p.run.reserved.next_multiple_of(1 << 20);
        let _ = write!(
            text,
            "  memory.budget = {:?}, and the job as it is: {}, fits",
            exact_bytes(need),
            show_bytes(p.run.reserved)
        );
    }
    text
}

/// Changes to the job, with the same step size, that fit the budget; the least first.
fn ways(setup: &Setup) -> Vec<(String, u64)> {
    let mut ways = Vec::new();
    let mut micro = setup.job.train.micro_batch;
    let mut sizes = vec![micro];
    while micro > 1 {
        micro = (1..micro)
            .rev()
            .find(|m| setup.job.train.global_batch.is_multiple_of(*m) && *m <= micro / 2)
            .unwrap_or(1);
        sizes.push(micro);
    }
    // Of each kind the largest micro-batch that fits.
    ways.extend(sizes.iter().find_map(|&micro| try_way(setup, micro, "none", false)));
    // The least stage that is enough.
    let stages = setup.job.parallel.zero + 1..if setup.ranks() > 1 { Zero::ALL.len() } else { 0 };
    ways.extend(stages.into_iter().find_map(|stage| try_stage(setup, stage)));
    for (recompute, bf16) in [("full", false), ("none", true), ("full", true)] {
        ways.extend(sizes.iter().find_map(|&micro| try_way(setup, micro, recompute, bf16)));
    }
    ways
}

/// The job with a higher stage of ZeRO, if it fits.
fn try_stage(setup: &Setup, stage: usize) -> Option<(String, u64)> {
    let job = setup.resolved.with("parallel.zero", (stage as i64).into()).ok()?;
    let p = Setup::new(job).ok()?.predict(setup.budget).ok()?;
    Some((format!("parallel.zero = {stage}"), p.run.reserved))
}

/// One of these ways, if it is a change and fits.
fn try_way(setup: &Setup, micro: usize, recompute: &str, bf16: bool) -> Option<(String, u64)> {
    let mut job: ResolvedJob = setup.resolved.clone();
    let mut what = Vec::new();
    if micro != setup.job.train.micro_batch {
        job = job.with("train.micro_batch", (micro as i64).into()).ok()?;
        what.push(format!("train.micro_batch = {micro}"));
    }
    if recompute != report::recompute(setup.job.memory.recompute) {
        job = job.with("memory.recompute", recompute.into()).ok()?;
        what.push(format!("memory.recompute = {recompute:?}"));
    }
    if bf16 {
        if setup.job.precision.mode == Precision::Bf16 {
            return None;
        }
        job = job.with("precision.mode", "bf16".into()).ok()?;
        what.push("precision.mode = \"bf16\"".to_owned());
    }
    let candidate = Setup::new(job).ok()?;
    let p = candidate.predict(setup.budget).ok()?;
    (!what.is_empty()).then(|| (what.join(", "), p.run.reserved))
}
