//! Where a run begins: anew, or at the last checkpoint of the same job.

use crate::failure::{Failure, Outcome};
use crate::run_folder::RunFolder;
use crate::setup::Setup;
use memwall_checkpoint::Store;
use memwall_engine::Decay;

/// Keys that may change when a run goes on: they change what it costs or how long it is, not what it learns
/// at a step. (With a schedule that decays, other `train.steps` change the rates of the steps to come; the
/// run says so.)
pub(crate) const CHANGEABLE: [&str; 21] = [
    "data.cache",
    "train.steps",
    "train.evaluate_every",
    "train.evaluate_batches",
    "train.stop_patience",
    "train.stop_min_delta",
    "parallel.ranks",
    "parallel.zero",
    "parallel.dp_replicate",
    "parallel.dp_shard",
    "parallel.timeout",
    "parallel.check_every",
    "memory.budget",
    "memory.recompute",
    "memory.exact",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.keep_every",
    "checkpoint.snapshot",
    "run.dir",
    "run.threads",
];

/// The checkpoint to go on from, or `None` to begin.
pub(crate) fn starting_point(
    setup: &Setup,
    folder: &RunFolder,
    store: &Store,
    resume: bool,
) -> Result<Option<u64>, Failure> {
    let root = folder.root().display();
    let (before, latest) = (folder.job()?, store.latest().refuse()?);
    if !resume {
        if before.is_none() && latest.is_none() {
            return Ok(None);
        }
        return Err(Failure::Refused(format!(
            "{root} already holds a run; give --resume to go on with it, or another run.dir \
             (--set run.dir=DIR)"
        )));
    }
    let Some(before) = before else {
        return Err(Failure::Refused(format!("there is no run in {root} to go on with; leave out --resume")));
    };
    let changed = setup.resolved.differences(&before);
    if let Some((_, now, then)) = changed.iter().find(|(key, _, _)| key == "train.steps")
        && setup.settings.schedule.decay != Decay::Constant
    {
        complain!(
            "memwall: train.steps was {then}, now {now}: learning rates of the steps to come follow the new length"
        );
    }
    let forbidden: Vec<String> = changed
        .into_iter()
        .filter(|(key, _, _)| !CHANGEABLE.contains(&key.as_str()))
        .map(|(key, now, then)| format!("{key} was {then}, now {now}"))
        .collect();
    if !forbidden.is_empty() {
        return Err(Failure::Refused(format!(
            "--resume goes on with the job of {root}, but {}; take these back, or begin a run in another run.dir",
            forbidden.join("; ")
        )));
    }
    Ok(latest)
}
