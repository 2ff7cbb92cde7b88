//! Whole jobs, from text to the checked form.

use std::path::Path;

use super::*;

/// No overrides.
pub(super) const NONE: &[&str] = &[];

/// The shortest job of each kind of model.
pub(super) const FINE_TUNE: &str = "
    [model]
    path = 'models/tiny'
    [data]
    train = 'data/*.txt'
    sequence_length = 128
    [train]
    steps = 10
    [optimizer]
    learning_rate = 1e-3
";
pub(super) const FROM_TABLE: &str = "
    [model.config]
    model_type = 'llama'
    hidden_size = 64
    rope_scaling = {factor = 2.0, type = 'linear'}
    [data]
    train = ['a.txt', 'b/*.txt']
    tokenizer = 'bytes'
    sequence_length = 128
    [train]
    steps = 10
    [optimizer]
    learning_rate = 1
";

pub(super) fn resolve(text: &str, sets: &[impl AsRef<str>]) -> Result<ResolvedJob, JobError> {
    let sets: Vec<String> = sets.iter().map(|set| set.as_ref().to_owned()).collect();
    resolved::resolve(written::parse(Path::new("jobs/tiny.toml"), text, &sets)?)
}

/// The problems of a fine-tuning job with these overrides, whichever step finds them.
fn problems(sets: &[&str]) -> String {
    resolve(FINE_TUNE, sets).and_then(|job| job.validate()).unwrap_err().to_string()
}

#[test]
fn fills_in_every_default() {
    let job = resolve(FINE_TUNE, &["parallel.ranks=2"]).unwrap().validate().unwrap();
    let expected = Job {
        model: ModelSource::Folder("models/tiny".into()),
        data: DataJob {
            from: DataFrom::Files {
                train: vec![SourceJob {
                    files: vec!["data/*.txt".into()],
                    weight: 1.0,
                    field: "text".into(),
                }],
                evaluation: None,
            },
            cache: None,
            tokenizer: "models/tiny/tokenizer.json".into(),
            sequence_length: 128,
            packing: Packing::Packed,
            validation: Some(0.05),
        },
        train: TrainJob {
            length: Length::Steps(10),
            micro_batch: 1,
            global_batch: 2,
            micro_batches: 1,
            seed: 0,
            deterministic: false,
            clip: Some(1.0),
            freeze: vec![],
            evaluate_every: None,
            evaluate_batches: Some(16),
            stop: None,
        },
        optimizer: OptimizerJob {
            kind: OptimizerKind::AdamW,
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            no_decay: vec![],
            schedule: Schedule::Cosine,
            warmup: Span::Steps(0),
            decay: None,
            final_learning_rate: 0.0,
        },
        precision: PrecisionJob { mode: Precision::F32, gradients: Precision::F32 },
        parallel: ParallelJob {
            ranks: 2,
            zero: 0,
            dp_replicate: 2,
            dp_shard: 1,
            timeout: 600,
            check_every: Some(100),
        },
        memory: MemoryJob { budget: None, recompute: Recompute::None, exact: Exactness::Report },
        checkpoint: CheckpointJob { every: None, keep: 2, keep_every: None, snapshot: 0 },
        export: ExportJob { dtype: ExportType::Float32, max_shard_bytes: 5_000_000_000 },
        run: RunJob { dir: "runs/tiny".into(), threads: None },
    };
    assert_eq!(job, expected);
}

#[test]
fn takes_every_key() {
    let sets = [
        "data.validation=0.5",
        "train.micro_batch=2",
        "train.global_batch=8",
        "train.seed=9223372036854775807",
        "train.deterministic=true",
        "train.clip=0",
        "train.evaluate_every=3",
        "train.evaluate_batches=0",
        "optimizer.schedule=constant",
        "optimizer.warmup_steps=10",
        "memory.budget=2 GiB",
        "memory.recompute=full",
        "checkpoint.every=5",
        "run.dir=out",
        "run.threads=4",
        "parallel.ranks=2",
        "parallel.zero=3",
        "parallel.timeout=30",
        "parallel.check_every=0",
    ];
    let job = resolve(FROM_TABLE, &sets).unwrap().validate().unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 64, "rope_scaling": {"factor": 2.0, "type": "linear"}
    });
    assert_eq!(job.model, ModelSource::ConfigTable(config));
    assert_eq!((job.train.global_batch, job.train.micro_batches), (8, 2));
    assert_eq!((job.train.clip, job.train.evaluate_batches), (None, None));
    assert_eq!((job.train.evaluate_every, job.checkpoint.every), (Some(3), Some(5)));
    assert_eq!(job.train.seed, (1 << 63) - 1);
    assert_eq!((job.optimizer.schedule, job.optimizer.final_learning_rate), (Schedule::Constant, 1.0));
    assert_eq!(
        job.memory,
        MemoryJob { budget: Some(2 << 30), recompute: Recompute::Full, exact: Exactness::Report }
    );
    assert_eq!(job.run, RunJob { dir: "out".into(), threads: Some(4) });
    assert_eq!(
        job.parallel,
        ParallelJob { ranks: 2, zero: 3, dp_replicate: 1, dp_shard: 2, timeout: 30, check_every: None }
    );
}

