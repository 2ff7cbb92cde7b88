//! One of two jobs that are compared: run as the user would run it, in a folder of its own, and what came of it.

use crate::args::{JobArgs, TrainArgs};
use crate::checkpoint::Place;
use crate::failure::{Failure, Outcome as _};
use crate::run_folder::RunFolder;
use crate::setup::Setup;
use crate::train::Checked;
use memwall_checkpoint::{Disk, SavedState, Store};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A job to be run, all of which has been found to be good.
pub(crate) struct Side {
    /// "a" or "b".
    pub(crate) name: &'static str,
    pub(crate) job: PathBuf,
    sets: Vec<String>,
    pub(crate) setup: Setup,
    /// Where it runs.
    pub(crate) folder: PathBuf,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    pub(crate) step: u64,
    pub(crate) loss: f64,
    pub(crate) norm: f64,
    pub(crate) tokens_per_second: f64,
    pub(crate) seconds: f64,
    pub(crate) evaluation: Option<f64>,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ran {
    pub(crate) steps: Vec<Step>,
    /// Ledger bytes of the first rank at their most.
    pub(crate) peak_bytes: u64,
    /// Bytes that the first rank gets from others in a step.
    pub(crate) wire_bytes: u64,
}

/// `section.key=value` for a text.
pub(crate) fn set(key: &str, text: &str) -> String {
    format!("{key}={}", toml::Value::String(text.to_owned()))
}

impl Side {
    /// Reads and checks a job that is to run in `folder`. `like`, the other one, gives the seed, and the global batch where that
    /// is left to follow the ranks.
    pub(crate) fn new(
        name: &'static str,
        job: &Path,
        sets: &[String],
        folder: PathBuf,
        like: Option<&Side>,
    ) -> Result<Self, Failure> {
        let mut sets = sets.to_vec();
        sets.push(set("run.dir", &folder.to_string_lossy()));
        sets.push("checkpoint.every=0".into());
        sets.push("checkpoint.keep=1000000".into());
        if let Some(like) = like {
            let written = crate::job::load(job, &sets)?.pinned_as(&like.setup.resolved)?;
            sets.push(format!("train.global_batch={}", written.validate()?.train.global_batch));
            sets.push(format!("train.seed={}", like.setup.job.train.seed));
        }
        let args = TrainArgs {
            job: JobArgs { job: job.to_owned(), set: sets.clone() },
            resume: false,
            ranks: None,
            stop_after: None,
        };
        let setup = Checked::new(&args, None)?.setup;
        Ok(Self { name, job: job.to_owned(), sets, setup, folder })
    }

    /// Has the run begin with a checkpoint.
    pub(crate) fn begin_with(&self, checkpoint: &SavedState) -> Result<(), Failure> {
        let folder = RunFolder::enter(&self.folder)?;
        let store = folder.store(&self.setup.job);
        link_folder(checkpoint.folder(), &store.folder(checkpoint.manifest().state.step))?;
        folder.write_job(&self.setup.resolved)
    }

    /// Trains some steps, or to the end.
    pub(crate) fn train(&self, steps: Option<u64>, resume: bool) -> Result<(), Failure> {
        self.train_in(&self.folder, steps, resume, &[])
    }

