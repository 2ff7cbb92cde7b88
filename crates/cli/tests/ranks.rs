//! Ranks as processes: they train what one trains, say what they cost, and are refused where they make no sense.

mod common;

use common::{JOB, Place, contents};
use serde_json::Value;

/// A job that 1, 2, 3 and 4 ranks can share: 12 micro-batches a step.
fn place() -> Place {
    let p = Place::new();
    p.write(
        "job.toml",
        &JOB.replace(
            "micro_batch = 2\nglobal_batch = 6",
            "micro_batch = 1\nglobal_batch = 12\ndeterministic = true",
        ),
    );
    p
}

/// Arguments that train into `run` with these values.
fn train<'a>(run: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    ["train", "job.toml", "--set", run, "--set", "memory.exact=require"].into_iter().chain(sets).collect()
}

/// What a run has learned, step by step: all but the bytes that it took.
fn learned(p: &Place, run: &str) -> Vec<Value> {
    let mut steps = p.metrics(run);
    steps.iter_mut().for_each(|m| drop(m.as_object_mut().unwrap().remove("bytes")));
    steps
}

const LAYOUTS: [(&str, &[&str]); 6] = [
    ("two", &["parallel.ranks=2"]),
    ("three", &["parallel.ranks=3", "run.threads=3"]),
    ("zero1", &["parallel.ranks=2", "parallel.zero=1"]),
    ("zero2", &["parallel.ranks=3", "parallel.zero=2"]),
    ("zero3", &["parallel.ranks=2", "parallel.zero=3"]),
    ("hybrid", &["parallel.ranks=4", "parallel.zero=3", "parallel.dp_replicate=2"]),
];

#[test]
fn any_number_of_ranks_trains_to_the_bits_of_one() {
    let p = place();
    p.ok(&train("run.dir=one", &[]));
    let want = learned(&p, "one");
    assert_eq!(want.len(), 12);
    assert!(want.iter().any(|m| m["evaluation_loss"].is_number()));
    for (run, sets) in LAYOUTS {
        p.ok(&train(&format!("run.dir={run}"), sets));
        assert_eq!(learned(&p, run), want, "{run}");
        assert_eq!(contents(&p.path(run).join("export")), contents(&p.path("one/export")), "{run}");
    }
    p.wait_for_nobody();
}

#[test]
fn memory_and_bytes_on_the_wire_are_what_the_plan_says_on_every_rank() {
    let p = place();
    for (run, sets) in LAYOUTS {
        let dir = format!("run.dir={run}");
        let args = [&train(&dir, sets)[1..], &["--set", "train.steps=3"]].concat();
        let plan: Value = serde_json::from_str(&p.ok(&[&["plan", "--json"], &args[..]].concat())).unwrap();
        let out = p.ok(&[&["train"], &args[..]].concat());
        let summary = p.json(&format!("{run}/summary.json"));
        assert_eq!(summary["memory"]["measured"], plan["predicted"], "{run}");
        assert_eq!(summary["layout"], plan["layout"], "{run}");
        for side in ["predicted", "measured"] {
            assert_eq!(summary["wire"][side], plan["wire"], "{run}");
        }
        let rows = plan["wire"].as_array().unwrap();
        let bytes: u64 = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert!(bytes > 0 && plan["step_wire_bytes"] == bytes, "{run}: {rows:?}");
        let ranks = summary["ranks"].as_array().unwrap();
        assert_eq!(ranks.len() as u64, plan["layout"]["ranks"].as_u64().unwrap(), "{run}");
        for rank in ranks {
            for what in ["memory_equal", "wire_equal", "resident_agrees"] {
                assert_eq!(rank[what], true, "{run}: {what} of {rank}");
            }
            let share = |name: &str| rank[name].as_f64().unwrap();
            let (inside, waiting) = (share("communication_share"), share("waiting_share"));
            assert!(0.0 < inside && inside < 1.0 && waiting <= inside, "{run}: {rank}");
        }
        assert!(summary["imbalance"].as_f64().unwrap() >= 1.0);
        for words in ["layout     ", "wire       ", "imbalance ", "rank 1 ", "communication", "equal"] {
            assert!(out.contains(words), "{run}: no {words:?} in {out}");
        }
        assert!(!out.contains("DIFFERENT") && !out.contains("NOT AS PREDICTED"), "{out}");
    }
}

#[test]
fn what_is_printed_is_printed_once_and_every_rank_has_a_log() {
    let p = place();
    let out = p.ok(&["train", "job.toml", "--ranks", "2"]);
    for words in
        ["layout     2 ranks: every one holds all, dp_replicate 2; 1 thread each\n", "step 1/12", "done "]
    {
        assert_eq!(out.matches(words).count(), 1, "{words:?} in {out}");
    }
    for rank in [0, 1] {
        let log = std::fs::read_to_string(p.path(&format!("run/logs/rank-{rank}.log"))).unwrap();
        assert!(log.contains("step 12/12"), "{log}");
    }
    let plan = p.ok(&["plan", "job.toml", "--ranks", "2", "--set", "parallel.zero=2"]);
    assert!(plan.contains("layout     2 ranks: ZeRO-2 over dp_shard 2; 1 thread each\n"), "{plan}");
    assert!(plan.contains("wire       ") && plan.contains(" along dp_shard: "), "{plan}");
}

