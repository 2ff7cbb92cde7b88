//! What is fed, a file each.

mod checkpoint;
mod config;
mod faults;
mod index;
mod job;
mod model;
mod profile;
mod safetensors;
mod shards;
mod tokenizer;

use crate::mutate::Form;
use std::path::Path;

/// What came of an input that did not break the law.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was read.
    Accepted,
    /// It was refused, with this text.
    Refused(String),
}

impl Outcome {
    /// Of a reader's result.
    pub(crate) fn of<T, E: ToString>(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Outcome::Accepted,
            Err(e) => Outcome::Refused(e.to_string()),
        }
    }
}

/// Something that reads files.
pub trait Target {
    /// Has it read an input.
    ///
    /// # Panics
    /// When the input breaks the law.
    fn run(&mut self, input: &[u8]) -> Outcome;

    /// Bytes that an input of this length may have allocated at a time, where that is known better than by the
    /// memory limit.
    fn allowance(&self, len: usize) -> usize {
        let _ = len;
        usize::MAX
    }
}

/// A target before it is made.
#[derive(Debug)]
pub struct Definition {
    /// Name, and name of the corpus's folder.
    pub name: &'static str,
    /// What inputs consist of.
    pub form: Form,
    /// Words that mean something to the reader.
    pub words: &'static [&'static str],
    /// Inputs that are made rather than kept in files, since they change with the program.
    pub inputs: fn() -> Vec<Vec<u8>>,
    /// Makes the target; it may write files into the folder.
    pub target: fn(&Path) -> Box<dyn Target>,
    /// Whether it is there to test the fuzz program itself.
    pub for_tests: bool,
}

/// All targets.
pub static TARGETS: &[Definition] = &[
    config::DEFINITION,
    safetensors::DEFINITION,
    index::DEFINITION,
    tokenizer::DEFINITION,
    job::DEFINITION,
    profile::DEFINITION,
    checkpoint::DEFINITION,
    shards::DEFINITION,
    faults::DEFINITION,
];
