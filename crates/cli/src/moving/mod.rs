//! `memwall move`: goes on with a run in another layout, once a few steps have shown that it gives the same; and back.
//!
//! A move has a folder of its own in the run folder, `moves/0001`, with all that is needed to undo it: the job, the metrics and
//! the checkpoint of before, and what came of the trial. It is complete before anything of the run is changed, and then the run
//! changes by two replacements, of the checkpoint by the same in other parts and of `job.toml`, of which each is whole or not
//! done, and between which the run is good for either job.

mod record;

use crate::args::{JobArgs, MoveArgs, TrainArgs};
use crate::compare::{Side, Trial, checkpoint, learned, link_folder, set, text, to_json};
use crate::failure::{Failure, Outcome};
use crate::figures::counted;
use crate::job;
use crate::machine;
use crate::run_folder::RunFolder;
use crate::setup::Setup;
use crate::train::Checked;
use memwall_checkpoint::{Disk, SavedState, Store, Tensors, convert, diff};
use record::Record;
use std::path::Path;

/// Exit code when the run stays as it was.
const NOT_MOVED: u8 = 1;

/// Moves a run, or undoes the last move.
pub(crate) fn move_run(args: &MoveArgs) -> Result<(), Failure> {
    if !args.run.join(RunFolder::JOB).exists() {
        return Err(Failure::Refused(format!("there is no run in {}", args.run.display())));
    }
    let folder = RunFolder::enter(&args.run)?;
    match &args.job {
        Some(job) => forth(&folder, job, args),
        None => back(&folder),
    }
}

/// The run's checkpoints, to be read and replaced.
fn store(folder: &RunFolder) -> Store {
    Store::new(folder.path("checkpoints"), 1, Disk::default())
}

fn forth(folder: &RunFolder, job: &Path, args: &MoveArgs) -> Result<(), Failure> {
    let Some(before) = folder.job()? else {
        return Err(Failure::Refused(format!("there is no run in {}", folder.root().display())));
    };
    let Some(step) = store(folder).latest().refuse()? else {
        return Err(Failure::Refused(format!(
            "{} has no complete checkpoint to move with",
            folder.root().display()
        )));
    };
    let mut sets = args.set.clone();
    sets.push(set("run.dir", &folder.root().to_string_lossy()));
    let written = job::load(job, &sets)?.pinned_as(&before)?;
    // What changes what is learned is no move. Steps that come from epochs are known once the data is.
    let keys: Vec<_> = written.differences(&before).into_iter().filter(|(key, ..)| !is_length(key)).collect();
    let learned = learned(&keys);
    if !learned.is_empty() {
        let told: Vec<String> = keys
            .iter()
            .filter(|(key, ..)| learned.contains(key))
            .map(|(key, now, then)| format!("{key} was {then}, now {now}"))
            .collect();
        return Err(Failure::Refused(format!(
            "a move changes how a run is laid out, and not what it learns, but {}; take these back, or begin another run",
            told.join("; ")
        )));
    }
    let record = Record::new(folder)?;
    say!("move       {}: from step {step} on as {} says", folder.root().display(), job.display());
    let outcome = attempt(folder, &record, job, &sets, step, args);
    if outcome.is_err() {
        // The run has not been touched; what the trial has left is of no use but for its report.
        record.clear_trial();
    }
    outcome
}

/// Keys that say how long a run is.
fn is_length(key: &str) -> bool {
    matches!(key, "train.steps" | "train.tokens" | "train.epochs")
}

