//! The checkpoints of one run: save, find, load, and keep only the last few.

use crate::disk::Disk;
use crate::error::{At, CheckpointError};
use crate::export::{Source, entries};
use crate::float::FloatType;
use crate::manifest::{FORMAT, FileRecord, Manifest, RunState};
use crate::names;
use crate::pieces::Pieces;
use crate::tensor_file::{TensorFile, Values};
use crate::tensor_write::{self, Encoding, Entry};
use memwall_engine::{Part, Rank};
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::Device;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

const WEIGHTS: &str = "weights";
const OPTIMIZER: &str = "optimizer";
/// Parts of a rank's state, each with the prefix of its names.
type Parts = [(Part, &'static str)];
const WEIGHT: [(Part, &str); 1] = [(Part::Weight, "")];
const MOMENTS: [(Part, &str); 2] = [(Part::FirstMoment, "exp_avg."), (Part::SecondMoment, "exp_avg_sq.")];

/// The folder `checkpoints/` of a run.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    keep: usize,
    disk: Disk,
}

impl Store {
    /// The checkpoints under `root`, of which the last `keep` are kept.
    pub fn new(root: impl Into<PathBuf>, keep: usize, disk: Disk) -> Self {
        Self { root: root.into(), keep: keep.max(1), disk }
    }

    fn folder(&self, step: u64) -> PathBuf {
        self.root.join(format!("step-{step:08}"))
    }

    /// Steps of all folders, ascending, complete or not.
    fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let entries = match fs::read_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at("read the folder", &self.root)?,
        };
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.at("read the folder", &self.root)?.file_name();
            let step = name.to_str().and_then(|n| n.strip_prefix("step-")?.parse::<u64>().ok());
            steps.extend(step.filter(|s| self.folder(*s).file_name() == Some(&name)));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    fn complete(&self, step: u64) -> bool {
        self.folder(step).join(Manifest::NAME).is_file()
    }

    /// The step of the last complete checkpoint.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn latest(&self) -> Result<Option<u64>, CheckpointError> {
        Ok(self.steps()?.into_iter().rev().find(|&s| self.complete(s)))
    }

    /// Saves a rank, or with the others of its world what they have together: each its own part. What is there of the same
    /// step, an earlier save that was cut off, is replaced; then checkpoints beyond the last few are deleted.
    ///
    /// # Errors
    /// The disk's; other ranks do not come along. The checkpoints that were complete before still are.
    pub fn save<D: Device>(&self, rank: &mut Rank<D>, state: &RunState) -> Result<PathBuf, CheckpointError> {
        rank.begin_checkpoint();
        let folder = self.folder(state.step);
        if self.complete(state.step) && Manifest::read(&folder).is_ok_and(|m| m.state == *state) {
            return Ok(folder);
        }
        let leads = rank.groups().rank == 0;
        if leads {
            self.delete(state.step)?;
            self.disk.make_folder(&folder)?;
            self.disk.sync_folder(&self.root)?;
        }
        together(rank)?;
        let (part, parts) = rank.share();
        let names = file_names(parts);
        // Of replicas, which hold the same, the first saves.
        if rank.groups().replicate.rank() == 0 {
            for (kind, parts) in [(0, &WEIGHT[..]), (1, &MOMENTS[..])] {
                let path = folder.join(&names[kind * names.len() / 2 + part]);
                let record = write_parts(&self.disk, &path, rank, parts)?;
                self.disk.replace(&record_of(&path), &to_json(&folder, &record)?)?;
            }
        }
        together(rank)?;
        if leads {
            let files: Vec<FileRecord> = names
                .iter()
                .map(|name| {
                    let path = record_of(&folder.join(name));
                    let text = crate::files::read(&path)?;
                    self.disk.remove_file(&path)?;
                    serde_json::from_slice(&text).map_err(|e| {
                        CheckpointError::malformed(&path, format!("is no record of a file: {e}"))
                    })
                })
                .collect::<Result<_, _>>()?;
            let memwall = env!("CARGO_PKG_VERSION").to_owned();
            let manifest = Manifest { format: FORMAT, memwall, state: state.clone(), files };
            let text = manifest
                .to_text()
                .map_err(|e| CheckpointError::malformed(&folder, format!("has no manifest: {e}")))?;
            self.disk.replace(&folder.join(Manifest::NAME), text.as_bytes())?;
            self.prune()?;
        }
        together(rank)?;
        Ok(folder)
    }

    /// Deletes complete checkpoints beyond the last few, and incomplete ones.
    fn prune(&self) -> Result<(), CheckpointError> {
        let (complete, partial): (Vec<u64>, Vec<u64>) =
            self.steps()?.into_iter().partition(|&s| self.complete(s));
        let old = complete.len().saturating_sub(self.keep);
        partial.into_iter().chain(complete[..old].iter().copied()).try_for_each(|s| self.delete(s))
    }

    /// Deletes a checkpoint: first its manifest, so that what is left in between is no checkpoint.
    fn delete(&self, step: u64) -> Result<(), CheckpointError> {
        let folder = self.folder(step);
        self.disk.remove_file(&folder.join(Manifest::NAME))?;
        self.disk.remove_folder(&folder)
    }

    /// Where the run was at a checkpoint, once every file has the recorded size and hash and there are no others.
    ///
    /// # Errors
    /// A file is missing, damaged or does not belong there; it is named.
    pub fn verify(&self, step: u64) -> Result<RunState, CheckpointError> {
        Ok(self.verified(step)?.state)
    }

    fn verified(&self, step: u64) -> Result<Manifest, CheckpointError> {
        let folder = self.folder(step);
        let manifest = Manifest::read(&folder)?;
        manifest.verify(&folder, step, &file_names((manifest.files.len() / 2).max(1)))?;
        Ok(manifest)
    }

    /// Loads a checkpoint into a rank, whatever ranks have saved it: of what the rank holds, it is then what was saved, to the
    /// bit.
    ///
    /// # Errors
    /// A file is missing, damaged or of another model; it is named. The rank may have been written to in part.
    pub fn load<D: Device>(&self, step: u64, rank: &mut Rank<D>) -> Result<RunState, CheckpointError> {
        let manifest = self.verified(step)?;
        let folder = self.folder(step);
        let (weights, optimizer) = manifest.files.split_at(manifest.files.len() / 2);
        load_parts(&folder, weights, rank, &WEIGHT)?;
        load_parts(&folder, optimizer, rank, &MOMENTS)?;
        rank.set_steps_done(manifest.state.step);
        Ok(manifest.state)
    }

    /// The weights of a checkpoint of a model, to be exported.
    ///
    /// # Errors
    /// As of [`Store::load`].
    pub fn weights<'a>(&self, step: u64, spec: &'a ModelSpec) -> Result<SavedWeights<'a>, CheckpointError> {
        let manifest = self.verified(step)?;
        let records: Vec<&FileRecord> = manifest.files[..manifest.files.len() / 2].iter().collect();
        Ok(SavedWeights { pieces: Pieces::open(&self.folder(step), &records, &entries(spec))?, spec })
    }
}

