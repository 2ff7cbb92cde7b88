//! The run folder: job, metrics, summary, checkpoints, export; and the lock that keeps a second run out.

use crate::failure::{Failure, Outcome};
use crate::figures::median;
use crate::job::{self, Job, ResolvedJob};
use memwall_checkpoint::{Disk, Store};
use memwall_engine::StepReport;
use memwall_tensor::ByCategory;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run folder that this run alone writes to.
#[derive(Debug)]
pub(crate) struct RunFolder {
    root: PathBuf,
    disk: Disk,
    /// Held for as long as the run; the operating system lets go of it however its processes end.
    lock: File,
}

impl RunFolder {
    /// Name of the resolved job's file.
    pub(crate) const JOB: &'static str = "job.toml";
    /// Name of the file of all steps.
    pub(crate) const METRICS: &'static str = "metrics.jsonl";

    /// Makes or enters the folder.
    pub(crate) fn enter(root: &Path) -> Result<Self, Failure> {
        let disk = Disk::default();
        disk.make_folder(root).refuse()?;
        let path = root.join("lock");
        let refused = |e: &dyn std::fmt::Display| {
            Failure::Refused(format!("cannot use the run folder {}: {e}", root.display()))
        };
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| refused(&e))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root: root.into(), disk, lock }),
            Err(TryLockError::WouldBlock) => Err(Failure::Refused(format!(
                "the run folder {} is in use by another process; wait for it, or give another run.dir",
                root.display()
            ))),
            Err(TryLockError::Error(e)) => Err(refused(&e)),
        }
    }

    /// The folder that another process of this run has entered, whose lock this one has inherited.
    pub(crate) fn inherited(root: &Path, lock: OwnedFd) -> Self {
        Self { root: root.into(), disk: Disk::default(), lock: lock.into() }
    }

    /// The lock. Whoever inherits it holds it too.
    pub(crate) fn lock(&self) -> &File {
        &self.lock
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The disk that all is written through.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The job of the run that is in the folder, if there is one.
    pub(crate) fn job(&self) -> Result<Option<ResolvedJob>, Failure> {
        let path = self.path(Self::JOB);
        if path.exists() { Ok(Some(job::load(&path, &[])?)) } else { Ok(None) }
    }

    /// Writes the job as resolved.
    pub(crate) fn write_job(&self, job: &ResolvedJob) -> Result<(), Failure> {
        self.disk.replace(&self.path(Self::JOB), job.to_toml().as_bytes()).refuse()
    }

    /// The run's checkpoints, kept as a job says.
    pub(crate) fn store(&self, job: &Job) -> Store {
        Store::new(self.path("checkpoints"), job.checkpoint.keep, self.disk.clone())
            .keeping_every(job.checkpoint.keep_every)
            .patient(Duration::from_secs(job.parallel.timeout))
    }

    /// Writes `summary.json`.
    pub(crate) fn write_summary(&self, summary: &Value) -> Result<(), Failure> {
        let text = format!("{summary:#}\n");
        self.disk.replace(&self.path("summary.json"), text.as_bytes()).fail()
    }

    /// Puts a finished folder in the place of `name`: the old one, or the new one, never a mixture.
    pub(crate) fn swap_in(&self, partial: &Path, name: &str) -> Result<(), Failure> {
        let (place, old) = (self.path(name), self.path(&format!("{name}.old")));
        self.disk.remove_folder(&old).fail()?;
        if place.exists() {
            self.disk.rename(&place, &old).fail()?;
        }
        self.disk.rename(partial, &place).fail()?;
        self.disk.remove_folder(&old).fail()
    }
}

/// What a step did, as metrics.jsonl says it.
pub(crate) struct StepMetrics {
    pub(crate) report: StepReport,
    pub(crate) tokens: u64,
    pub(crate) seconds: f64,
    pub(crate) mfu: f64,
    pub(crate) evaluation_loss: Option<f64>,
}

impl StepMetrics {
    /// Valid tokens a second.
    pub(crate) fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    fn to_json(&self) -> Value {
        let r = &self.report;
        let mut v = json!({
            "step": r.step, "loss": r.loss, "gradient_norm": r.gradient_norm, "learning_rate": r.learning_rate,
            "tokens": self.tokens, "seconds": self.seconds, "tokens_per_second": self.rate(), "mfu": self.mfu,
            "bytes": bytes_json(&r.live),
        });
        if let (Some(loss), Some(map)) = (self.evaluation_loss, v.as_object_mut()) {
            map.insert("evaluation_loss".into(), loss.into());
            map.insert("evaluation_perplexity".into(), loss.exp().into());
        }
        v
    }
}

/// Bytes by category as a JSON object.
pub(crate) fn bytes_json(bytes: &ByCategory) -> Value {
    let mut map: Map<String, Value> = bytes.iter().map(|(c, b)| (c.name().to_owned(), b.into())).collect();
    map.insert("total".into(), bytes.total().into());
    Value::Object(map)
}

/// metrics.jsonl: one object a step. Only the file remembers all steps, so that a long run's memory stays flat.
#[derive(Debug)]
pub(crate) struct Metrics {
    file: File,
    path: PathBuf,
}

/// What a whole run's metrics come to.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Loss of the last step.
    pub(crate) final_loss: Option<f64>,
    /// Held-out loss of the last evaluation.
    pub(crate) evaluation_loss: Option<f64>,
    /// Median over the steps.
    pub(crate) tokens_per_second: Option<f64>,
    /// Median over the steps.
    pub(crate) mfu: Option<f64>,
}

