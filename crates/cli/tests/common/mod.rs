//! What the whole-program tests share: a folder with a little text and a job, and the program.
#![allow(dead_code)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

/// A folder of its own, with text, and a job that takes a second.
pub struct Place {
    dir: tempfile::TempDir,
}

pub const JOB: &str = r#"
[model.config]
hidden_size = 24
intermediate_size = 40
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 257

[data]
train = ["text/*.txt"]
tokenizer = "bytes"
sequence_length = 33
validation = 0.1

[train]
steps = 12
micro_batch = 2
global_batch = 6
seed = 3
evaluate_every = 5

[optimizer]
learning_rate = 3e-3
warmup_steps = 2

[checkpoint]
every = 4
keep = 2

[run]
dir = "run"
threads = 2
"#;

impl Place {
    pub fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.path("text")).unwrap();
        for (i, word) in ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"].iter().enumerate() {
            let text = format!("{word} {i} says: {word}!\n").repeat(20 + 7 * i);
            std::fs::write(place.path(&format!("text/{word}.txt")), text).unwrap();
        }
        place.write("job.toml", JOB);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_memwall"));
        c.args(args).current_dir(self.dir.path());
        // Never the user's own.
        c.env("XDG_CACHE_HOME", self.path("cache"));
        c
    }

    pub fn memwall(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs and expects success; returns what was printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.memwall(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Runs and expects a refusal with exit code 2; returns the message.
    pub fn refused(&self, args: &[&str]) -> String {
        let out = self.memwall(args);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
        text
    }

    /// Waits until a run has written its first step.
    pub fn wait_for_steps(&self, child: &mut Child, run: &str) {
        let metrics = self.path(run).join("metrics.jsonl");
        while std::fs::read(&metrics).map_or(0, |m| m.len()) == 0 {
            assert!(child.try_wait().unwrap().is_none(), "the run ended before its first step");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Whole lines of metrics.jsonl so far.
    pub fn metrics_written(&self, run: &str) -> usize {
        let metrics = std::fs::read(self.path(run).join("metrics.jsonl")).unwrap_or_default();
        metrics.iter().filter(|b| **b == b'\n').count()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    /// The objects of metrics.jsonl without what a clock decides.
    pub fn metrics(&self, run: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap();
        text.lines()
            .map(|l| {
                let mut v: Value = serde_json::from_str(l).unwrap();
                for key in ["seconds", "tokens_per_second", "mfu"] {
                    assert!(v.as_object_mut().unwrap().remove(key).unwrap().is_number());
                }
                v
            })
            .collect()
    }
}

/// All bytes of the files in a folder, by name.
pub fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(p).unwrap()))
        .collect();
    files.sort();
    files
}

/// The bytes of each tensor of a safetensors file, read as the format's description says.
pub fn tensors(path: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let v: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let tensors = v.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, info)| {
            let at = |i: usize| header + info["data_offsets"][i].as_u64().unwrap() as usize;
            (name.clone(), bytes[at(0)..at(1)].to_vec())
        })
        .collect()
}

/// A process on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// The rank that it is; `None` for one that supervises, or is not yet one.
    pub rank: Option<u64>,
}

impl Process {
    /// Sends it a signal, as `kill` names it.
    pub fn signal(self, signal: &str) {
        // It may have ended meanwhile.
        let _ = Command::new("kill")
            .args([signal, &self.pid.to_string()])
            .stderr(std::process::Stdio::null())
            .status();
    }
}

impl Place {
    /// All processes that run in this folder, whoever their parent is.
    pub fn processes(&self) -> Vec<Process> {
        let here = self.dir.path().canonicalize().unwrap();
        let pids =
            std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let ours = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == here);
        pids.filter(ours).map(|pid| Process { pid, rank: rank_of(pid) }).collect()
    }

    /// Waits until there is no process here, and fails after ten seconds.
    pub fn wait_for_nobody(&self) {
        let begin = std::time::Instant::now();
        while !self.processes().is_empty() {
            assert!(begin.elapsed().as_secs() < 10, "left behind: {:?}", self.processes());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// The rank in a process's environment.
fn rank_of(pid: u32) -> Option<u64> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|b| *b == 0).find_map(|v| v.strip_prefix(b"MEMWALL_RANK="))?;
    serde_json::from_slice::<Value>(value).ok()?["rank"].as_u64()
}

/// The end of a process that must end within ten seconds.
pub fn ended(mut child: Child) -> Output {
    let begin = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed().as_secs() >= 10 {
            let _ = child.kill();
            panic!("it hangs: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}
