//! The job as resolved: every key known and of the right type, defaults filled in.

use std::path::Path;

use toml::Value;

use super::schema::{Fallback, KEYS, Key, SECTIONS};
use super::validated::{self, Job};
use super::values::Values;
use super::written::WrittenJob;
use super::{JobError, kind, parallel, presence, relations, sources};

/// A job with a value for every key that has one. Two are equal when their values are, whether given
/// or filled in.
#[derive(Clone, Debug)]
pub struct ResolvedJob {
    /// What was given, kept so that [`ResolvedJob::with`] can derive the defaults anew.
    written: WrittenJob,
    values: Values,
    /// What `train.steps` was computed from, as in "train.epochs = 2.0", where it was not given.
    steps_from: Option<String>,
}

impl PartialEq for ResolvedJob {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl ResolvedJob {
    /// Checks that the values go together, and gives the form that the engine takes.
    pub fn validate(&self) -> Result<Job, JobError> {
        validated::validate(&self.values).map_err(|error| match &self.steps_from {
            Some(from) => error.explained("train.steps", &format!("train.steps comes from {from}")),
            None => error,
        })
    }

    /// The text of `job.toml` in the run folder. Reading it back gives an equal job.
    ///
    /// A key without a value (it depends on the machine, or is none) is there as a comment.
    pub fn to_toml(&self) -> String {
        let mut text = "# The job as run: every key, with defaults filled in.\n".to_owned();
        for section in SECTIONS {
            text.push_str(&format!("\n# {}\n", section.meaning));
            for key in KEYS.iter().filter(|key| key.section == section.name) {
                if let (Fallback::Depends(what), None) = (key.fallback, self.values.get(&key.path())) {
                    text.push_str(&format!("# `{}` defaults to {what}.\n", key.name));
                }
            }
            if let Some(from) = self.steps_from.as_ref().filter(|_| section.name == "train") {
                text.push_str(&format!("# `steps` was computed from {from}.\n"));
            }
            if let Some(keys) = self.values.table().get(section.name) {
                let alone = toml::Table::from_iter([(section.name.to_owned(), keys.clone())]);
                text.push_str(&alone.to_string());
            }
        }
        text
    }

    /// The same job with another value for `key` (`section.key`), given as `--set` would give it.
    /// Defaults that depend on the key follow it.
    pub fn with(&self, key: &str, value: Value) -> Result<Self, JobError> {
        let mut written = self.written.clone();
        let (section, name) = key.split_once('.').unwrap_or((key, ""));
        let section = written.table.entry(section).or_insert_with(|| Value::Table(toml::Table::new()));
        if let Value::Table(section) = section {
            section.insert(name.to_owned(), value);
        }
        Ok(Self { steps_from: self.steps_from.clone(), ..resolve(written)? })
    }

    /// The same job with what depends on the ranks written out: `train.global_batch`, where it was left to
    /// follow them, and `train.steps`, where `train.tokens` was given. The run folder keeps this form, so that
    /// resuming on other ranks is known to train in the same steps, or refused.
    pub fn pinned(&self) -> Result<Self, JobError> {
        let mut job = self.clone();
        if self.values.get("train.global_batch").is_none() {
            let unit = relations::sequences_at_once(&self.values, parallel::ranks(&self.values)?)?;
            job = job.with("train.global_batch", Value::Integer(unit))?;
        }
        let global_batch = job.values.need("train.global_batch")?;
        match relations::steps_of_tokens(&job.values, global_batch)? {
            Some(steps) => job.with_steps(steps),
            None => Ok(job),
        }
    }

    /// The same, but a `train.global_batch` that was left to follow the ranks is that of `run`, the job of a run that goes on.
    pub fn pinned_as(&self, run: &Self) -> Result<Self, JobError> {
        match (self.values.get("train.global_batch"), run.values.get("train.global_batch")) {
            (None, Some(batch)) => self.with("train.global_batch", batch.clone())?.pinned(),
            _ => self.pinned(),
        }
    }

    /// The folder that the run writes to.
    pub fn run_dir(&self) -> Option<String> {
        self.values.read("run.dir")
    }

    /// What `train.steps` was computed from, as in "train.epochs = 2.0", where it was not given.
    pub fn steps_from(&self) -> Option<&str> {
        self.steps_from.as_deref()
    }