#[test]
fn layouts_that_make_no_sense_are_refused_before_anything_starts() {
    let p = place();
    for (sets, words) in [
        (&["parallel.ranks=0"][..], &["parallel.ranks = 0", "1 to 64"][..]),
        (&["parallel.ranks=65"], &["parallel.ranks = 65", "1 to 64"]),
        (&["parallel.zero=4"], &["parallel.zero = 4", "0 to 3"]),
        (&["parallel.ranks=5"], &["train.global_batch = 12", "ranks (5) = 5", "10 and 15"]),
        (&["parallel.ranks=4", "parallel.dp_replicate=2"], &["write ranks = 2"]),
        (&["parallel.ranks=4", "parallel.dp_shard=2"], &["parallel.zero = 0", "zero = 1"]),
        (&["parallel.ranks=3", "parallel.zero=1", "parallel.dp_shard=2"], &["ranks = 2 or 4"]),
        (&["parallel.ranks=2", "parallel.zero=3", "parallel.dp_replicate=2"], &["dp_shard = 1", "zero = 0"]),
        (&["parallel.zero=1", "parallel.dp_replicate=9", "parallel.dp_shard=8"], &["72 ranks, more than 64"]),
        (&["parallel.rank=2"], &["did you mean parallel.ranks?"]),
        (&["parallel.timeout=0"], &["parallel.timeout"]),
        (&["parallel.ranks=2", "memory.budget=64 KiB"], &["budget"]),
    ] {
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        for command in ["train", "plan"] {
            let text = p.refused(&[&[command, "job.toml"], &args[..]].concat());
            for word in words {
                assert!(text.contains(word), "{sets:?}: no {word:?} in {text}");
            }
        }
        assert!(!p.path("run").exists(), "{sets:?} started a run");
    }
}

#[test]
fn ranks_refuse_in_the_words_of_one_and_once() {
    let p = place();
    p.ok(&["train", "job.toml", "--ranks", "2"]);
    assert!(p.refused(&["train", "job.toml", "--ranks", "2"]).contains("--resume"));
    p.write("text/new.txt", "more text than before");
    let text = p.refused(&["train", "job.toml", "--ranks", "2", "--resume"]);
    assert_eq!(text.matches("the data has changed").count(), 1, "{text}");
    assert!(text.starts_with("memwall: the data has changed"), "{text}");
}

#[test]
fn a_run_goes_on_with_other_ranks() {
    let p = place();
    let of = |ranks: &'static str, zero: &'static str, steps: &'static str| {
        train("run.dir=run", &["optimizer.schedule=constant", ranks, zero, steps])
    };
    p.ok(&train("run.dir=whole", &["optimizer.schedule=constant"]));
    p.ok(&of("parallel.ranks=2", "parallel.zero=3", "train.steps=4"));
    for args in [
        of("parallel.ranks=1", "parallel.zero=0", "train.steps=8"),
        of("parallel.ranks=3", "parallel.zero=1", "train.steps=12"),
    ] {
        p.ok(&[&args[..], &["--resume"]].concat());
    }
    let losses = |run: &str| p.metrics(run).iter().map(|m| m["loss"].clone()).collect::<Vec<_>>();
    assert_eq!(losses("run"), losses("whole"));
    assert_eq!(contents(&p.path("run/export")), contents(&p.path("whole/export")));
}

#[test]
fn a_variable_that_no_supervisor_wrote_is_refused() {
    let p = place();
    for value in [
        "",
        "0",
        "{}",
        r#"{"rank": 0, "arena": 1, "from": null, "peak": {"flops": 1.0, "source": "Measured"},
        "lock": 987, "terminal": null, "files": [988]}"#,
    ] {
        let out = p.command(&["train", "job.toml"]).env("MEMWALL_RANK", value).output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{value:?}: {text}");
        assert!(text.contains("MEMWALL_RANK") && text.contains("unset it"), "{text}");
    }
}

#[test]
fn a_job_that_does_not_fit_a_rank_is_told_the_stage_that_makes_it_fit() {
    let p = place();
    p.write(
        "job.toml",
        &JOB.replace("hidden_size = 24", "hidden_size = 240")
            .replace("num_hidden_layers = 2", "num_hidden_layers = 12")
            .replace("global_batch = 6", "global_batch = 8"),
    );
    let reserved = |zero: &str| {
        let zero = format!("parallel.zero={zero}");
        let plan = p.ok(&["plan", "job.toml", "--json", "--ranks", "2", "--set", &zero]);
        serde_json::from_str::<Value>(&plan).unwrap()["predicted"]["reserved_bytes"].as_u64().unwrap()
    };
    let stages = ["0", "1", "2", "3"].map(reserved);
    assert!(stages[0] > stages[1] && stages[1] > stages[2] && stages[2] > stages[3], "{stages:?}");
    for (stage, fits) in [(1, stages[1]), (3, stages[3])] {
        let budget = format!("memory.budget={fits}");
        let text = p.refused(&["train", "job.toml", "--ranks", "2", "--set", &budget]);
        let advice = format!("  parallel.zero = {stage}: {}, fits\n", memwall_cli::job::show_bytes(fits));
        assert!(text.contains(&advice), "no {advice:?} in {text}");
    }
}

#[test]
fn ranks_stop_early_where_one_does_and_a_reader_that_goes_away_does_not_end_them() {
    let p = place();
    let rule = ["train.evaluate_every=2", "train.stop_patience=2", "train.stop_min_delta=100.0"];
    p.ok(&train("run.dir=one", &rule));
    let args = train("run.dir=two", &[&rule[..], &["parallel.ranks=2"]].concat());
    let mut command = p.command(&args);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait().unwrap().success());
    assert_eq!(learned(&p, "two").len(), 6);
    assert_eq!(learned(&p, "two"), learned(&p, "one"));
}
