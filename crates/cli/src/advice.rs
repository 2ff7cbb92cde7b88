//! What would fit, when a job does not: each way out has been dry-run.

use crate::job::{ResolvedJob, exact_bytes, show_bytes};
use crate::machine;
use crate::report;
use crate::setup::Setup;
use memwall_engine::EngineError;
use std::fmt::Write;

/// What to say of a job that does not fit its budget.
pub(crate) fn does_not_fit(setup: &Setup, error: &EngineError) -> String {
    let mut text = format!("the job does not fit its budget of {}: {error}\n", show_bytes(setup.budget));
    if let Some(e) = error.out_of_memory() {
        text.push_str(&report::live_table(&e.live));
    }
    // The cheapest way out first: recomputation costs time, smaller micro-batches almost nothing, but they
    // help less; a larger budget costs hardware.
    let ways = ways(setup);
    if ways.is_empty() {
        text.push_str("No smaller micro-batch and no recomputation fits this budget. ");
    }
    text.push_str("What fits (dry-run):\n");
    for (what, bytes) in ways {
        let _ = writeln!(text, "  {what}: {}", show_bytes(bytes));
    }
    if let Ok(p) = setup.predict(machine::ADDRESS_SPACE) {
        let need = p.run.reserved;
        let _ = write!(
            text,
            "  memory.budget = {:?} or more, as the job is: {}",
            exact_bytes(need),
            show_bytes(need)
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
    for recompute in ["none", "full"] {
        for &micro in &sizes {
            if let Some((what, bytes)) = try_way(setup, micro, recompute) {
                ways.push((what, bytes));
                break;
            }
        }
    }
    ways
}

fn try_way(setup: &Setup, micro: usize, recompute: &str) -> Option<(String, u64)> {
    let mut job: ResolvedJob = setup.resolved.clone();
    let mut what = Vec::new();
    let now = match setup.job.memory.recompute {
        crate::job::Recompute::None => "none",
        crate::job::Recompute::Full => "full",
    };
    if micro != setup.job.train.micro_batch {
        job = job.with("train.micro_batch", (micro as i64).into()).ok()?;
        what.push(format!("train.micro_batch = {micro}"));
    }
    if recompute != now {
        job = job.with("memory.recompute", recompute.into()).ok()?;
        what.push(format!("memory.recompute = {recompute:?}"));
    }
    let candidate = Setup::new(job).ok()?;
    let p = candidate.predict(setup.budget).ok()?;
    (!what.is_empty()).then(|| (what.join(", "), p.run.reserved))
}
