//! The job as validated: plain Rust types, the one form that reaches the engine.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Value;

use super::sources::{self, DataFrom};
use super::values::Values;
use super::{JobError, ParallelJob, bytes, parallel, relations, to_json};

/// A checked job. Paths are as written: relative ones start from the current working directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// What is trained.
    pub model: ModelSource,
    /// What it is trained on.
    pub data: DataJob,
    /// How long and in what batches.
    pub train: TrainJob,
    /// How the parameters are updated.
    pub optimizer: OptimizerJob,
    /// In what numbers the model is trained.
    pub precision: PrecisionJob,
    /// How many ranks there are.
    pub parallel: ParallelJob,
    /// How much memory may be used.
    pub memory: MemoryJob,
    /// When the state is saved.
    pub checkpoint: CheckpointJob,
    /// What the trained model is written as.
    pub export: ExportJob,
    /// Where the run writes and what it runs on.
    pub run: RunJob,
}

/// Where the model comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// A Hugging Face model folder, to fine-tune.
    Folder(PathBuf),
    /// A Hugging Face `config.json`, for random initialization.
    ConfigFile(PathBuf),
    /// The same content given in the job. Its keys are unchecked; it is always an object.
    ConfigTable(serde_json::Value),
}

/// `[data]`
#[derive(Clone, Debug, PartialEq)]
pub struct DataJob {
    /// Where it comes from.
    pub from: DataFrom,
    /// Folder that tokenized data is kept in; `None` is one of the user's.
    pub cache: Option<PathBuf>,
    /// `bytes`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
    /// Tokens in a sequence, at least 1.
    pub sequence_length: usize,
    /// How documents become sequences.
    pub packing: Packing,
    /// Share of the data held out, in 0..=0.5; `None` where files to evaluate on are given, or the prepared data says.
    pub validation: Option<f64>,
}

impl DataJob {
    /// Whether there is something to evaluate on.
    pub fn evaluates(&self) -> bool {
        self.validation.is_none_or(|share| share > 0.0)
    }
}

/// How documents become sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// One behind the other, each seeing only itself.
    Packed,
    /// Each in sequences of its own, with padding.
    Documents,
}

/// `[train]`
#[derive(Clone, Debug, PartialEq)]
pub struct TrainJob {
    /// How long.
    pub length: Length,
    /// Sequences that each data-parallel rank computes at once, at least 1.
    pub micro_batch: usize,
    /// Sequences in one step over all ranks: `micro_batch` x ranks x `micro_batches`.
    pub global_batch: usize,
    /// Micro-batches that each rank computes for one step, at least 1.
    pub micro_batches: usize,
    /// Seed of the initialization and of the order of the data, below 2^63.
    pub seed: u64,
    /// Whether equal jobs give equal bits.
    pub deterministic: bool,
    /// Largest L2 norm of the gradient, above 0; `None` does not clip.
    pub clip: Option<f64>,
    /// Glob patterns of the names of parameters that stay as they are.
    pub freeze: Vec<String>,
    /// Steps between evaluations, at least 1; `None` evaluates only at the end.
    pub evaluate_every: Option<u64>,
    /// Micro-batches in one evaluation at most, at least 1; `None` takes all.
    pub evaluate_batches: Option<usize>,
    /// When the run stops before its length; needs evaluations.
    pub stop: Option<EarlyStop>,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// This many optimizer steps, at least 1; what a number of tokens comes to as well.
    Steps(u64),
    /// This many passes over the data, above 0; the steps are known once the data is.
    Epochs(f64),
}

impl Length {
    /// The optimizer steps, where they are known without the data.
    pub fn steps(self) -> Option<u64> {
        match self {
            Self::Steps(steps) => Some(steps),
            Self::Epochs(_) => None,
        }
    }
}

/// When a run stops early.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStop {
    /// Evaluations without improvement, at least 1.
    pub patience: u64,
    /// What the loss must fall below its lowest by to count as an improvement, at least 0.
    pub min_delta: f64,
}