fn attempt(
    folder: &RunFolder,
    record: &Record,
    job: &Path,
    sets: &[String],
    step: u64,
    args: &MoveArgs,
) -> Result<(), Failure> {
    let from = checkpoint(&store(folder).folder(step))?;
    let a = Side::new("before", &folder.path(RunFolder::JOB), &[], record.trial("before"), None)?;
    let b = Side::new("after", job, sets, record.trial("after"), Some(&a))?;
    let sides = [a, b];
    let trial = Trial::run(&sides, Some(&from), args.steps)?;
    let report = text(&sides, &trial);
    record.write("report.txt", &report)?;
    record.write("report.json", &format!("{:#}\n", to_json(&sides, &trial)))?;
    tell!("{report}");
    record.clear_trial();
    if !trial.verdict.is_safe() {
        say!(
            "back       nothing of the run was changed; the report is {}",
            record.path("report.txt").display()
        );
        return Err(Failure::Told(NOT_MOVED));
    }
    let args = TrainArgs {
        job: JobArgs { job: job.to_owned(), set: sets.to_vec() },
        resume: true,
        ranks: None,
        stop_after: None,
    };
    let after = Checked::new(&args, None)?.setup;
    switch(folder, record, &from, &after)?;
    say!("moved      what was before is kept in {}; to undo it:", record.root().display());
    say!("           memwall move {} --back", folder.root().display());
    // As the user said them, and without the run folder, which comes last.
    let sets: String = sets[..sets.len() - 1].iter().map(|set| format!(" --set {set:?}")).collect();
    let dir = folder.root().display();
    say!("more       memwall train {}{sets} --set run.dir={dir} --resume", job.display());
    Ok(())
}

/// Makes the run that of the new job. All that undoes it is kept before anything changes.
fn switch(folder: &RunFolder, record: &Record, from: &SavedState, after: &Setup) -> Result<(), Failure> {
    let step = from.manifest().state.step;
    let place = store(folder).folder(step);
    record.keep_run(folder, step)?;
    let parts = if after.job.parallel.zero == 0 { 1 } else { after.job.parallel.dp_shard };
    if parts == from.manifest().parts() {
        link_folder(&place, &record.checkpoint())?;
    } else {
        let new = record.path("converted");
        convert(folder.disk(), from, &new, parts, machine::cores()).fail()?;
        let [old, converted] =
            [&place, &new].map(|f| SavedState::open(f).map(|s| Tensors::Checkpoint(Box::new(s))));
        if !diff(&old.fail()?, &converted.fail()?, machine::cores()).fail()?.none() {
            return Err(Failure::Failed(format!(
                "{} is not the same as {} in other parts: this is a defect of memwall, please report it; nothing of the run \
                 was changed",
                new.display(),
                place.display()
            )));
        }
        exchange(folder.disk(), &new, &place)?;
        folder.disk().rename(&new, &record.checkpoint()).fail()?;
    }
    folder.write_job(&after.resolved)?;
    record.done()
}

/// Gives two folders each other's names, at once where the system can.
fn exchange(disk: &Disk, new: &Path, place: &Path) -> Result<(), Failure> {
    if disk.exchange(new, place).is_ok() {
        return Ok(());
    }
    // One after the other: if this is cut off, the checkpoint is whole under the first name.
    let aside = new.with_extension("aside");
    disk.rename(place, &aside).fail()?;
    disk.rename(new, place).fail()?;
    disk.rename(&aside, new).fail()
}

/// Undoes the last move.
fn back(folder: &RunFolder) -> Result<(), Failure> {
    let Some(record) = Record::last(folder)? else {
        return Err(Failure::Refused(format!(
            "{} has not been moved: there is nothing to undo",
            folder.root().display()
        )));
    };
    let step = record.step()?;
    let store = store(folder);
    let after = record.path("after");
    folder.disk().make_folder(&after).fail()?;
    // Nothing is lost: what was trained since is kept beside.
    let mut kept = 0;
    for later in store.steps().fail()?.into_iter().filter(|later| *later > step) {
        let path = store.folder(later);
        let name = path.file_name().unwrap_or_default().to_owned();
        folder.disk().rename(&path, &after.join(name)).fail()?;
        kept += 1;
    }
    record.restore_run(folder, &after)?;
    let place = store.folder(step);
    if place.exists() {
        exchange(folder.disk(), &record.checkpoint(), &place)?;
    } else {
        folder.disk().rename(&record.checkpoint(), &place).fail()?;
    }
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    folder.disk().link(&store.root().join(Store::LATEST), &name).fail()?;
    record.undone()?;
    say!("back       {} is again as it was before the move, at step {step}", folder.root().display());
    if kept > 0 {
        say!("kept       {} in {}", counted(kept, "later checkpoint"), after.display());
    }
    Ok(())
}
