//! The supervisor: starts workers, sees how they end, and keeps the inputs that ended them.

use crate::case::{Case, Cases};
use crate::targets::Definition;
use crate::worker::Progress;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A target with so many different findings is not searched further.
const ENOUGH: usize = 16;
/// Nor is one whose worker had to be started so often.
const RESTARTS: usize = 200;
/// An input may take so many times its limit by the clock: the limit is of processor time, since a busy machine may
/// let a worker wait for long; what sleeps is found all the same.
const PATIENCE: u32 = 20;
/// How often the supervisor looks.
const LOOK: Duration = Duration::from_millis(20);

/// How targets are searched.
#[derive(Debug, Clone)]
pub struct Supervisor {
    /// The program to start as a worker.
    pub program: PathBuf,
    /// Folder of all corpora, in which findings are put.
    pub corpus: PathBuf,
    /// Mutations of each target.
    pub mutations: u64,
    /// Seed of the mutations.
    pub seed: u64,
    /// Processor time that an input may take.
    pub time: Duration,
    /// Bytes that an input may have allocated at a time.
    pub memory: u64,
}

/// An input that breaks the law.
#[derive(Debug)]
pub struct Finding {
    /// What happened.
    pub what: String,
    /// The file of the corpus that has it.
    pub file: PathBuf,
    /// How many inputs did the same.
    pub times: u64,
}

/// What came of a target.
#[derive(Debug, Default)]
pub struct Report {
    /// Files of the corpus (and inputs made in code) that were replayed.
    pub replayed: u64,
    /// How far the workers came in all; `number` counts the inputs.
    pub progress: Progress,
    /// How long it took.
    pub seconds: f64,
    /// What was found, each kind once.
    pub findings: Vec<Finding>,
}

/// How a worker ended.
enum End {
    Done,
    /// At the input that the progress names.
    Broke(String),
}