/// `[optimizer]`
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerJob {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Highest learning rate, above 0.
    pub learning_rate: f64,
    /// Decay per step of the mean of the gradient, in 0..1.
    pub beta1: f64,
    /// Decay per step of the mean of the squared gradient, in 0..1.
    pub beta2: f64,
    /// Added to the denominator of the update, above 0.
    pub eps: f64,
    /// Decoupled weight decay, at least 0.
    pub weight_decay: f64,
    /// Glob patterns of the names of parameters that do not decay, beside norms and biases.
    pub no_decay: Vec<String>,
    /// How the learning rate goes down after the warmup.
    pub schedule: Schedule,
    /// Steps over which the learning rate rises from 0, at most the steps of the run.
    pub warmup: Span,
    /// The last steps, over which a schedule with a stable part falls; `None` for the others.
    pub decay: Option<Span>,
    /// Learning rate that the fall ends at, at most `learning_rate`, which it equals with a constant schedule.
    pub final_learning_rate: f64,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// This many optimizer steps.
    Steps(u64),
    /// This share of all steps, in 0..=1.
    Share(f64),
}

impl Span {
    /// The part in optimizer steps, of a run of `steps`; a share is rounded to the nearest whole step.
    pub fn of(self, steps: u64) -> u64 {
        match self {
            Self::Steps(part) => part,
            Self::Share(share) => (share * steps as f64).round() as u64,
        }
    }
}

/// Update rule of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    AdamW,
}

/// How the learning rate goes from its highest to its final value after the warmup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// It stays at its highest value.
    Constant,
    /// In a straight line.
    Linear,
    /// Along half a period of a cosine.
    Cosine,
    /// It stays at its highest value until the last steps, then goes in a straight line.
    Wsd,
}

/// `[precision]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecisionJob {
    /// Type of weights and activations.
    pub mode: Precision,
    /// Type of gradients, where they are not summed as integers.
    pub gradients: Precision,
}

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    F32,
    /// The upper half of them.
    Bf16,
}

/// `[export]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportJob {
    /// Type of the weights.
    pub dtype: ExportType,
    /// Bytes in a file at most, at least 1.
    pub max_shard_bytes: u64,
}

/// Type of exported weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportType {
    /// 32 bits.
    Float32,
    /// The upper half of them.
    BFloat16,
}

/// `[memory]`
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryJob {
    /// Bytes that each rank may use, at least 1; `None` is its share of what the machine has available.
    pub budget: Option<u64>,
    /// Which activations are computed again in the backward pass.
    pub recompute: Recompute,
    /// What happens when memory is not what was predicted.
    pub exact: Exactness,
}

/// What happens when memory is not what was predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exactness {
    /// The summary reports it.
    Report,
    /// The run fails.
    Require,
}

/// Which activations are dropped after the forward pass and computed again in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// None: all are kept.
    None,
    /// All but the inputs of the units.
    Full,
}

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointJob {
    /// Steps between checkpoints, at least 1; `None` saves only at the end.
    pub every: Option<u64>,
    /// Complete checkpoints kept, at least 1.
    pub keep: usize,
    /// Steps whose multiples are kept for good.
    pub keep_every: Option<u64>,
    /// Bytes reserved for what is not written yet when the optimizer changes it.
    pub snapshot: u64,
}

/// `[run]`
#[derive(Clone, Debug, PartialEq)]
pub struct RunJob {
    /// Folder the run writes to.
    pub dir: PathBuf,
    /// Threads that compute, all ranks' together, at least 1; `None` takes all cores.
    pub threads: Option<usize>,
}

