//! From a job to what the engine takes.

use crate::failure::Failure;
use crate::groups;
use crate::job::{self, Job, Length, ModelSource, Recompute, ResolvedJob};
use crate::machine;
use crate::preset;
use crate::run_folder::RunFolder;
use memwall_engine::{
    AdamWSettings, Decay, EngineError, Keep, Place, Precision, Prediction, Schedule, Settings, Zero, predict,
};
use memwall_layout::Mesh;
use memwall_model::{ModelConfig, ModelSpec};
use memwall_tensor::Description;
use std::path::Path;

/// Everything about a job that does not need its data.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) resolved: ResolvedJob,
    pub(crate) job: Job,
    pub(crate) spec: ModelSpec,
    pub(crate) settings: Settings,
    /// Where ranks lie.
    pub(crate) mesh: Mesh,
    /// Each rank's device.
    pub(crate) description: Description,
    /// Bytes that each rank may use.
    pub(crate) budget: u64,
    /// Whether that is a limit that someone or something sets.
    limited: bool,
}

impl Setup {
    /// The job of a well-known model.
    pub(crate) fn of_model(name: &str, sets: &[String]) -> Result<Self, Failure> {
        let mut setup = Self::new(preset::job(name, sets)?.pinned()?)?;
        // Whoever asks by name asks how much it takes, and need not have it.
        if setup.job.memory.budget.is_none() {
            (setup.budget, setup.limited) = (machine::ADDRESS_SPACE, false);
        }
        Ok(setup)
    }

    /// Reads and checks a job file.
    pub(crate) fn read(path: &Path, sets: &[String]) -> Result<Self, Failure> {
        Self::new(job::load(path, sets)?.pinned()?)
    }

    /// The same for a run that goes on: `train.global_batch`, where it is left to follow the ranks, is the run's.
    pub(crate) fn read_to_resume(path: &Path, sets: &[String]) -> Result<Self, Failure> {
        let job = job::load(path, sets)?;
        let before = job.run_dir().map(|dir| Path::new(&dir).join(RunFolder::JOB)).filter(|p| p.exists());
        match before {
            Some(before) => Self::new(job.pinned_as(&job::load(&before, &[])?)?),
            None => Self::new(job.pinned()?),
        }
    }

    /// Checks a resolved job.
    pub(crate) fn new(resolved: ResolvedJob) -> Result<Self, Failure> {
        let job = resolved.validate()?;
        let config = model_config(&job.model)?;
        if job.data.sequence_length > config.max_positions {
            return Err(Failure::Refused(format!(
                "data.sequence_length = {} is longer than the model's max_position_embeddings ({})",
                job.data.sequence_length, config.max_positions
            )));
        }
        let mut spec = ModelSpec::new(config);
        groups::exclude(&mut spec, &job.optimizer.no_decay)?;
        groups::freeze(&mut spec, &job.train.freeze)?;
        let o = &job.optimizer;
        // Before the data is read, a number of epochs is no number of steps: dry runs ask for no rate.
        let steps = job.train.length.steps().unwrap_or(u64::MAX);
        let settings = Settings {
            micro_batch: job.train.micro_batch,
            micro_batches: job.train.micro_batches,
            sequence: job.data.sequence_length,
            precision: number_type(job.precision.mode),
            gradients: number_type(job.precision.gradients),
            deterministic: job.train.deterministic,
            zero: Zero::ALL[job.parallel.zero],
            clip: job.train.clip,
            seed: job.train.seed,
            // Saved at the end alone, it is waited for.
            snapshot: job.checkpoint.every.map_or(0, |_| job.checkpoint.snapshot),
            keep: match job.memory.recompute {
                Recompute::None => Keep::ALL,
                Recompute::Full => Keep::INPUT,
            },
            optimizer: AdamWSettings {
                beta1: o.beta1,
                beta2: o.beta2,
                eps: o.eps,
                weight_decay: o.weight_decay,
            },
            schedule: Schedule {
                peak: o.learning_rate,
                last: o.final_learning_rate,
                warmup: o.warmup.of(steps),
                steps,
                decay: match o.schedule {
                    job::Schedule::Constant => Decay::Constant,
                    job::Schedule::Linear => Decay::Linear,
                    job::Schedule::Cosine => Decay::Cosine,
                    job::Schedule::Wsd => {
                        Decay::Stable { decay: o.decay.map_or(0, |part| part.of(steps).max(1)) }
                    }
                },
            },
        };
        let ranks = job.parallel.ranks;
        let threads = job.run.threads.unwrap_or_else(machine::cores);
        let share = || machine::available_memory() / ranks as u64;
        Ok(Self {
            spec,
            settings,
            mesh: Mesh::data_parallel(job.parallel.dp_replicate, job.parallel.dp_shard),
            description: Description { threads: (threads / ranks).max(1) },
            budget: job.memory.budget.unwrap_or_else(share).min(machine::ADDRESS_SPACE),
            limited: true,
            resolved,
            job,
        })
    }

    /// The same with the number of steps that the job comes to when an epoch has `samples` sequences, if its data has
    /// epochs.
    pub(crate) fn with_data(self, samples: Option<u64>) -> Result<Self, Failure> {
        match (self.job.train.length, samples) {
            (Length::Steps(_), _) => Ok(self),
            (Length::Epochs(_), Some(samples)) => {
                // Memory that is available is not asked for twice: it may have changed.
                Ok(Self { budget: self.budget, ..Self::new(self.resolved.pinned_to_data(samples)?)? })
            }
            (Length::Epochs(_), None) => Err(Failure::Refused(
                "train.epochs means nothing for the mixture in data.prepared, of which each source goes through its own \
                 epochs: write train.steps or train.tokens"
                    .into(),
            )),
        }
    }

    /// The budget, where there is one.
    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.budget).filter(|_| self.limited)
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.mesh.world()
    }

    /// All ranks' threads together.
    pub(crate) fn threads(&self) -> Description {
        Description { threads: self.description.threads * self.ranks() }
    }

    /// What the job costs the first rank when `budget` bytes are allowed.
    pub(crate) fn predict(&self, budget: u64) -> Result<Prediction, EngineError> {
        self.predict_rank(0, budget)
    }

    /// What the job costs a rank when `budget` bytes are allowed.
    pub(crate) fn predict_rank(&self, rank: usize, budget: u64) -> Result<Prediction, EngineError> {
        let place = Place { mesh: self.mesh, rank };
        predict(&self.spec, &self.settings, place, self.description, budget, self.job.data.evaluates())
    }
}

fn number_type(precision: job::Precision) -> Precision {
    match precision {
        job::Precision::F32 => Precision::F32,
        job::Precision::Bf16 => Precision::Bf16,
    }
}

fn model_config(source: &ModelSource) -> Result<ModelConfig, Failure> {
    match source {
        ModelSource::ConfigTable(value) => {
            ModelConfig::from_value(value).map_err(|e| Failure::Refused(format!("[model.config]: {e}")))
        }
        ModelSource::ConfigFile(path) => read_config(path),
        ModelSource::Folder(folder) => read_config(&folder.join("config.json")),
    }
}

/// Reads a model's config.json.
pub(crate) fn read_config(path: &Path) -> Result<ModelConfig, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::Refused(format!("cannot read the model config {}: {e}", path.display())))?;
    ModelConfig::from_json(&text).map_err(|e| Failure::Refused(format!("{}: {e}", path.display())))
}
