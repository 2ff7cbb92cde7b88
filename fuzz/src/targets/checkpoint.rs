//! A checkpoint one of whose files was replaced: as damage does it, or by someone who makes the manifest fit.

use super::model::{device, spec};
use super::safetensors::WORDS;
use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_checkpoint::{Disk, FileRecord, Manifest, RunState, Store};
use memwall_comm::Groups;
use memwall_engine::{AdamWSettings, Decay, Keep, Precision, Rank, Schedule, Settings, Zero};
use memwall_tensor::Cpu;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const FILES: [&str; 3] = [Manifest::NAME, "weights.safetensors", "optimizer.safetensors"];

/// Before the name of a file: it stands in the folder as it is.
const RAW: &str = "raw ";
/// The manifest says what the files are, and has its own hash.
const SEALED: &str = "sealed ";

pub(super) const DEFINITION: Definition = Definition {
    name: "checkpoint",
    form: Form::Named,
    words: WORDS,
    inputs,
    target: |folder: &Path| Box::new(Checkpoint::new(folder)),
    for_tests: false,
};

fn rank() -> Rank<Cpu> {
    let settings = Settings {
        precision: Precision::F32,
        gradients: Precision::F32,
        micro_batch: 1,
        micro_batches: 1,
        sequence: 4,
        deterministic: false,
        zero: Zero::None,
        clip: None,
        seed: 1,
        snapshot: 0,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, last: 1e-2, warmup: 0, steps: 9, decay: Decay::Constant },
    };
    let mut rank = Rank::new(device(), Groups::solo(), spec(), settings).expect("a small model fits");
    rank.initialize();
    rank
}

/// Saves a checkpoint of step 0.
fn save(store: &Store, rank: &mut Rank<Cpu>) -> PathBuf {
    let job = "[train]\nsteps = 1\n".into();
    let state = RunState { step: 0, samples: 0, tokens: 0, data: "d".into(), job, code: "c".into() };
    store.save(rank, &state).expect("the scratch folder can be written")
}

/// Every file of a checkpoint, as it is and to be sealed.
fn inputs() -> Vec<Vec<u8>> {
    let root = tempfile::tempdir().expect("there is room for a small folder");
    let folder = save(&Store::new(root.path(), 1, Disk::default()), &mut rank());
    let named = |mode: &str, name: &str| {
        let content = fs::read(folder.join(name)).expect("it was saved");
        [format!("{mode}{name}\n").into_bytes(), content].concat()
    };
    FILES.iter().flat_map(|name| [named(RAW, name), named(SEALED, name)]).collect()
}

struct Checkpoint {
    store: Store,
    rank: Rank<Cpu>,
    folder: PathBuf,
    manifest: Manifest,
    /// Contents of the files.
    whole: [Vec<u8>; 3],
}

impl Checkpoint {
    fn new(root: &Path) -> Self {
        let store = Store::new(root, 1, Disk::default());
        let mut rank = rank();
        let folder = save(&store, &mut rank);
        let whole = FILES.map(|name| fs::read(folder.join(name)).expect("it was saved"));
        let manifest = Manifest::read(&folder).expect("it was saved");
        Self { store, rank, folder, manifest, whole }
    }

    fn put(&self, file: usize, content: &[u8]) {
        fs::write(self.folder.join(FILES[file]), content).expect("the scratch folder can be written");
    }

    /// Puts a file, and a manifest that fits it. A manifest that is not one cannot be sealed.
    fn put_sealed(&self, file: usize, content: &[u8]) {
        let mut manifest = self.manifest.clone();
        if file > 0 {
            self.put(file, content);
            match FileRecord::of(&self.folder.join(FILES[file])) {
                Ok(record) => manifest.files[file - 1] = record,
                Err(_) => manifest.files[file - 1].size = content.len() as u64,
            }
        } else {
            let held = serde_json::from_slice::<Value>(content).map(|v| v["manifest"].clone());
            match held.and_then(serde_json::from_value) {
                Ok(other) => manifest = other,
                Err(_) => return self.put(file, content),
            }
        }
        self.put(0, manifest.to_text().expect("a manifest has a text").as_bytes());
    }
}

impl Target for Checkpoint {
    fn run(&mut self, input: &[u8]) -> Outcome {
        let line = input.iter().position(|b| *b == b'\n').unwrap_or(input.len());
        let (name, content) = (&input[..line], input.get(line + 1..).unwrap_or_default());
        let Ok(name) = std::str::from_utf8(name) else { return Outcome::Refused("no such file".into()) };
        let find = |name: &str| FILES.iter().position(|f| *f == name);
        let (raw, sealed) = (name.strip_prefix(RAW).and_then(find), name.strip_prefix(SEALED).and_then(find));
        match (raw, sealed) {
            (Some(file), _) => self.put(file, content),
            (_, Some(file)) => self.put_sealed(file, content),
            _ => return Outcome::Refused("no such file".into()),
        }
        let loaded = self.store.load(0, &mut self.rank);
        if let Some(file) = raw {
            let same = content == self.whole[file];
            assert_eq!(loaded.is_ok(), same, "damage of {name} was not told from {name} as it was saved");
        }
        for file in [0].into_iter().chain(raw).chain(sealed) {
            self.put(file, &self.whole[file]);
        }
        Outcome::of(loaded)
    }

    fn allowance(&self, len: usize) -> usize {
        (1 << 20) + 64 * len
    }
}