#[test]
fn bf16_gradients_are_the_default_of_one_micro_batch_a_step_alone() {
    let of = |sets: &[&str]| {
        let job = resolve(FINE_TUNE, &[&["precision.mode=bf16"], sets].concat()).unwrap();
        job.validate().map(|job| (job.precision, job.export.dtype))
    };
    let low = |gradients| (PrecisionJob { mode: Precision::Bf16, gradients }, ExportType::BFloat16);
    assert_eq!(of(&[]), Ok(low(Precision::Bf16)));
    assert_eq!(of(&["train.global_batch=2"]), Ok(low(Precision::F32)));
    assert_eq!(of(&["precision.gradients=f32"]), Ok(low(Precision::F32)));
    assert_eq!(of(&["export.dtype=float32"]).unwrap().1, ExportType::Float32);
    let refused = |sets: &[&str], words: &[&str]| {
        let said = of(sets).unwrap_err().to_string();
        assert!(words.iter().all(|w| said.contains(w)), "{said}");
    };
    refused(
        &["train.global_batch=2", "precision.gradients=bf16"],
        &["2 micro-batches", "gradients are then f32"],
    );
    refused(&["precision.mode=f32", "precision.gradients=bf16"], &["mode = \"bf16\""]);
    refused(&["train.deterministic=true", "precision.gradients=f32"], &["64-bit integers"]);
}

#[test]
fn takes_a_schedule_with_a_stable_part_and_an_early_stop() {
    let sets = [
        "optimizer.schedule=wsd",
        "optimizer.warmup_share=0.2",
        "optimizer.no_decay=model.embed_tokens.*",
        "train.evaluate_every=2",
        "train.stop_patience=3",
        "train.stop_min_delta=0.01",
    ];
    let job = resolve(FINE_TUNE, &sets).unwrap().validate().unwrap();
    assert_eq!(job.train.stop, Some(EarlyStop { patience: 3, min_delta: 0.01 }));
    assert_eq!(job.optimizer.no_decay, ["model.embed_tokens.*"]);
    let o = &job.optimizer;
    assert_eq!((o.schedule, o.warmup, o.decay), (Schedule::Wsd, Span::Share(0.2), Some(Span::Share(0.1))));
    let job = resolve(FINE_TUNE, &[&sets[..], &["optimizer.decay_steps=4"]].concat()).unwrap();
    assert_eq!(job.validate().unwrap().optimizer.decay, Some(Span::Steps(4)));
    assert_eq!((Span::Share(0.25).of(10), Span::Share(1.0).of(7), Span::Steps(4).of(7)), (3, 7, 4));
}

// Two values for one thing are an error at start, even where they would agree.
#[test]
fn ac_1970_ac_3369_a_length_given_twice_is_refused() {
    for (sets, given) in [
        (&["train.tokens=1280"][..], "train.steps and train.tokens"),
        (&["train.epochs=1"], "train.steps and train.epochs"),
        (&["train.tokens=1280", "train.epochs=1"], "train.steps and train.tokens and train.epochs"),
    ] {
        let want = format!(
            "train: {given} are given, and each says how long the run is; write exactly one of train.steps, \
             train.tokens and train.epochs"
        );
        assert_eq!(problems(sets), want);
    }
}

// Accumulation follows from train.global_batch alone: there is no second place to set it in, and a
// batch that the micro-batch does not divide is refused (relations.rs).
#[test]
fn ac_1970_ac_3369_accumulation_has_one_place() {
    for name in ["train.gradient_accumulation_steps", "train.accumulation", "optimizer.accumulation_steps"] {
        assert!(problems(&[&format!("{name}=4")]).contains("no such key"), "{name}");
    }
}

#[test]
fn takes_the_path_of_a_config() {
    let text = FINE_TUNE.replace("path = 'models/tiny'", "config = 'c.json'");
    let job = resolve(&text, &["data.tokenizer=t.json"]).unwrap().validate().unwrap();
    assert_eq!(job.model, ModelSource::ConfigFile("c.json".into()));
    assert_eq!(job.data.tokenizer, "t.json");
}

#[test]
fn every_choice_of_the_schema_has_a_variant() {
    for key in schema::KEYS {
        let kind::Kind::Choice(choices) = key.kind else { continue };
        for choice in choices {
            let set = format!("{}={choice}", key.path());
            // Gradients in bf16 are refused beside weights in f32.
            let beside = (set == "precision.gradients=bf16").then_some("precision.mode=bf16");
            let sets: Vec<&str> = [&*set].into_iter().chain(beside).collect();
            assert!(resolve(FINE_TUNE, &sets).unwrap().validate().is_ok(), "{set}");
        }
    }
}

