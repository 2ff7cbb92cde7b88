//! The run folder: job, metrics, summary, checkpoints, export; and the lock that keeps a second run out.

use crate::failure::{Failure, Outcome};
use crate::job::{self, ResolvedJob};
use memwall_checkpoint::{Disk, Store};
use memwall_engine::StepReport;
use memwall_tensor::ByCategory;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A run folder that this process alone writes to.
#[derive(Debug)]
pub(crate) struct RunFolder {
    root: PathBuf,
    disk: Disk,
    /// Held for as long as the run; the operating system lets go of it however the process ends.
    _lock: File,
}

impl RunFolder {
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
            Ok(()) => Ok(Self { root: root.into(), disk, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Failure::Refused(format!(
                "the run folder {} is in use by another process; wait for it, or give another run.dir",
                root.display()
            ))),
            Err(TryLockError::Error(e)) => Err(refused(&e)),
        }
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
        let path = self.path("job.toml");
        if path.exists() { Ok(Some(job::load(&path, &[])?)) } else { Ok(None) }
    }

    /// Writes the job as resolved.
    pub(crate) fn write_job(&self, job: &ResolvedJob) -> Result<(), Failure> {
        self.disk.replace(&self.path("job.toml"), job.to_toml().as_bytes()).refuse()
    }

    /// The run's checkpoints.
    pub(crate) fn store(&self, keep: usize) -> Store {
        Store::new(self.path("checkpoints"), keep, self.disk.clone())
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

/// metrics.jsonl: one object a step.
#[derive(Debug)]
pub(crate) struct Metrics {
    file: File,
    path: PathBuf,
    /// All steps so far, as written.
    pub(crate) steps: Vec<Value>,
}

impl Metrics {
    /// Opens the file at `step`: lines of later steps, and a line that was cut off, are dropped, since the run
    /// will write them again.
    pub(crate) fn open(folder: &RunFolder, step: u64) -> Result<Self, Failure> {
        let path = folder.path("metrics.jsonl");
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(Failure::Refused(format!("cannot read {}: {e}", path.display()))),
        };
        let steps: Vec<Value> = text
            .lines()
            .map_while(|l| serde_json::from_str::<Value>(l).ok())
            .take_while(|v| v["step"].as_u64().is_some_and(|s| s <= step))
            .collect();
        let kept: String = steps.iter().map(|v| format!("{v}\n")).collect();
        folder.disk.replace(&path, kept.as_bytes()).refuse()?;
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(|e| Failure::Refused(format!("cannot write {}: {e}", path.display())))?;
        Ok(Self { file, path, steps })
    }

    /// Appends a step.
    pub(crate) fn push(&mut self, m: &StepMetrics) -> Result<(), Failure> {
        let value = m.to_json();
        self.file
            .write_all(format!("{value}\n").as_bytes())
            .map_err(|e| Failure::Failed(format!("cannot write {}: {e}", self.path.display())))?;
        self.steps.push(value);
        Ok(())
    }

    /// Median of a number over all steps; `None` without steps.
    pub(crate) fn median(&self, key: &str) -> Option<f64> {
        let mut values: Vec<f64> = self.steps.iter().filter_map(|v| v[key].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
    }

    /// The last value of a number.
    pub(crate) fn last(&self, key: &str) -> Option<f64> {
        self.steps.iter().rev().find_map(|v| v[key].as_f64())
    }
}