impl Supervisor {
    /// Replays a target's corpus, then runs its mutations.
    ///
    /// # Errors
    /// The corpus cannot be read or written, or workers not started.
    pub fn search(&self, definition: &'static Definition) -> io::Result<Report> {
        let start = Instant::now();
        let folder = tempfile::tempdir()?;
        // Workers read a copy: with what is found on the way, the numbers of inputs would change.
        let copy = folder.path().join("corpus");
        self.copy_corpus(definition, &copy.join(definition.name))?;
        let cases = Cases::new(definition, &self.corpus, self.seed)?;
        let mut report = Report { replayed: cases.unchanged(), ..Report::default() };
        let end = cases.unchanged() + self.mutations;
        let mut next = 0;
        for _ in 0..RESTARTS {
            let (outcome, progress) = self.watched(definition, folder.path(), next, end)?;
            report.progress.accepted += progress.accepted;
            report.progress.refused += progress.refused;
            report.progress.kinds = report.progress.kinds.max(progress.kinds);
            report.progress.number = progress.number + 1;
            let End::Broke(mut what) = outcome else { break };
            let at = progress.number;
            if what.is_empty() {
                // Too slow: only if it is so again, by itself, and not because the machine was busy.
                match self.watched(definition, folder.path(), at, at + 1)?.0 {
                    End::Done => {
                        next = at + 1;
                        continue;
                    }
                    End::Broke(_) => what = format!("took longer than {:?}", self.time),
                }
            }
            self.keep(definition, cases.case(at), what, &mut report.findings)?;
            next = at + 1;
            if report.findings.len() == ENOUGH || next == end {
                break;
            }
        }
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Runs one file through a target; says what was wrong, if anything.
    ///
    /// # Errors
    /// The worker cannot be started.
    pub fn replay(&self, definition: &'static Definition, file: &Path) -> io::Result<Option<String>> {
        let folder = tempfile::tempdir()?;
        let progress = folder.path().join("progress");
        let mut command = self.command(definition, &self.corpus, &progress);
        command.arg("--worker-file").arg(file);
        Ok(match self.watch(command.spawn()?, &progress)? {
            Ended::Slow => Some(format!("took longer than {:?}", self.time)),
            Ended::Exit(status) if status.success() => None,
            Ended::Exit(status) => Some(said(status, "")),
        })
    }

    fn copy_corpus(&self, definition: &Definition, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        match fs::read_dir(self.corpus.join(definition.name)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            entries => entries?.try_for_each(|entry| {
                let entry = entry?;
                fs::copy(entry.path(), to.join(entry.file_name())).map(|_| ())
            }),
        }
    }

    fn command(&self, definition: &Definition, corpus: &Path, progress: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--target", definition.name, "--memory", &self.memory.to_string()]);
        command.args(["--seed", &self.seed.to_string()]).arg("--corpus").arg(corpus);
        command.arg("--worker-progress").arg(progress).stdin(Stdio::null());
        command
    }

    /// Runs inputs `from..to` in a worker. Of one that was too slow, the text is empty.
    fn watched(&self, d: &Definition, folder: &Path, from: u64, to: u64) -> io::Result<(End, Progress)> {
        let (progress, text) = (folder.join("progress"), folder.join("stderr"));
        // A worker that dies before its first input must not be taken for the one before.
        let _ = fs::remove_file(&progress);
        let mut command = self.command(d, &folder.join("corpus"), &progress);
        command.args(["--worker-from", &from.to_string(), "--worker-to", &to.to_string()]);
        let ended = self.watch(command.stderr(File::create(&text)?).spawn()?, &progress)?;
        let text = String::from_utf8_lossy(&fs::read(&text)?).into_owned();
        let at = match Progress::read(&progress) {
            Ok(at) => at,
            Err(_) => {
                return Err(io::Error::other(format!("the worker of {} did not start: {text}", d.name)));
            }
        };
        let end = match ended {
            Ended::Exit(status) if status.success() => End::Done,
            Ended::Exit(status) => End::Broke(said(status, &text)),
            Ended::Slow => End::Broke(String::new()),
        };
        Ok((end, at))
    }

    /// Waits for a worker to end, or ends it when it stays at one input for too long.
    fn watch(&self, mut child: Child, progress: &Path) -> io::Result<Ended> {
        let (mut at, mut since, mut busy) = (None, Instant::now(), Duration::ZERO);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ended::Exit(status));
            }
            let now = Progress::read(progress).ok().map(|p| p.number);
            let used = processor_time(child.id());
            if now != at {
                (at, since, busy) = (now, Instant::now(), used);
            } else if now.is_some()
                && (used.saturating_sub(busy) > self.time || since.elapsed() > PATIENCE * self.time)
            {
                child.kill()?;
                child.wait()?;
                return Ok(Ended::Slow);
            }
            sleep(LOOK);
        }
    }

    /// Puts an input into the corpus, unless one that does the same is there.
    fn keep(&self, d: &Definition, case: Case, what: String, found: &mut Vec<Finding>) -> io::Result<()> {
        if let Some(same) = found.iter_mut().find(|f| plain(&f.what) == plain(&what)) {
            same.times += 1;
            return Ok(());
        }
        let file = match case.file {
            Some(file) => file,
            None => {
                let folder = self.corpus.join(d.name);
                fs::create_dir_all(&folder)?;
                let hash = blake3::hash(&case.input).to_hex();
                let file = folder.join(format!("found-{}", &hash[..16]));
                fs::write(&file, &case.input)?;
                file
            }
        };
        found.push(Finding { what, file, times: 1 });
        Ok(())
    }
}

enum Ended {
    Exit(ExitStatus),
    Slow,
}

/// Processor time that a process has used; nothing once it is gone.
fn processor_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may hold anything: user and system time are the 12th and 13th fields, in 1/100 s.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// How a worker ended, and what it said: the last lines.
fn said(status: ExitStatus, text: &str) -> String {
    let how = match (status.code(), status.signal()) {
        // A worker that ends itself says why.
        (Some(_), _) if !text.trim().is_empty() => String::new(),
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, signal) => format!("ended by signal {}: ", signal.unwrap_or_default()),
    };
    let lines: Vec<&str> = text.trim().lines().collect();
    how + &lines[lines.len().saturating_sub(4)..].join(" | ")
}

fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).take(160).collect()
}
