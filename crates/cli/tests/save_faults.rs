//! Disks that are full or must not be written to, and folders that two want: a clear end, and nothing is lost.

mod common;

use common::{JOB, Place, contents};
use std::process::{Output, Stdio};

/// Runs the program from a shell that has prepared something for it.
fn in_shell(p: &Place, program: &str, shell: &[&str], script: &str) -> Output {
    let script = script.replace("MEMWALL", env!("CARGO_BIN_EXE_memwall"));
    let mut command = std::process::Command::new(program);
    command.args(shell).arg(script).current_dir(p.path("")).env("XDG_CACHE_HOME", p.path("cache"));
    command.output().unwrap()
}

/// Whether this machine lets a test have mounts of its own.
fn mounts() -> bool {
    let probe = std::process::Command::new("unshare").args(["-rm", "true"]).output();
    let can = probe.is_ok_and(|out| out.status.success());
    if !can {
        eprintln!(
            "not tested: this machine does not let a test mount a file system of its own (unshare -rm)"
        );
    }
    can
}

fn stderr(out: &Output) -> String {
    String::from_utf8(out.stderr.clone()).unwrap()
}

#[test]
fn a_file_that_the_system_does_not_let_grow_ends_the_run_and_the_run_goes_on_from_the_checkpoint_before() {
    let p = Place::new();
    p.ok(&["train", "job.toml", "--set", "run.dir=whole"]);
    p.ok(&["train", "job.toml", "--stop-after", "5"]);
    // 100 KiB: weights fit, moments do not.
    let out =
        in_shell(&p, "sh", &["-c"], "trap '' XFSZ; ulimit -f 200; exec MEMWALL train job.toml --resume");
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write to") && text.contains("optimizer.safetensors"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    p.ok(&["checkpoint", "verify", "run"]);
    assert!(p.ok(&["checkpoint", "inspect", "run"]).contains("step 5:"));
    p.ok(&["train", "job.toml", "--resume"]);
    assert_eq!(p.metrics("run"), p.metrics("whole"));
    assert_eq!(contents(&p.path("run/export")), contents(&p.path("whole/export")));
}

#[test]
fn a_disk_that_is_full_ends_the_run_and_what_was_half_written_is_gone() {
    if !mounts() {
        return;
    }
    let p = Place::new();
    p.write("job.toml", &JOB.replace("micro_batch = 2", "micro_batch = 1"));
    std::fs::create_dir(p.path("run")).unwrap();
    for ranks in ["", "--ranks 2 --set parallel.zero=2"] {
        let script = format!(
            "mount -t tmpfs -o size=400k none run && MEMWALL train job.toml {ranks}; code=$?; \
             find run/checkpoints -name '*.safetensors' -path '*step-00000008*'; MEMWALL checkpoint verify run; exit $code"
        );
        let out = in_shell(&p, "unshare", &["-rm", "sh", "-c"], &script);
        let (text, printed) = (stderr(&out), String::from_utf8_lossy(&out.stdout).into_owned());
        assert_eq!(out.status.code(), Some(1), "{ranks}: {text}");
        assert!(text.contains("No space left on device") && !text.contains("panicked"), "{ranks}: {text}");
        assert!(printed.contains("whole  ") && printed.contains("step-00000004"), "{ranks}: {printed}");
        // Of several ranks, one that was done before another failed may have left its part, which the next save deletes.
        assert!(!ranks.is_empty() || !printed.contains("step-00000008/"), "{printed}");
    }
}

#[test]
fn a_folder_that_must_not_be_written_to_is_refused_before_anything_starts() {
    let p = Place::new();
    let text = p.refused(&["train", "job.toml", "--set", "run.dir=job.toml/run"]);
    assert!(text.contains("job.toml/run"), "{text}");
    if !mounts() {
        return;
    }
    std::fs::create_dir(p.path("run")).unwrap();
    let script = "mount -t tmpfs -o ro none run && exec MEMWALL train job.toml";
    let out = in_shell(&p, "unshare", &["-rm", "sh", "-c"], script);
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("Read-only file system") && text.contains("run"), "{text}");
    // A run that is moved to such a place in mid-life fails where it saves, and says so.
    p.ok(&["train", "job.toml", "--stop-after", "2", "--set", "run.dir=other"]);
    let script = "mount -t tmpfs none run && cp -r other/* run/ && mount -o remount,ro run && exec MEMWALL train job.toml --resume";
    let out = in_shell(&p, "unshare", &["-rm", "sh", "-c"], script);
    let text = stderr(&out);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("Read-only file system"), "{text}");
}

#[test]
fn a_run_folder_belongs_to_one_command_at_a_time() {
    let p = Place::new();
    let long = JOB.replace("steps = 12", "steps = 100000").replace("every = 4", "every = 2");
    p.write("long.toml", &long.replace("micro_batch = 2", "micro_batch = 1"));
    for ranks in ["1", "2"] {
        let run = format!("run.dir=run{ranks}");
        let args = ["train", "long.toml", "--set", &run, "--ranks", ranks];
        let mut child = p.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        p.wait_for_steps(&mut child, &format!("run{ranks}"));
        let folder = format!("run{ranks}");
        for args in [
            &["train", "long.toml", "--set", &run, "--resume"][..],
            &["move", &folder, "long.toml"],
            &["move", &folder, "--back"],
        ] {
            let text = p.refused(args);
            assert!(text.contains("is in use by another process"), "{args:?}: {text}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        p.wait_for_nobody();
        p.ok(&["train", "long.toml", "--set", &run, "--ranks", ranks, "--resume", "--stop-after", "1"]);
        p.ok(&["checkpoint", "verify", &folder]);
    }
}

/// Ranks may change when a run goes on, and the samples go on exactly; the global batch stays the run's where the job leaves it
/// to follow the ranks.
#[test]
fn tt_811_a_run_goes_on_with_other_ranks_and_the_same_samples() {
    let p = Place::new();
    let free = JOB.replace("micro_batch = 2\nglobal_batch = 6", "micro_batch = 2\ndeterministic = true");
    p.write("job.toml", &free.replace("threads = 2", "threads = 3"));
    let learned = |run: &str| {
        let mut steps = p.metrics(run);
        steps.iter_mut().for_each(|m| drop(m.as_object_mut().unwrap().remove("bytes")));
        steps
    };
    p.ok(&["train", "job.toml", "--set", "run.dir=whole", "--set", "train.global_batch=6"]);
    p.ok(&["train", "job.toml", "--ranks", "3", "--set", "parallel.zero=2", "--stop-after", "3"]);
    for (ranks, zero) in [("1", "0"), ("3", "3"), ("3", "0")] {
        let zero = format!("parallel.zero={zero}");
        p.ok(&["train", "job.toml", "--resume", "--ranks", ranks, "--set", &zero, "--stop-after", "3"]);
    }
    assert_eq!(learned("run"), learned("whole"));
    // What does not divide is refused, and says what to do.
    let text = p.refused(&["train", "job.toml", "--resume", "--ranks", "4"]);
    assert!(text.contains("global_batch"), "{text}");
}
