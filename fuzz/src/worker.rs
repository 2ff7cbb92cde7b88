//! A worker: runs inputs one after another, and says in a file which one it is at.

use crate::allocator;
use crate::case::Cases;
use crate::targets::{Definition, Outcome};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Address space beyond the memory limit: program, stacks, the device's region.
const MAPPED: u64 = 4 << 30;

/// What a worker is to do.
#[derive(Debug, Clone)]
pub struct Work {
    /// What is fed.
    pub definition: &'static Definition,
    /// The inputs.
    pub inputs: Inputs,
    /// Bytes that an input may have allocated at a time.
    pub memory: u64,
    /// Where the worker says how far it is.
    pub progress: PathBuf,
}

/// What a worker feeds.
#[derive(Debug, Clone)]
pub enum Inputs {
    /// Mutations: numbers `.from` to `.to` of a seed over a corpus.
    Numbers {
        /// Folder of all corpora.
        corpus: PathBuf,
        /// Seed of the mutations.
        seed: u64,
        /// First number.
        from: u64,
        /// Number after the last.
        to: u64,
    },
    /// One file.
    File(PathBuf),
}

/// How far a worker is, as its file says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of the input that it is at.
    pub number: u64,
    /// Inputs that were accepted.
    pub accepted: u64,
    /// Inputs that were refused.
    pub refused: u64,
    /// Different refusals, numbers and names apart.
    pub kinds: u64,
}

impl Progress {
    /// Reads what a worker wrote last.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut b = [0; 32];
        File::open(path)?.read_exact_at(&mut b, 0)?;
        let word = |i: usize| b[i * 8..].first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
        Ok(Self { number: word(0), accepted: word(1), refused: word(2), kinds: word(3) })
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let words = [self.number, self.accepted, self.refused, self.kinds].map(u64::to_le_bytes);
        file.write_all_at(words.as_flattened(), 0)
    }
}

/// Runs inputs until one breaks the law, which ends the process; or all are done.
///
/// # Errors
/// The corpus cannot be read, or the progress not written.
pub fn work(work: &Work) -> io::Result<()> {
    allocator::limit_address_space(work.memory.saturating_add(MAPPED));
    let scratch = scratch()?;
    let mut target = (work.definition.target)(scratch.path());
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&work.progress)?;
    quiet_panics();
    let (cases, numbers) = match &work.inputs {
        Inputs::Numbers { corpus, seed, from, to } => {
            (Some(Cases::new(work.definition, corpus, *seed)?), *from..*to)
        }
        Inputs::File(_) => (None, 0..1),
    };
    let mut kinds = HashSet::new();
    let mut progress = Progress::default();
    for number in numbers {
        progress.number = number;
        progress.write(&file)?;
        let input = match (&cases, &work.inputs) {
            (Some(cases), _) => cases.case(number).input,
            (None, Inputs::File(path)) => std::fs::read(path)?,
            (None, Inputs::Numbers { .. }) => continue,
        };
        let before = allocator::begin(work.memory as usize);
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| target.run(&input)));
        let peak = allocator::end(before);
        let allowed = target.allowance(input.len());
        match outcome {
            Err(_) => fail(&last_panic()),
            Ok(Outcome::Refused(text)) if text.trim().is_empty() => fail("refused without a text"),
            Ok(_) if peak > allowed => {
                fail(&format!(
                    "had {peak} bytes allocated for {} bytes of input; {allowed} are allowed",
                    input.len()
                ));
            }
            Ok(Outcome::Accepted) => progress.accepted += 1,
            Ok(Outcome::Refused(text)) => {
                progress.refused += 1;
                kinds.insert(kind(&text));
                progress.kinds = kinds.len() as u64;
                if let Inputs::File(_) = work.inputs {
                    println!("refused: {text}");
                }
            }
        }
    }
    progress.write(&file)?;
    // Without its own cleaning up, the folder would stay.
    drop(target);
    scratch.close()
}

/// A folder for the files that targets read; in memory where the system offers that.
fn scratch() -> io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    if memory.is_dir() {
        builder.tempdir_in(memory).or_else(|_| builder.tempdir())
    } else {
        builder.tempdir()
    }
}

/// Ends the process as a panic does.
fn fail(text: &str) -> ! {
    eprintln!("{text}");
    std::process::exit(101)
}

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Keeps what panics say instead of printing it: a library that is caught panicking would fill the screen.
fn quiet_panics() {
    panic::set_hook(Box::new(|info| {
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = info.to_string();
        }
    }));
}

fn last_panic() -> String {
    LAST_PANIC.lock().map(|p| p.clone()).unwrap_or_default()
}

/// What is left of a text without numbers and quoted parts.
fn kind(text: &str) -> String {
    let mut quoted = false;
    let plain = text.chars().filter(|c| {
        quoted ^= matches!(c, '"' | '`');
        !quoted && c.is_alphabetic()
    });
    plain.take(120).collect()
}
