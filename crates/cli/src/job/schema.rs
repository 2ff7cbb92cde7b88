//! The keys of a job file: one table that the checks, the defaults and the reference page come from.

use std::ops::Bound::{Excluded, Included, Unbounded};

use toml::Value;

use super::kind::Kind;

/// The most that a count may be, and the most tokens in a micro-batch or a step. No real job comes
/// near; below it, products of two such numbers fit 64 bits.
pub const COUNT_LIMIT: i64 = 1 << 31;

/// The most ranks of a job: all are processes of one machine.
pub const RANKS_LIMIT: i64 = 64;

/// One section of the job file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The name in brackets.
    pub name: &'static str,
    /// What its keys are about, in one line.
    pub meaning: &'static str,
}

/// One key of the job file.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The section it stands in.
    pub section: &'static str,
    /// Its name within the section.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// What holds where it is not given.
    pub fallback: Fallback,
    /// What it means, in one line, with its unit.
    pub meaning: &'static str,
}

/// What holds where a key is not given.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// The job is refused.
    Required,
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// A switch.
    Switch(bool),
    /// A string.
    Text(&'static str),
    /// Something that depends on other keys, on the machine or on the ranks; said in words that follow
    /// "defaults to".
    Depends(&'static str),
}

impl Fallback {
    /// The value, where it is the same for every job.
    pub fn value(self) -> Option<Value> {
        match self {
            Self::Required | Self::Depends(_) => None,
            Self::Whole(number) => Some(Value::Integer(number)),
            Self::Number(number) => Some(Value::Float(number)),
            Self::Switch(switch) => Some(Value::Boolean(switch)),
            Self::Text(text) => Some(Value::String(text.to_owned())),
        }
    }
}

impl Key {
    /// `section.key`, as messages and `--set` name it.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }
}

/// The key at `section` and `name`.
pub fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

/// A row of [`KEYS`].
const fn key(
    section: &'static str,
    name: &'static str,
    kind: Kind,
    fallback: Fallback,
    meaning: &'static str,
) -> Key {
    Key { section, name, kind, fallback, meaning }
}

/// A number of ranks.
const RANKS: Kind = Kind::Whole { min: 1, max: RANKS_LIMIT };

/// A count from `min` up.
const fn count(min: i64) -> Kind {
    Kind::Whole { min, max: COUNT_LIMIT }
}

const SHARE_BELOW_ONE: Kind = Kind::Number(Included(0.0), Excluded(1.0));
const POSITIVE: Kind = Kind::Number(Excluded(0.0), Unbounded);
const NOT_NEGATIVE: Kind = Kind::Number(Included(0.0), Unbounded);

/// The sections, in the order of the reference page and of `job.toml`.
pub const SECTIONS: &[Section] = &[
    Section { name: "model", meaning: "What is trained: exactly one of `path` and `config`." },
    Section { name: "data", meaning: "What it is trained on." },
    Section { name: "train", meaning: "How long and in what batches." },
    Section { name: "optimizer", meaning: "How the parameters are updated." },
    Section { name: "precision", meaning: "In what numbers the model is trained." },
    Section { name: "parallel", meaning: "How many ranks there are, and what each of them holds." },
    Section { name: "memory", meaning: "How much memory may be used, and what is traded for it." },
    Section { name: "checkpoint", meaning: "When the state is saved, and how much of it is kept." },
    Section { name: "export", meaning: "What the trained model is written as." },
    Section { name: "run", meaning: "Where the run writes and what it runs on." },
];

/// Every key, section by section. A key that depends on others stands after them.
#[rustfmt::skip] // A row is easier to find when the first line of each looks alike.
pub const KEYS: &[Key] = &[
    key("model", "path", Kind::Text, Fallback::Depends("none, and model.config is then required"),
        "Folder of a Hugging Face model to fine-tune, relative to the current working directory."),
    key("model", "config", Kind::TextOrTable, Fallback::Depends("none, and model.path is then required"),
        "Model to train from random initialization: path of a Hugging Face config.json, relative to \
         the current working directory, or a table with its keys."),

    key("data", "train", Kind::Sources, Fallback::Depends("none, and data.prepared is then required"),
        "Training files, relative to the current working directory: glob patterns, or a mixture of several \
         sources, each with its files, its weight (1, its share of the samples beside the others') and its field \
         (data.field). Files that end in .jsonl or .ndjson are JSON Lines, in .parquet Parquet, all others text, one \
         document a file; .gz and .zst after it mean that they are packed."),
    key("data", "prepared", Kind::Text, Fallback::Depends("none, and data.train is then required"),
        "Folder that memwall data prepare --out has written, relative to the current working directory; instead of \
         data.train."),
    key("data", "evaluation", Kind::Texts, Fallback::Depends("none: data.validation says what is held out"),
        "Glob patterns of files to evaluate on, of the same formats as those of data.train; instead of \
         data.validation."),
    key("data", "field", Kind::Text, Fallback::Depends("\"text\", where a source has none of its own"),
        "Field of JSON Lines, or column of Parquet files, that holds the text."),
    key("data", "cache", Kind::Text,
        Fallback::Depends("memwall in $XDG_CACHE_HOME or in ~/.cache, or to data-cache beside run.dir where these \
                           cannot be written"),
        "Folder that tokenized data is kept in, and found again by the next run."),
    key("data", "tokenizer", Kind::Text,
        Fallback::Depends("tokenizer.json in model.path, and is required with model.config"),
        "\"bytes\", or path of a tokenizer.json, relative to the current working directory."),
    key("data", "sequence_length", count(1), Fallback::Required,
        "Length of a training sequence, in tokens."),
    key("data", "packing", Kind::Choice(&["packed", "documents"]), Fallback::Text("packed"),
        "How documents become sequences: packed one behind the other, each seeing only itself, or each in sequences \
         of its own, with padding."),
    key("data", "validation", Kind::Number(Included(0.0), Included(0.5)),
        Fallback::Depends("0.05, or where there are files to evaluate on to none"),
        "Share of the data held out for evaluation, as whole documents; 0 holds out nothing."),

    key("train", "steps", count(1), Fallback::Depends("what train.tokens or train.epochs comes to"),
        "Optimizer steps to train for; exactly one of steps, tokens and epochs is given."),
    key("train", "tokens", Kind::Whole { min: 1, max: i64::MAX },
        Fallback::Depends("none, and train.steps or train.epochs is then required"),
        "Tokens to train for, padding included: ceil(tokens / (train.global_batch x data.sequence_length)) \
         steps."),
    key("train", "epochs", POSITIVE, Fallback::Depends("none, and train.steps or train.tokens is then required"),
        "Passes over the training data, parts of one allowed: ceil(epochs x sequences an epoch / \
         train.global_batch) steps."),
    key("train", "micro_batch", count(1), Fallback::Whole(1),
        "Sequences that each data-parallel rank computes at once."),
    key("train", "global_batch", count(1), Fallback::Depends("train.micro_batch x data-parallel ranks"),
        "Sequences in one optimizer step, over all ranks: a multiple of train.micro_batch x \
         data-parallel ranks."),
    key("train", "seed", Kind::Whole { min: 0, max: i64::MAX }, Fallback::Whole(0),
        "Seed of the initialization and of the order of the data."),
    key("train", "deterministic", Kind::Switch, Fallback::Switch(false),
        "Whether equal jobs give equal bits, at some cost in speed."),
    key("train", "clip", NOT_NEGATIVE, Fallback::Number(1.0),
        "Largest L2 norm of the gradient, which is scaled down to it; 0 turns clipping off."),
    key("train", "freeze", Kind::Texts, Fallback::Depends("none"),
        "Glob patterns of the names of parameters that stay as they are, such as \"model.embed_tokens.*\"; each must \
         match one, and something must be left to train."),
    key("train", "evaluate_every", count(0), Fallback::Whole(0),
        "Optimizer steps between evaluations on held-out data; 0 evaluates only at the end."),
    key("train", "evaluate_batches", count(0), Fallback::Whole(16),
        "Micro-batches of held-out data in one evaluation at most; 0 takes all."),
    key("train", "stop_patience", count(0), Fallback::Whole(0),
        "Evaluations without improvement of the held-out loss after which the run stops early, those that \
         train.evaluate_every asks for; 0 never stops early."),
    key("train", "stop_min_delta", NOT_NEGATIVE, Fallback::Number(0.0),
        "Amount by which the held-out loss must fall below its lowest so far to count as an improvement."),

    key("optimizer", "kind", Kind::Choice(&["adamw"]), Fallback::Text("adamw"),
        "Update rule."),
    key("optimizer", "learning_rate", POSITIVE, Fallback::Required,
        "Highest learning rate, reached after the warmup."),
    key("optimizer", "beta1", SHARE_BELOW_ONE, Fallback::Number(0.9),
        "Decay per step of the mean of the gradient."),
    key("optimizer", "beta2", SHARE_BELOW_ONE, Fallback::Number(0.95),
        "Decay per step of the mean of the squared gradient."),
    key("optimizer", "eps", POSITIVE, Fallback::Number(1e-8),
        "Added to the denominator of the update."),
    key("optimizer", "weight_decay", NOT_NEGATIVE, Fallback::Number(0.1),
        "Decoupled weight decay, a factor on the learning rate; norms and biases never decay."),
    key("optimizer", "no_decay", Kind::Texts, Fallback::Depends("none"),
        "Glob patterns of the names of further parameters that do not decay, such as \
         \"model.embed_tokens.*\"; each must match one."),
    key("optimizer", "schedule", Kind::Choice(&["constant", "linear", "cosine", "wsd"]), Fallback::Text("cosine"),
        "How the learning rate goes from its highest to its final value after the warmup; wsd is warm-up, \
         stable, decay: it stays at the highest, and falls on a straight line over the last steps."),
    key("optimizer", "warmup_steps", count(0), Fallback::Depends("0, or with warmup_share to none"),
        "Optimizer steps over which the learning rate rises from 0; at most train.steps."),
    key("optimizer", "warmup_share", SHARE_BELOW_ONE, Fallback::Depends("none"),
        "The warmup as a share of all steps, rounded to a whole step; instead of optimizer.warmup_steps."),
    key("optimizer", "decay_steps", count(1), Fallback::Depends("none"),
        "With schedule = \"wsd\", the last optimizer steps over which the learning rate falls."),
    key("optimizer", "decay_share", Kind::Number(Excluded(0.0), Included(1.0)),
        Fallback::Depends("0.1 with schedule = \"wsd\" and no decay_steps, otherwise to none"),
        "The same as a share of all steps, rounded to a whole step, at least 1; instead of \
         optimizer.decay_steps."),
    key("optimizer", "final_learning_rate", NOT_NEGATIVE,
        Fallback::Depends("0, or with schedule = \"constant\" to none"),
        "Learning rate that the fall ends at one step after the last, so that no step is wasted on a rate of \
         0; at most optimizer.learning_rate."),

    key("precision", "mode", Kind::Choice(&["f32", "bf16"]), Fallback::Text("f32"),
        "Type of weights and activations; with bf16 the optimizer updates f32 master weights, and the weights \
         follow, rounded. Sums are f32 in both."),
    key("precision", "gradients", Kind::Choice(&["f32", "bf16"]),
        Fallback::Depends("bf16 with mode = \"bf16\" and one micro-batch a step, otherwise to f32; with \
         train.deterministic they are 64-bit integers"),
        "Type in which gradients are kept. In bf16 the sum over several micro-batches would lose small terms, \
         which is refused."),

    key("parallel", "ranks", RANKS,
        Fallback::Depends("parallel.dp_replicate x parallel.dp_shard, of which one that is not given is 1"),
        "Ranks: processes on this machine that train together, each on its share of every step's samples."),
    key("parallel", "zero", Kind::Whole { min: 0, max: 3 }, Fallback::Whole(0),
        "Stage of ZeRO: what the ranks of a sharding group hold a part of and not the whole; 0 nothing, 1 the \
         optimizer's state, 2 gradients as well, 3 weights as well."),
    key("parallel", "dp_replicate", RANKS,
        Fallback::Depends("parallel.ranks / parallel.dp_shard; where that is not given either, to 1 with zero = 1, 2 or 3, \
                           otherwise to parallel.ranks"),
        "Replicas of what a sharding group holds; with dp_shard above 1 as well, ranks shard inside a group and \
         replicate across groups."),
    key("parallel", "dp_shard", RANKS,
        Fallback::Depends("1 with zero = 0, otherwise to parallel.ranks / parallel.dp_replicate"),
        "Ranks of a sharding group, over which the state that parallel.zero names is sharded."),
    key("parallel", "timeout", count(1), Fallback::Whole(600),
        "Seconds that a rank waits for another before the run fails, and says who waits for whom in what."),
    key("parallel", "check_every", count(0), Fallback::Whole(100),
        "Optimizer steps between comparisons of the state that ranks must have in common; 0 compares only at the \
         start."),

    key("memory", "budget", Kind::Size,
        Fallback::Depends("the memory available on the machine, with several ranks an equal share of it"),
        "Memory that each rank may use: a size such as \"2 GiB\" or \"1500 MB\", or a whole number of bytes."),
    key("memory", "recompute", Kind::Choice(&["none", "full"]), Fallback::Text("none"),
        "Which activations are dropped after the forward pass and computed again in the backward pass."),
    key("memory", "exact", Kind::Choice(&["report", "require"]), Fallback::Text("report"),
        "What happens when memory is not what was predicted, event by event, which is a defect of memwall: the \
         summary reports it, or the run fails."),

    key("checkpoint", "every", count(0), Fallback::Whole(0),
        "Optimizer steps between checkpoints; 0 saves only at the end."),
    key("checkpoint", "keep", count(1), Fallback::Whole(2),
        "Complete checkpoints kept; older ones are deleted."),
    key("checkpoint", "keep_every", count(0), Fallback::Whole(0),
        "Checkpoints of steps that are a multiple of this are kept for good; 0 keeps none so."),
    key("checkpoint", "snapshot", Kind::Size,
        Fallback::Depends("none: a step that begins to change the state while it is being saved waits until all of it is read, \
                           which takes less time than a step of some hundred tokens"),
        "Room that each rank reserves, where checkpoints are saved while it trains, for what is not read yet when the \
         optimizer changes it: a step then waits only until what is left fits. No more than the rank's part of the state is \
         taken."),

    key("export", "dtype", Kind::Choice(&["float32", "bfloat16"]),
        Fallback::Depends("float32, or with precision.mode = \"bf16\" to bfloat16"),
        "Type of the weights in the exported folder."),
    key("export", "max_shard_size", Kind::Size, Fallback::Text("5 GB"),
        "Largest file of weights; a larger model is written as several files with an index."),

    key("run", "dir", Kind::Text, Fallback::Depends("runs/<name of the job file without .toml>"),
        "Folder the run writes to, relative to the current working directory."),
    key("run", "threads", count(0), Fallback::Whole(0),
        "Threads that compute, all ranks' together: each has an equal share, and at least one; 0 takes all cores."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_once_in_known_sections() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(SECTIONS.iter().any(|section| section.name == key.section), "{}", key.path());
            assert!(KEYS[..index].iter().all(|other| other.path() != key.path()), "{}", key.path());
            assert!(find(key.section, key.name).is_some());
        }
    }

    #[test]
    fn defaults_are_values_of_their_keys() {
        for key in KEYS {
            if let Some(value) = key.fallback.value() {
                assert_eq!(key.kind.check(&key.path(), &value), Ok(value));
            }
        }
    }

    #[test]
    fn meanings_are_one_sentence_on_one_line() {
        for meaning in KEYS.iter().map(|key| key.meaning).chain(SECTIONS.iter().map(|s| s.meaning)) {
            assert!(
                meaning.ends_with('.') && !meaning.contains('\n') && !meaning.contains("  "),
                "{meaning}"
            );
        }
    }
}
