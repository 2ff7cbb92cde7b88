//! Ranks end together: whoever is killed, fails or is interrupted, nobody hangs and nothing is left behind.

mod common;

use common::{JOB, Place, Process, ended};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::time::Duration;

/// A job for two ranks and three that has no end.
fn endless() -> Place {
    let p = Place::new();
    p.write(
        "job.toml",
        &JOB.replace("steps = 12", "steps = 100000")
            .replace("every = 4", "every = 50")
            .replace("micro_batch = 2\nglobal_batch = 6", "micro_batch = 1\nglobal_batch = 6"),
    );
    p
}

fn start(p: &Place, args: &[&str]) -> Child {
    p.command(&[&["train", "job.toml"], args].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The process of a rank, once it is there.
fn rank(p: &Place, rank: u64) -> Process {
    for _ in 0..1000 {
        if let Some(process) = p.processes().into_iter().find(|process| process.rank == Some(rank)) {
            return process;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("there is no rank {rank}")
}

fn signal(pid: &str, signal: &str) {
    assert!(std::process::Command::new("kill").args([signal, "--", pid]).status().unwrap().success());
}

/// Numbers that look random, from a seed.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// MEMWALL_KILLS says how often; each time a run begins or goes on, and one of its processes is killed at some moment.
#[test]
fn parcae_12_whoever_is_killed_at_whatever_moment_all_end_and_the_run_goes_on() {
    let kills: u64 = std::env::var("MEMWALL_KILLS").map_or(10, |n| n.parse().unwrap());
    let p = endless();
    let mut state = 7;
    for kill in 0..kills {
        let resume: &[&str] = if p.path("run/job.toml").exists() { &["--resume"] } else { &[] };
        let ranks = ["2", "3"][kill as usize % 2];
        let child = start(&p, &[&["--ranks", ranks, "--set", "parallel.zero=2"], resume].concat());
        // Half of them as early as can be, the others once it trains.
        std::thread::sleep(Duration::from_millis(random(&mut state) % if kill % 4 < 2 { 300 } else { 1500 }));
        let supervisor = Process { pid: child.id(), rank: None };
        let others: Vec<Process> = p.processes().into_iter().filter(|o| o.rank.is_some()).collect();
        // The supervisor every third time, and where there is nobody else yet.
        let choice = random(&mut state) as usize;
        let victim =
            if others.is_empty() || kill % 3 == 0 { supervisor } else { others[choice % others.len()] };
        victim.signal("-KILL");
        let out = ended(child);
        let text = String::from_utf8(out.stderr).unwrap();
        match victim.rank {
            None => assert_eq!(out.status.signal(), Some(9), "{text}"),
            Some(rank) => {
                assert_eq!(out.status.code(), Some(1), "{text}");
                assert!(text.contains(&format!("memwall: rank {rank} was killed by signal 9")), "{text}");
                assert!(text.contains(&format!("logs/rank-{rank}.log")), "{text}");
                assert_eq!(text.matches("memwall: ").count(), 1, "{text}");
            }
        }
        p.wait_for_nobody();
    }
    // The lock went with them, and what was saved is good.
    let steps = format!("train.steps={}", p.metrics_written("run") + 10);
    let resume: &[&str] = if p.path("run/job.toml").exists() { &["--resume"] } else { &[] };
    p.ok(&[&["train", "job.toml", "--ranks", "2", "--set", &steps], resume].concat());
    p.wait_for_nobody();
}

/// A rank is killed when a save has begun and is not complete.
#[test]
fn a_rank_that_dies_in_mid_save_ends_the_run_and_the_checkpoint_before_is_whole() {
    let p = endless();
    let cut_off = |p: &Place| {
        let steps = std::fs::read_dir(p.path("run/checkpoints")).into_iter().flatten().flatten();
        let steps = steps.filter(|e| e.file_name().to_string_lossy().starts_with("step-"));
        steps.filter(|e| !e.path().join("manifest.json").exists()).count()
    };
    let mut caught = 0;
    for turn in 0..6 {
        let resume: &[&str] = if turn > 0 { &["--resume"] } else { &[] };
        let sets = ["--ranks", "2", "--set", "parallel.zero=3", "--set", "checkpoint.every=2"];
        let mut child = start(&p, &[&sets, resume].concat());
        let written = p.metrics_written("run");
        while p.metrics_written("run") < written.max(1) + 4 {
            assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        let victim = rank(&p, 1);
        while cut_off(&p) == 0 {
            assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
        }
        victim.signal("-KILL");
        let out = ended(child);
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.code() == Some(1) && text.contains("rank 1 was killed by signal 9"), "{text}");
        p.wait_for_nobody();
        caught += usize::from(cut_off(&p) > 0);
        p.ok(&["checkpoint", "verify", "run"]);
    }
    assert!(caught > 0, "no save was caught before it was complete");
}

#[test]
fn ctrl_c_ends_all_ranks_after_the_same_step_saved_and_the_run_goes_on() {
    let p = endless();
    for group in [false, true] {
        let resume: &[&str] = if group { &["--resume"] } else { &[] };
        let before = p.metrics_written("run");
        let mut command = p.command(&[&["train", "job.toml", "--ranks", "2"], resume].concat());
        // As a terminal does it: to the supervisor and its ranks at once.
        let mut child =
            command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while p.metrics_written("run") <= before {
            assert!(child.try_wait().unwrap().is_none(), "the run ended before its first step");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = child.id();
        signal(&if group { format!("-{pid}") } else { pid.to_string() }, "-INT");
        let out = ended(child);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(130), "{text}");
        assert_eq!(text.matches("is saved; go on with --resume").count(), 1, "{text}");
        p.wait_for_nobody();
        let step = p.metrics("run").len();
        assert!(p.path(&format!("run/checkpoints/step-{step:08}/manifest.json")).exists(), "{text}");
    }
    let steps = p.metrics("run").len() + 2;
    p.ok(&["train", "job.toml", "--ranks", "2", "--resume", "--set", &format!("train.steps={steps}")]);
    assert_eq!(p.metrics("run").len(), steps);
}

#[test]
fn a_second_ctrl_c_ends_all_ranks_at_once() {
    let p = endless();
    let mut child = start(&p, &["--ranks", "2"]);
    p.wait_for_steps(&mut child, "run");
    // A rank that does not hear the first one.
    rank(&p, 1).signal("-STOP");
    for _ in 0..2 {
        signal(&child.id().to_string(), "-INT");
        std::thread::sleep(Duration::from_millis(100));
    }
    let out = ended(child);
    assert_eq!(out.status.code(), Some(130), "{}", String::from_utf8_lossy(&out.stderr));
    p.wait_for_nobody();
}

#[test]
fn a_rank_that_does_not_answer_ends_the_run_which_says_who_waits_for_whom() {
    let p = endless();
    let mut child = start(&p, &["--ranks", "2", "--set", "parallel.timeout=1"]);
    p.wait_for_steps(&mut child, "run");
    rank(&p, 1).signal("-STOP");
    let out = ended(child);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.starts_with("memwall: rank 0 failed with exit code 1"), "{text}");
    assert!(text.contains("rank 0 has waited 1 s for rank 1 in "), "{text}");
    p.wait_for_nobody();
}

#[test]
fn ranks_that_fail_are_named_with_their_last_words_and_log() {
    let p = endless();
    let out = p.memwall(&[
        "train",
        "job.toml",
        "--ranks",
        "2",
        "--set",
        "optimizer.learning_rate=1e30",
        "--set",
        "optimizer.warmup_steps=0",
    ]);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.starts_with("memwall: rank ") && text.contains("failed with exit code 1"), "{text}");
    assert!(text.contains("its last words:\n  | memwall: step "), "{text}");
    assert!(text.contains("learning_rate") && text.contains("model."), "{text}");
    let log = text.lines().find_map(|l| l.strip_prefix("its log is ")).unwrap();
    assert!(std::fs::read_to_string(p.path(log)).unwrap().contains("learning_rate"), "{text}");
}

#[test]
fn a_rank_whose_data_is_damaged_while_it_runs_is_named_with_the_file() {
    let p = endless();
    let mut child = start(&p, &["--ranks", "2"]);
    p.wait_for_steps(&mut child, "run");
    let cache = p.path("cache/memwall");
    let prepared = std::fs::read_dir(cache).unwrap().next().unwrap().unwrap().path();
    // In place: the ranks have the file mapped.
    let mut tokens = std::fs::OpenOptions::new().write(true).open(prepared.join("tokens-00000.bin")).unwrap();
    let length = tokens.metadata().unwrap().len();
    tokens.write_all(&vec![0xff; length as usize]).unwrap();
    let out = ended(child);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("memwall: rank ") && first.contains(" failed with exit code 1"), "{text}");
    assert!(text.contains("  | memwall: ") && text.contains("it holds the token id 65535"), "{text}");
    p.wait_for_nobody();
}

#[test]
fn two_runs_of_ranks_never_share_a_folder() {
    let p = endless();
    let mut first = start(&p, &["--ranks", "2"]);
    p.wait_for_steps(&mut first, "run");
    let text = p.refused(&["train", "job.toml", "--ranks", "2", "--resume"]);
    assert!(text.contains("in use"), "{text}");
    let _ = first.kill();
    ended(first);
    p.wait_for_nobody();
}
