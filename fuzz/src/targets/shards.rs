//! A folder of prepared data one of whose files was replaced: opened, verified, read, and cut into samples.

use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_data::{Cut, DataError, Dataset, Packing, Prepared, Source, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILES: [&str; 4] = ["manifest.json", "ends.bin", "tokens-00000.bin", "tokenizer/tokenizer.json"];

/// Files whose hash stands in the manifest.
const HASHED: usize = 1;

/// Tokens that are read of a folder at most.
const READ: u64 = 4096;

pub(super) const DEFINITION: Definition = Definition {
    name: "shards",
    form: Form::Named,
    words: &[
        "\"format\"",
        "\"tokenizer\"",
        "\"vocabulary\"",
        "\"end_of_document\"",
        "\"field\"",
        "\"sources\"",
        "\"path\"",
        "\"bytes\"",
        "\"modified\"",
        "\"documents\"",
        "\"empty_documents\"",
        "\"tokens\"",
        "\"largest_token\"",
        "\"token_bytes\"",
        "\"token_files\"",
        "\"ends_file\"",
        "\"tokenizer_files\"",
        "\"name\"",
        "\"blake3\"",
        "\"ends.bin\"",
        "\"tokens-00000.bin\"",
        "\"tokenizer/tokenizer.json\"",
        "\"../ends.bin\"",
        "\"/dev/zero\"",
        "\"\"",
        "\".\"",
        "2",
        "4",
        "8",
    ],
    inputs,
    target: |folder: &Path| Box::new(Shards::new(folder)),
    for_tests: false,
};

/// Prepares three short documents in `root/data`.
fn prepare(root: &Path) -> PathBuf {
    for (name, text) in [("a.txt", "so much depends"), ("b.txt", "upon"), ("c.txt", "a red wheel barrow")] {
        fs::write(root.join(name), text).expect("the scratch folder can be written");
    }
    let source = Source { globs: vec!["*.txt".into()], base: root.into(), field: "text".into() };
    let folder = root.join("data");
    let tokenizer = Tokenizer::load("bytes").expect("it is built in");
    source.prepare_into(&tokenizer, &folder, &mut |_| {}).expect("short texts can be prepared");
    folder
}

/// Every file.
fn inputs() -> Vec<Vec<u8>> {
    let root = tempfile::tempdir().expect("there is room for a small folder");
    let folder = prepare(root.path());
    let named = |name: &&str| {
        let content = fs::read(folder.join(name)).expect("it was prepared");
        [format!("{name}\n").into_bytes(), content].concat()
    };
    FILES.iter().map(named).collect()
}

struct Shards {
    folder: PathBuf,
    /// Contents of the files.
    whole: [Vec<u8>; 4],
}

impl Shards {
    fn new(root: &Path) -> Self {
        let folder = prepare(root);
        let whole = FILES.map(|name| fs::read(folder.join(name)).expect("it was prepared"));
        Self { folder, whole }
    }

    fn put(&self, file: usize, content: &[u8]) {
        fs::write(self.folder.join(FILES[file]), content).expect("the scratch folder can be written");
    }

    /// Reads all that a run would.
    fn read(&self) -> Result<(), DataError> {
        let prepared = Arc::new(Prepared::open(&self.folder)?);
        let end = prepared.extent(prepared.documents() - 1).end;
        let mut tokens = vec![0; end.min(READ) as usize];
        prepared.copy(0, &mut tokens)?;
        prepared.tokenizer()?;
        for packing in [Packing::Packed, Packing::Documents] {
            let cut = Cut { sequence_length: 4, packing, validation: 0.3, seed: 1 };
            let dataset = Dataset::new(vec![(prepared.clone(), 1.0)], None, cut)?;
            let (mut tokens, mut targets, mut positions) = ([0; 4], [0; 4], [0; 4]);
            for sample in [0, 1, 1000] {
                dataset.fill_train(sample, &mut tokens, &mut targets, &mut positions)?;
            }
        }
        prepared.verify(&mut |_| {})
    }
}

impl Target for Shards {
    fn run(&mut self, input: &[u8]) -> Outcome {
        let line = input.iter().position(|b| *b == b'\n').unwrap_or(input.len());
        let content = input.get(line + 1..).unwrap_or_default();
        let Some(file) = FILES.iter().position(|name| name.as_bytes() == &input[..line]) else {
            return Outcome::Refused("no such file".into());
        };
        self.put(file, content);
        let read = self.read();
        self.put(file, &self.whole[file]);
        if file >= HASHED {
            let same = content == self.whole[file];
            assert_eq!(read.is_ok(), same, "damage of {} was not told from it as it was", FILES[file]);
        }
        Outcome::of(read)
    }

    fn allowance(&self, len: usize) -> usize {
        // Hashing reads by blocks of a megabyte.
        (8 << 20) + 64 * len
    }
}