    /// The same job with `train.epochs`, where that was given, replaced by the steps that it comes to when an
    /// epoch has `samples` sequences. The job must have been pinned.
    pub fn pinned_to_data(&self, samples: u64) -> Result<Self, JobError> {
        match relations::steps_of_epochs(&self.values, samples)? {
            Some(steps) => self.with_steps(steps),
            None => Ok(self.clone()),
        }
    }

    /// The same job with `train.steps` in the place of the length that was given.
    fn with_steps(&self, steps: u64) -> Result<Self, JobError> {
        let mut job = self.clone();
        if let Some(Value::Table(train)) = job.written.table.get_mut("train") {
            for name in presence::LENGTHS {
                if let Some(value) = train.remove(name) {
                    job.steps_from = Some(format!("train.{name} = {value}"));
                }
            }
        }
        let steps = i64::try_from(steps).map_err(|_| JobError::one("train.steps is out of range"))?;
        job.with("train.steps", Value::Integer(steps))
    }

    /// The keys whose values differ, as (`section.key`, mine, theirs), in the order of the schema.
    /// A value that is not there shows as `not given`. An inline model configuration is compared key
    /// by key.
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        for key in KEYS {
            let path = key.path();
            let (mine, theirs) = (self.values.get(&path), other.values.get(&path));
            push_differences(&mut found, path, mine, theirs);
        }
        found
    }
}

/// Compares two values at `path`, going into tables that both have.
fn push_differences(
    found: &mut Vec<(String, String, String)>,
    path: String,
    mine: Option<&Value>,
    theirs: Option<&Value>,
) {
    if let (Some(Value::Table(mine)), Some(Value::Table(theirs))) = (mine, theirs) {
        let added = theirs.keys().filter(|key| !mine.contains_key(*key));
        for key in mine.keys().chain(added) {
            push_differences(found, format!("{path}.{key}"), mine.get(key), theirs.get(key));
        }
    } else if mine != theirs {
        let show = |value: Option<&Value>| value.map_or_else(|| "not given".to_owned(), kind::text_of);
        found.push((path, show(mine), show(theirs)));
    }
}

/// Checks every key of a written job on its own, and fills in the defaults.
pub(super) fn resolve(written: WrittenJob) -> Result<ResolvedJob, JobError> {
    let mut problems = Vec::new();
    let meant = presence::refuse_unknown(&written, &mut problems);
    let mut values = Values::default();
    for key in KEYS {
        let value = match written.get(key.section, key.name) {
            Some(value) => key.kind.check(&key.path(), value).map_err(|why| problems.push(why)).ok(),
            None => key.fallback.value().or_else(|| derived(key, &values, &written)),
        };
        if let Some(value) = value {
            values.insert(key, value);
        }
    }
    presence::refuse_missing(&written, &meant, &mut problems);
    if !problems.is_empty() {
        // Report what else is wrong now, rather than on the next try.
        problems.extend(relations::contradictions(&values, values.read("train.steps")));
        problems.extend(parallel::contradiction(&values));
    }
    JobError::if_any(problems)?;
    Ok(ResolvedJob { written, values, steps_from: None })
}