/// Checks that `values` go together, and types them.
pub(super) fn validate(values: &Values) -> Result<Job, JobError> {
    let batches = parallel::ranks(values).and_then(|ranks| relations::batches(values, ranks));
    let length = batches.clone().and_then(|(global_batch, _)| length(values, global_batch));
    let steps = length.as_ref().map_or_else(|_| values.read("train.steps"), |length| length.steps());
    let mut problems = relations::contradictions(values, steps);
    if let Ok((_, micro_batches)) = batches {
        problems.extend(relations::bf16_sums(values, micro_batches));
    }
    // What is wrong with the ranks or the batches leaves the length open, and is its error too.
    if let Err(error) = &length {
        problems.extend_from_slice(error.messages());
    }
    JobError::if_any(problems)?;
    let ((global_batch, micro_batches), length) = (batches?, length?);
    Ok(Job {
        model: model(values)?,
        data: DataJob {
            from: sources::from(values)?,
            cache: values.read("data.cache"),
            tokenizer: values.need("data.tokenizer")?,
            sequence_length: values.need("data.sequence_length")?,
            packing: values.need("data.packing")?,
            validation: values.read("data.validation"),
        },
        train: TrainJob {
            length,
            micro_batch: values.need("train.micro_batch")?,
            global_batch,
            micro_batches,
            seed: values.need("train.seed")?,
            deterministic: values.need("train.deterministic")?,
            clip: Some(values.need("train.clip")?).filter(|clip| *clip > 0.0),
            freeze: values.read("train.freeze").unwrap_or_default(),
            evaluate_every: Some(values.need("train.evaluate_every")?).filter(|every| *every > 0),
            evaluate_batches: Some(values.need("train.evaluate_batches")?).filter(|count| *count > 0),
            stop: early_stop(values)?,
        },
        optimizer: optimizer(values)?,
        precision: precision(values, micro_batches)?,
        parallel: parallel::validated(values)?,
        memory: MemoryJob {
            budget: size(values, "memory.budget"),
            recompute: values.need("memory.recompute")?,
            exact: values.need("memory.exact")?,
        },
        checkpoint: CheckpointJob {
            every: Some(values.need("checkpoint.every")?).filter(|every| *every > 0),
            keep: values.need("checkpoint.keep")?,
            keep_every: Some(values.need("checkpoint.keep_every")?).filter(|every| *every > 0),
            snapshot: size(values, "checkpoint.snapshot").unwrap_or(0),
        },
        export: ExportJob {
            dtype: values.need("export.dtype")?,
            max_shard_bytes: size(values, "export.max_shard_size").unwrap_or(u64::MAX),
        },
        run: RunJob {
            dir: values.need("run.dir")?,
            threads: Some(values.need("run.threads")?).filter(|threads| *threads > 0),
        },
    })
}

/// An amount of memory, checked when it was resolved.
fn size(values: &Values, key: &str) -> Option<u64> {
    values.read::<String>(key).and_then(|size| bytes::parse_bytes(&size).ok())
}

fn precision(values: &Values, micro_batches: usize) -> Result<PrecisionJob, JobError> {
    let mode = values.need("precision.mode")?;
    let one = if micro_batches == 1 { mode } else { Precision::F32 };
    Ok(PrecisionJob { mode, gradients: values.read("precision.gradients").unwrap_or(one) })
}

/// Resolving has made sure that exactly one of the two keys is there.
fn model(values: &Values) -> Result<ModelSource, JobError> {
    match values.get("model.config") {
        None => values.need("model.path").map(ModelSource::Folder),
        Some(Value::Table(table)) => {
            to_json::table_to_json("model.config", table).map(ModelSource::ConfigTable).map_err(JobError::one)
        }
        Some(_) => values.need("model.config").map(ModelSource::ConfigFile),
    }
}

/// Resolving has made sure that exactly one of the three keys is there.
fn length(values: &Values, global_batch: usize) -> Result<Length, JobError> {
    if let Some(epochs) = values.read("train.epochs") {
        return Ok(Length::Epochs(epochs));
    }
    match relations::steps_of_tokens(values, global_batch)? {
        Some(steps) => Ok(Length::Steps(steps)),
        None => values.need("train.steps").map(Length::Steps),
    }
}

fn early_stop(values: &Values) -> Result<Option<EarlyStop>, JobError> {
    let stop = EarlyStop {
        patience: values.need("train.stop_patience")?,
        min_delta: values.need("train.stop_min_delta")?,
    };
    Ok(Some(stop).filter(|stop| stop.patience > 0))
}

/// The part of a run that one of two keys says; `None` where neither does.
fn span(values: &Values, steps: &str, share: &str) -> Option<Span> {
    values.read(steps).map(Span::Steps).or_else(|| values.read(share).map(Span::Share))
}

fn optimizer(values: &Values) -> Result<OptimizerJob, JobError> {
    let learning_rate = values.need("optimizer.learning_rate")?;
    Ok(OptimizerJob {
        kind: values.need("optimizer.kind")?,
        learning_rate,
        beta1: values.need("optimizer.beta1")?,
        beta2: values.need("optimizer.beta2")?,
        eps: values.need("optimizer.eps")?,
        weight_decay: values.need("optimizer.weight_decay")?,
        no_decay: values.read("optimizer.no_decay").unwrap_or_default(),
        schedule: values.need("optimizer.schedule")?,
        warmup: span(values, "optimizer.warmup_steps", "optimizer.warmup_share").unwrap_or(Span::Steps(0)),
        decay: span(values, "optimizer.decay_steps", "optimizer.decay_share"),
        // Without one the schedule is constant.
        final_learning_rate: values.read("optimizer.final_learning_rate").unwrap_or(learning_rate),
    })
}
