//! The inputs of a run: first the corpus, then its mutations, each a function of its number.

use crate::mutate::mutation;
use crate::random::Random;
use crate::targets::Definition;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The inputs of a target.
#[derive(Debug)]
pub struct Cases {
    definition: &'static Definition,
    seed: u64,
    /// Files of the corpus; what is made in code has none.
    files: Vec<Option<PathBuf>>,
    corpus: Vec<Vec<u8>>,
}

/// One input.
#[derive(Debug)]
pub struct Case {
    /// The file of the corpus that it is, if it is one.
    pub file: Option<PathBuf>,
    /// What is read.
    pub input: Vec<u8>,
}

impl Cases {
    /// The inputs from `folder/NAME` and from the target itself, and their mutations of `seed`.
    ///
    /// # Errors
    /// The folder or a file in it cannot be read, or there is no input at all.
    pub fn new(definition: &'static Definition, folder: &Path, seed: u64) -> io::Result<Self> {
        let folder = folder.join(definition.name);
        let mut paths = Vec::new();
        match fs::read_dir(&folder) {
            Ok(entries) => {
                for entry in entries {
                    paths.push(entry?.path());
                }
            }
            // Some targets make their inputs themselves.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        // The numbers of inputs depend on the order.
        paths.sort();
        let mut corpus = (definition.inputs)();
        let mut files = vec![None; corpus.len()];
        for path in paths {
            corpus.push(fs::read(&path)?);
            files.push(Some(path));
        }
        if corpus.is_empty() {
            return Err(io::Error::other(format!("there is no input in {}", folder.display())));
        }
        Ok(Self { definition, seed, files, corpus })
    }

    /// How many inputs come before the mutations.
    pub fn unchanged(&self) -> u64 {
        self.corpus.len() as u64
    }

    /// Input `number`.
    pub fn case(&self, number: u64) -> Case {
        let index = number as usize;
        if let Some(input) = self.corpus.get(index) {
            return Case { file: self.files[index].clone(), input: input.clone() };
        }
        let mut random = Random::new(self.seed, self.definition.name, number - self.unchanged());
        let d = self.definition;
        Case { file: None, input: mutation(d.form, &self.corpus, d.words, &mut random) }
    }
}