/// The value of a key that was not given and follows from other keys. The rest stay without:
/// what they depend on (the batches, the machine) is not known yet.
fn derived(key: &Key, values: &Values, written: &WrittenJob) -> Option<Value> {
    match (key.section, key.name) {
        ("data", "tokenizer") => {
            let folder = values.read::<String>("model.path")?;
            Some(Path::new(&folder).join("tokenizer.json").to_string_lossy().into_owned().into())
        }
        ("data", "field") => sources::need_a_field(values).then(|| "text".into()),
        ("data", "validation") => {
            let own = ["evaluation", "prepared"].iter().any(|name| written.get("data", name).is_some());
            (!own).then_some(Value::Float(0.05))
        }
        ("optimizer", "warmup_steps") => {
            written.get("optimizer", "warmup_share").is_none().then_some(Value::Integer(0))
        }
        ("optimizer", "decay_share") => {
            let schedule = values.read::<String>("optimizer.schedule")?;
            let stable = schedule == "wsd" && values.get("optimizer.decay_steps").is_none();
            stable.then_some(Value::Float(0.1))
        }
        ("optimizer", "final_learning_rate") => {
            let schedule = values.read::<String>("optimizer.schedule")?;
            (schedule != "constant").then_some(Value::Float(0.0))
        }
        ("parallel", name) => parallel::derived(name, written),
        ("export", "dtype") => {
            let mode = values.read::<String>("precision.mode")?;
            Some(if mode == "bf16" { "bfloat16" } else { "float32" }.into())
        }
        ("run", "dir") => Some(format!("runs/{}", written.name).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Length;
    use crate::job::tests::{FINE_TUNE, FROM_TABLE, NONE, resolve};

    #[test]
    fn reads_back_what_it_writes() {
        for (text, set) in [
            (FINE_TUNE, "optimizer.schedule=constant"),
            (FINE_TUNE, "memory.budget=1.5 GiB"),
            (FROM_TABLE, "data.train=[{files = 'a', weight = 2}, {files = ['b', 'c'], field = 'f'}]"),
            (FROM_TABLE, "data.evaluation=e/*"),
            (FROM_TABLE, "run.dir=a \"quoted\"\nfolder"),
        ] {
            let job = resolve(text, &[set]).unwrap();
            let again = resolve(&job.to_toml(), NONE).unwrap();
            assert_eq!(again, job);
            assert_eq!(again.validate(), job.validate());
            assert_eq!(again.to_toml(), job.to_toml());
        }
    }

    #[test]
    fn reads_back_the_deepest_config() {
        for (open, close) in [("{a = ", "}"), ("[", "]"), ("[{a = ", "}]")] {
            let set = |levels| format!("model.config.b={}1{}", open.repeat(levels), close.repeat(levels));
            let deepest = (1..40).rev().find_map(|levels| resolve(FROM_TABLE, &[set(levels)]).ok()).unwrap();
            assert_eq!(resolve(&deepest.to_toml(), NONE), Ok(deepest));
        }
    }

    #[test]
    fn writes_every_key_in_order() {
        let text = resolve(FINE_TUNE, &["data.validation=0.25"]).unwrap().to_toml();
        let start = "\
# The job as run: every key, with defaults filled in.

# What is trained: exactly one of `path` and `config`.
# `config` defaults to none, and model.path is then required.
[model]
path = \"models/tiny\"

# What it is trained on.
# `prepared` defaults to none, and data.train is then required.
# `evaluation` defaults to none: data.validation says what is held out.
# `cache` defaults to memwall in $XDG_CACHE_HOME or in ~/.cache, or to data-cache beside run.dir where these cannot be \
written.
[data]
train = [\"data/*.txt\"]
field = \"text\"
tokenizer = \"models/tiny/tokenizer.json\"
sequence_length = 128
packing = \"packed\"
validation = 0.25
";
        assert!(text.starts_with(start), "{text}");
    }

    #[test]
    fn other_values_move_their_defaults() {
        let job = resolve(FINE_TUNE, NONE).unwrap();
        let more = job.with("train.micro_batch", Value::Integer(4)).unwrap();
        let more = more.with("parallel.ranks", Value::Integer(2)).unwrap();
        assert_eq!(more.validate().unwrap().train.global_batch, 8);
        let constant = job.with("optimizer.schedule", "constant".into()).unwrap();
        assert!(constant.validate().is_ok());
        let other = job.with("model.path", "m".into()).unwrap().validate().unwrap();
        assert_eq!(other.data.tokenizer, "m/tokenizer.json");
    }

    #[test]
    fn other_values_are_checked() {
        let job = resolve(FINE_TUNE, NONE).unwrap();
        for (key, message) in [
            ("train.stpes", "train.stpes: no such key; did you mean train.steps?"),
            ("train.clip", "train.clip: expected a number, got true or false"),
            ("zzz", "[zzz]: no such section; the sections are [model]"),
            ("", "[]: no such section; the sections are [model]"),
        ] {
            let error = job.with(key, Value::Boolean(true)).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_pinned_job_keeps_its_global_batch() {
        let on = |job: &ResolvedJob, ranks| job.with("parallel.ranks", Value::Integer(ranks)).unwrap();
        let pinned = on(&resolve(FINE_TUNE, NONE).unwrap(), 4).pinned().unwrap();
        assert_eq!(on(&pinned, 2).validate().unwrap().train.micro_batches, 2);
        assert_eq!(pinned.pinned().unwrap(), pinned);
        assert!(pinned.to_toml().contains("global_batch = 4"));
    }

    #[test]
    fn a_length_in_tokens_or_epochs_is_pinned_to_steps() {
        let text = FROM_TABLE.replace("steps = 10", "global_batch = 2");
        let tokens = |n: u64| resolve(&text, &[format!("train.tokens={n}")]).unwrap();
        // 2 sequences x 128 tokens a step.
        for (n, steps) in [(1, 1), (256, 1), (257, 2), (2560, 10)] {
            assert_eq!(tokens(n).validate().unwrap().train.length, Length::Steps(steps), "{n}");
            let pinned = tokens(n).pinned().unwrap();
            assert_eq!(pinned.validate().unwrap().train.length, Length::Steps(steps), "{n}");
            assert_eq!(pinned.pinned_to_data(3).unwrap(), pinned);
            let text = pinned.to_toml();
            assert!(text.contains(&format!("\nsteps = {steps}\n")), "{text}");
            assert!(text.contains(&format!("# `steps` was computed from train.tokens = {n}.")), "{text}");
            assert_eq!(resolve(&text, NONE).unwrap(), pinned);
        }
        // Other ranks make the step larger, where its size was left to them.
        let wide = resolve(&text.replace("global_batch = 2", ""), &["train.tokens=2560", "parallel.ranks=4"]);
        assert_eq!(wide.unwrap().pinned().unwrap().validate().unwrap().train.length, Length::Steps(5));

        // 7 sequences an epoch, 2 a step; 1.1 x 20 is above 22 in floating point.
        for (epochs, samples, steps) in
            [("1", 7, 4), ("2", 7, 7), ("0.5", 7, 2), ("1e-9", 7, 1), ("2.5", 7, 9), ("1.1", 20, 11)]
        {
            let job = resolve(&text, &[format!("train.epochs={epochs}")]).unwrap().pinned().unwrap();
            assert!(matches!(job.validate().unwrap().train.length, Length::Epochs(_)));
            let pinned = job.pinned_to_data(samples).unwrap();
            assert_eq!(pinned.validate().unwrap().train.length, Length::Steps(steps), "{epochs}");
            assert!(pinned.to_toml().contains("was computed from train.epochs = "));
            assert!(!pinned.to_toml().contains("\nepochs"), "{}", pinned.to_toml());
        }
    }

    #[test]
    fn what_contradicts_computed_steps_says_where_they_come_from() {
        let text = FROM_TABLE.replace("steps = 10", "epochs = 2");
        let job = resolve(&text, &["optimizer.warmup_steps=20"]).unwrap().pinned().unwrap();
        assert!(job.validate().is_ok());
        assert_eq!(
            job.pinned_to_data(5).unwrap().validate().unwrap_err().to_string(),
            "optimizer.warmup_steps = 20 is more than train.steps = 10: write at most 10 (train.steps comes from \
             train.epochs = 2)"
        );
        let absurd = job.with("train.epochs", Value::Float(1e18)).unwrap();
        let error = absurd.pinned_to_data(1000).unwrap_err().to_string();
        assert!(error.starts_with("train.epochs = 1e18 comes to") && error.contains("write less"), "{error}");
        let absurd =
            resolve(&FROM_TABLE.replace("steps = 10", "tokens = 9223372036854775807"), NONE).unwrap();
        for error in [absurd.pinned().unwrap_err(), absurd.validate().unwrap_err()] {
            assert!(error.to_string().starts_with("train.tokens = 9223372036854775807 comes to"), "{error}");
        }
    }

    #[test]
    fn tells_differences() {
        let mine = resolve(FROM_TABLE, &["memory.budget=1024 MiB"]).unwrap();
        assert_eq!(mine.differences(&mine), []);
        let sets = ["memory.budget=1 GiB", "train.seed=1", "train.global_batch=2"];
        let theirs = resolve(&FROM_TABLE.replace("64", "32"), &sets).unwrap();
        let row = |key: &str, mine: &str, theirs: &str| (key.to_owned(), mine.to_owned(), theirs.to_owned());
        let expected = [
            row("model.config.hidden_size", "64", "32"),
            row("train.global_batch", "not given", "2"),
            row("train.seed", "0", "1"),
        ];
        assert_eq!(mine.differences(&theirs), expected);
    }
}