#[test]
fn refuses_unknown_names_with_the_nearest() {
    for (set, message) in [
        ("train.stpes=1", "train.stpes: no such key; did you mean train.steps?"),
        ("train.learning_rate=1", "train.learning_rate: no such key; did you mean optimizer.learning_rate?"),
        ("memory.zzz=1", "memory.zzz: no such key; [memory] has budget, recompute, exact"),
        ("optimiser.kind=adamw", "[optimiser]: no such section; did you mean [optimizer]?"),
        (
            "zzz.a=1",
            "[zzz]: no such section; the sections are [model], [data], [train], [optimizer], [precision], \
             [parallel], [memory], [checkpoint], [export], [run]",
        ),
        (
            "optimizer.schedule=cosin",
            "optimizer.schedule = \"cosin\" is not known; did you mean \"cosine\"? The values are \
             \"constant\", \"linear\", \"cosine\", \"wsd\"",
        ),
        (
            "memory.recompute=some",
            "memory.recompute = \"some\" is not known; the values are \"none\", \"full\"",
        ),
        ("train.steps=ten", "train.steps: expected a whole number, got a string"),
    ] {
        assert_eq!(problems(&[set]), message);
    }
    let at_the_top = format!("stepz = 1\nqq = 2\nmemory = 3\n{FINE_TUNE}");
    assert_eq!(
        resolve(&at_the_top, NONE).unwrap_err().messages(),
        [
            "stepz: stands in no section; did you mean train.steps?",
            "qq: stands in no section; the sections are [model], [data], [train], [optimizer], [precision], \
             [parallel], [memory], [checkpoint], [export], [run]",
            "memory: expected a section [memory] with keys, got a whole number",
        ]
    );
}

#[test]
fn a_misspelt_name_is_not_missing_too() {
    let misspelt = FINE_TUNE.replace("steps", "stepz").replace("[optimizer]", "[optimiser]");
    assert_eq!(
        resolve(&misspelt, NONE).unwrap_err().messages(),
        [
            "train.stepz: no such key; did you mean train.steps?",
            "[optimiser]: no such section; did you mean [optimizer]?",
        ]
    );
}

#[test]
fn reports_everything_missing() {
    assert_eq!(
        resolve("", NONE).unwrap_err().messages(),
        [
            "data.sequence_length: missing; write a whole number from 1 to 2147483648 (Length of a training \
             sequence, in tokens)",
            "optimizer.learning_rate: missing; write a number > 0 (Highest learning rate, reached after the \
             warmup)",
            "train: no length; write exactly one of train.steps, train.tokens and train.epochs",
            "data: nothing to train on; write data.train (glob patterns of files) or data.prepared (a folder that \
             memwall data prepare --out has written)",
            "model: nothing to train; write model.path (the folder of a model to fine-tune) or model.config \
             (a config.json or a table, for random initialization)",
        ]
    );
}

#[test]
fn refuses_two_models_and_a_config_without_tokenizer() {
    assert_eq!(
        problems(&["model.config=c.json"]),
        "model: both model.path and model.config are given; write only model.path to fine-tune, or only \
         model.config for random initialization"
    );
    assert_eq!(
        resolve(&FROM_TABLE.replace("tokenizer = 'bytes'", ""), NONE).unwrap_err().to_string(),
        "data.tokenizer: missing, and model.config brings none; write \"bytes\" or the path of a tokenizer.json"
    );
}

#[test]
fn refuses_values_out_of_range() {
    for (set, message) in [
        ("train.steps=0", "train.steps = 0 is out of range: write a whole number from 1 to 2147483648"),
        (
            "train.seed=-1",
            "train.seed = -1 is out of range: write a whole number from 0 to 9223372036854775807",
        ),
        ("data.validation=0.6", "data.validation = 0.6 is out of range: write a number >= 0 and <= 0.5"),
        ("optimizer.beta2=1", "optimizer.beta2 = 1 is out of range: write a number >= 0 and < 1"),
        ("optimizer.learning_rate=inf", "optimizer.learning_rate = inf is not finite: write a number > 0"),
        ("train.clip=nan", "train.clip = nan is not finite: write a number >= 0"),
        (
            "data.train=[]",
            "data.train = [] is empty: write a string, an array of strings, or an array of tables {files = [...], \
             weight = 1.0, field = \"text\"}",
        ),
        (
            "memory.budget=2 GiBB",
            "memory.budget = \"2 GiBB\" has no known unit: write a number and one of B, KB, MB, GB, TB, KiB, \
             MiB, GiB or TiB, such as \"2 GiB\" or \"1500 MB\"",
        ),
    ] {
        assert_eq!(problems(&[set]), message);
    }
}

#[test]
fn a_refused_value_does_not_hide_contradictions() {
    assert_eq!(
        problems(&["train.seed=x", "optimizer.warmup_steps=20"]),
        "train.seed: expected a whole number, got a string\n\
         optimizer.warmup_steps = 20 is more than train.steps = 10: write at most 10"
    );
}

#[test]
fn reads_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.toml");
    std::fs::write(&path, FINE_TUNE).unwrap();
    let job = load(&path, &["train.seed=3".to_owned()]).unwrap().validate().unwrap();
    assert_eq!((job.train.seed, job.run.dir), (3, "runs/small".into()));
    let error = load(&path, &["train.seed".to_owned()]).unwrap_err().to_string();
    assert!(error.starts_with("--set train.seed: there is no ="), "{error}");
}