impl Metrics {
    /// Opens the file at `step`: lines of later steps, and a line that was cut off, are dropped, since the run
    /// will write them again.
    pub(crate) fn open(folder: &RunFolder, step: u64) -> Result<Self, Failure> {
        let path = folder.path(RunFolder::METRICS);
        let cannot = |e: std::io::Error| Failure::Refused(format!("cannot use {}: {e}", path.display()));
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(cannot)?;
        let kept = kept_bytes(&mut BufReader::new(&mut file), step).map_err(cannot)?;
        file.set_len(kept).map_err(cannot)?;
        Ok(Self { file, path })
    }

    /// Appends a step.
    pub(crate) fn push(&mut self, m: &StepMetrics) -> Result<(), Failure> {
        self.file
            .write_all(format!("{}\n", m.to_json()).as_bytes())
            .map_err(|e| Failure::Failed(format!("cannot write {}: {e}", self.path.display())))
    }

    /// Makes sure that what was appended survives a power cut: a checkpoint implies the metrics of its steps.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.file
            .sync_data()
            .map_err(|e| Failure::Failed(format!("cannot write {}: {e}", self.path.display())))
    }

    /// Steps and losses of all evaluations up to the step `last`, after which the file of `folder` may have more.
    ///
    /// # Errors
    /// The file cannot be read, or does not have every step up to `last`.
    pub(crate) fn evaluations(folder: &RunFolder, last: u64) -> Result<Vec<(u64, f64)>, Failure> {
        let path = folder.path(RunFolder::METRICS);
        let cannot = |e: &dyn std::fmt::Display| {
            Failure::Refused(format!(
                "cannot count the evaluations that train.stop_patience is about: {} {e}; restore the file, set \
                 train.stop_patience=0, or begin a run in another run.dir",
                path.display()
            ))
        };
        let mut evaluations = Vec::new();
        let mut steps = 0;
        let lines = if last == 0 { None } else { Some(File::open(&path).map_err(|e| cannot(&e))?) };
        for line in lines.into_iter().flat_map(|file| BufReader::new(file).lines()).take(last as usize) {
            let v: Value = serde_json::from_str(&line.map_err(|e| cannot(&e))?).unwrap_or_default();
            steps += 1;
            if v["step"].as_u64() != Some(steps) {
                return Err(cannot(&format!("does not have step {steps} on line {steps}")));
            }
            if let Some(loss) = v.get("evaluation_loss") {
                // One that is not finite is written as null.
                evaluations.push((steps, loss.as_f64().unwrap_or(f64::NAN)));
            }
        }
        if steps != last {
            return Err(cannot(&format!(
                "has the steps up to {steps}, but the checkpoint is of step {last}"
            )));
        }
        Ok(evaluations)
    }

    /// Reads the file once more.
    pub(crate) fn totals(&self) -> Result<Totals, Failure> {
        let cannot = |e: std::io::Error| Failure::Failed(format!("cannot read {}: {e}", self.path.display()));
        let file = File::open(&self.path).map_err(cannot)?;
        let (mut totals, mut rates, mut mfus) = (Totals::default(), Vec::new(), Vec::new());
        for line in BufReader::new(file).lines() {
            let v: Value = serde_json::from_str(&line.map_err(cannot)?).unwrap_or_default();
            totals.final_loss = v["loss"].as_f64().or(totals.final_loss);
            totals.evaluation_loss = v["evaluation_loss"].as_f64().or(totals.evaluation_loss);
            rates.extend(v["tokens_per_second"].as_f64());
            mfus.extend(v["mfu"].as_f64());
        }
        Ok(Totals { tokens_per_second: median(rates), mfu: median(mfus), ..totals })
    }
}

/// Length of the whole lines up to and including that of `step`.
fn kept_bytes(lines: &mut impl BufRead, step: u64) -> std::io::Result<u64> {
    let (mut kept, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let n = lines.read_until(b'\n', &mut line)? as u64;
        let value = serde_json::from_slice::<Value>(&line).ok().filter(|_| line.ends_with(b"\n"));
        if value.and_then(|v| v["step"].as_u64()).is_none_or(|s| s > step) {
            return Ok(kept);
        }
        kept += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_later_steps_and_a_line_that_was_cut_off_are_dropped() {
        let two = "{\"step\":1}\n{\"step\":2}\n";
        let kept = |text: &str, step| kept_bytes(&mut text.as_bytes(), step).unwrap() as usize;
        assert_eq!(kept(two, 5), two.len());
        assert_eq!(kept(two, 1), two.len() / 2);
        assert_eq!(kept(two, 0), 0);
        assert_eq!(kept(&two[..two.len() - 1], 5), two.len() / 2);
        assert_eq!(kept("", 5), 0);
        assert_eq!(kept("garbage\n{\"step\":1}\n", 5), 0);
    }

    #[test]
    fn numbers_of_metrics_are_read_back_to_the_bit() {
        for x in [2.895_6, 0.1 + 0.2, 1e-300, 2.0_f64.sqrt(), f64::MAX] {
            let line = json!({"evaluation_loss": x}).to_string();
            let v: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(v["evaluation_loss"].as_f64(), Some(x));
        }
    }
}