    /// The same in another folder, with values of the job overridden. What it prints goes into a log beside the folder.
    pub(crate) fn train_in(
        &self,
        folder: &Path,
        steps: Option<u64>,
        resume: bool,
        more: &[String],
    ) -> Result<(), Failure> {
        let cannot = |e: std::io::Error| Failure::Failed(format!("cannot run {}: {e}", self.job.display()));
        let log = folder.with_extension("log");
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.arg("train").arg(&self.job);
        let dir = set("run.dir", &folder.to_string_lossy());
        self.sets.iter().chain([&dir]).chain(more).for_each(|set| {
            command.args(["--set", set]);
        });
        if let Some(steps) = steps {
            command.arg("--stop-after").arg(steps.to_string());
        }
        if resume {
            command.arg("--resume");
        }
        let parent = log.parent().unwrap_or(Path::new("."));
        Disk::default().make_folder(parent).refuse()?;
        let file = File::options().create(true).append(true).open(&log).map_err(cannot)?;
        let both = file.try_clone().map_err(cannot)?;
        let status = command.stdin(Stdio::null()).stdout(file).stderr(both).status().map_err(cannot)?;
        if status.success() {
            return Ok(());
        }
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(8)..].join("\n  ");
        let why = format!("{} ({}) did not run, {status}:\n  {last}", self.name, self.job.display());
        Err(if status.code() == Some(2) { Failure::Refused(why) } else { Failure::Failed(why) })
    }

    /// The run's state after a step.
    pub(crate) fn state(&self, step: u64) -> Result<SavedState, Failure> {
        Store::new(self.folder.join("checkpoints"), 1, Disk::default()).open(step).fail()
    }

    /// What the run came to, from the step after `first` on.
    pub(crate) fn ran(&self, first: u64) -> Result<Ran, Failure> {
        Ran::read(&self.folder, first)
    }
}

impl Ran {
    /// What the run in a folder came to, from the step after `first` on.
    pub(crate) fn read(folder: &Path, first: u64) -> Result<Self, Failure> {
        let cannot = |path: &Path, e: &dyn std::fmt::Display| {
            Failure::Failed(format!("cannot read {}: {e}", path.display()))
        };
        let path = folder.join(RunFolder::METRICS);
        let file = File::open(&path).map_err(|e| cannot(&path, &e))?;
        let mut steps = Vec::new();
        for line in BufReader::new(file).lines() {
            let v: Value =
                serde_json::from_str(&line.map_err(|e| cannot(&path, &e))?).map_err(|e| cannot(&path, &e))?;
            let number = |key: &str| v[key].as_f64().unwrap_or(f64::NAN);
            steps.push(Step {
                step: v["step"].as_u64().unwrap_or(0),
                loss: number("loss"),
                norm: number("gradient_norm"),
                tokens_per_second: number("tokens_per_second"),
                seconds: number("seconds"),
                evaluation: v["evaluation_loss"].as_f64(),
            });
        }
        steps.retain(|s| s.step > first);
        let path = folder.join("summary.json");
        let text = fs::read_to_string(&path).map_err(|e| cannot(&path, &e))?;
        let summary: Value = serde_json::from_str(&text).map_err(|e| cannot(&path, &e))?;
        let peak = summary["memory"]["measured"]["peak_bytes"].as_u64();
        let rows = summary["wire"]["measured"].as_array().into_iter().flatten();
        let wire_bytes = rows.filter_map(|row| row["bytes"].as_u64()).sum();
        Ok(Ran { steps, peak_bytes: peak.unwrap_or(0), wire_bytes })
    }

    /// Median of valid tokens a second; the first step, which touches memory for the first time, is left out where there are
    /// others.
    pub(crate) fn rate(&self) -> f64 {
        let skip = usize::from(self.steps.len() > 1);
        let mut rates: Vec<f64> = self.steps.iter().skip(skip).map(|s| s.tokens_per_second).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Makes a folder with the same files, linked where the file system can, otherwise copied.
pub(crate) fn link_folder(from: &Path, to: &Path) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| {
        Failure::Failed(format!("cannot copy {} to {}: {e}", from.display(), to.display()))
    };
    Disk::default().make_folder(to).fail()?;
    for entry in fs::read_dir(from).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let new = to.join(path.file_name().unwrap_or_default());
        if fs::hard_link(&path, &new).is_err() {
            fs::copy(&path, &new).map_err(cannot)?;
        }
    }
    Ok(())
}

/// The checkpoint that a path leads to.
pub(crate) fn checkpoint(path: &Path) -> Result<SavedState, Failure> {
    SavedState::open(&Place::checkpoint(path)?).refuse()
}