/// The weights in a checkpoint.
#[derive(Debug)]
pub struct SavedWeights<'a> {
    pieces: Pieces,
    spec: &'a ModelSpec,
}

impl Source for SavedWeights<'_> {
    fn spec(&self) -> &ModelSpec {
        self.spec
    }

    fn read(&mut self, param: ParamId, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        self.pieces.read_host(&self.spec.param(param).name, first, piece)
    }
}

/// No rank goes on before all have come so far.
fn together<D: Device>(rank: &mut Rank<D>) -> Result<(), CheckpointError> {
    rank.agree(false).map(drop).map_err(|e| CheckpointError::Ranks { reason: e.to_string() })
}

/// The files of a checkpoint whose state lies in `parts` parts: weights first.
fn file_names(parts: usize) -> Vec<String> {
    let names = |base: &str| {
        (1..=parts)
            .map(|n| match parts {
                1 => format!("{base}.safetensors"),
                _ => format!("{base}-{n:05}-of-{parts:05}.safetensors"),
            })
            .collect::<Vec<_>>()
    };
    [names(WEIGHTS), names(OPTIMIZER)].concat()
}

/// Where a rank tells the first what it has written, until that has written the manifest.
fn record_of(path: &Path) -> PathBuf {
    path.with_extension("record")
}

fn to_json(folder: &Path, record: &FileRecord) -> Result<Vec<u8>, CheckpointError> {
    serde_json::to_vec(record)
        .map_err(|e| CheckpointError::malformed(folder, format!("cannot hold a record of a file: {e}")))
}

/// The tensors of a file of a checkpoint, whole, in order.
fn tensors(spec: &ModelSpec, parts: &Parts) -> Vec<(Part, ParamId, Entry)> {
    let named = |(part, prefix): &(Part, &str)| {
        let (part, prefix) = (*part, *prefix);
        // What is frozen has no moments.
        let params = entries(spec).into_iter().enumerate();
        let params = params.filter(move |(i, _)| part == Part::Weight || !spec.params[*i].frozen);
        params
            .map(|(i, e)| (part, ParamId(i), Entry { name: format!("{prefix}{}", e.name), shape: e.shape }))
            .collect::<Vec<_>>()
    };
    parts.iter().flat_map(named).collect()
}

/// Writes what this rank updates.
fn write_parts<D: Device>(
    disk: &Disk,
    path: &Path,
    rank: &Rank<D>,
    parts: &Parts,
) -> Result<FileRecord, CheckpointError> {
    let (mut written, mut places, mut slices) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (part, param, entry) in tensors(rank.spec(), parts) {
        let (own, held) = (rank.owned(param), rank.held(part, param));
        if own.is_empty() {
            continue;
        }
        places.push((part, param, own.start - held.start));
        if own.len() == entry.len() {
            written.push(entry);
        } else {
            slices.insert(entry.name.clone(), own.start as u64);
            written.push(Entry { shape: vec![own.len()], ..entry });
        }
    }
    let encoding = Encoding { dtype: FloatType::F32, values: Values::Any };
    let record = tensor_write::write(disk, path, encoding, &written, &mut |number, first, piece| {
        let (part, param, at) = places[number];
        let slice = rank.part(part, param).part(at + first, piece.len());
        rank.device().read_floats(slice, piece);
        Ok(())
    })?;
    Ok(FileRecord { slices, ..record })
}

fn load_parts<D: Device>(
    folder: &Path,
    records: &[FileRecord],
    rank: &mut Rank<D>,
    parts: &Parts,
) -> Result<(), CheckpointError> {
    let tensors = tensors(rank.spec(), parts);
    let wanted: Vec<Entry> = tensors.iter().map(|(_, _, e)| e.clone()).collect();
    if let [whole] = records {
        let path = folder.join(&whole.name);
        let file = TensorFile::open(&path)?;
        let held = file.names().filter_map(|n| Some((n, file.info(n)?))).collect();
        names::require(&wanted, &held).map_err(|problems| CheckpointError::wrong_model(&path, &problems))?;
    }
    let pieces = Pieces::open(folder, &records.iter().collect::<Vec<_>>(), &wanted)?;
    for (part, param, entry) in &tensors {
        let held = rank.held(*part, *param);
        let (device, dst) = rank.part_mut(*part, *param);
        if !held.is_empty() {
            pieces.read(&entry.name, held.start, device, dst)?;
        }
    }
    Ok(())
}
