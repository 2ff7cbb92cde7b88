//! Checkpoints in other parts, and checkpoints that a run begins with.

use crate::disk::Disk;
use crate::error::{At, CheckpointError};
use crate::manifest::{FORMAT, Manifest, RunState, SavedBy, SavedSchedule};
use crate::model_folder::ModelWeights;
use crate::parts::{KINDS, Share, file_name, file_names, share};
use crate::saved::SavedState;
use crate::store::seal;
use crate::write::{Parts, ReadShared, records};
use memwall_engine::{FlatLayout, Part, Schedule};
use memwall_model::{ModelSpec, ParamId};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Writes a checkpoint again, in `parts` parts, into a folder that is empty or not there. What it holds is the same to the
/// bit, and so is what a run goes on with.
///
/// # Errors
/// The folder is not empty, or the disk's; then nothing is left of it.
pub fn convert(
    disk: &Disk,
    from: &SavedState,
    to: &Path,
    parts: usize,
    threads: usize,
) -> Result<Manifest, CheckpointError> {
    let before = from.manifest();
    let zero = if parts == 1 { 0 } else { before.layout.zero.max(1) };
    let layout = SavedBy { dp_replicate: 1, dp_shard: parts, zero };
    let manifest = Manifest { layout, files: Vec::new(), ..before.clone() };
    write(disk, from.spec(), to, manifest, parts, threads, &|part, param, first, values| {
        from.read_part(part, param, first, values)
    })
}

/// Writes the checkpoint of step 0 of a run that begins with a model folder's weights. Its moments are zero.
///
/// # Errors
/// The folder is not empty, the disk's, or the model cannot be read; then nothing is left of it.
pub fn begin_with(
    disk: &Disk,
    model: &ModelWeights<'_>,
    to: &Path,
    run: Beginning,
    parts: usize,
    threads: usize,
) -> Result<Manifest, CheckpointError> {
    let spec = model.spec();
    let manifest = Manifest {
        format: FORMAT,
        state: RunState { step: 0, samples: 0, tokens: 0, data: String::new(), job: run.job, code: run.code },
        seed: run.seed,
        schedule: SavedSchedule::of(&run.schedule, 0),
        layout: SavedBy { dp_replicate: 1, dp_shard: parts, zero: u8::from(parts > 1) },
        model: spec.config.to_json(),
        frozen: spec.params.iter().filter(|p| p.frozen).map(|p| p.name.clone()).collect(),
        files: Vec::new(),
    };
    write(disk, spec, to, manifest, parts, threads, &|part, param, first, values| match part {
        Part::Weight => model.read(param, first, values),
        Part::FirstMoment | Part::SecondMoment => {
            values.fill(0.0);
            Ok(())
        }
    })
}

/// What a run that is to begin is.
#[derive(Debug, Clone)]
pub struct Beginning {
    /// The resolved job.
    pub job: String,
    /// The program that writes the checkpoint.
    pub code: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Learning rates.
    pub schedule: Schedule,
}

/// Fills elements of a part of a parameter's state from the one given on.
type ReadPart<'a> = &'a (dyn Fn(Part, ParamId, usize, &mut [f32]) -> Result<(), CheckpointError> + Sync);

fn write(
    disk: &Disk,
    spec: &ModelSpec,
    to: &Path,
    manifest: Manifest,
    parts: usize,
    threads: usize,
    read: ReadPart<'_>,
) -> Result<Manifest, CheckpointError> {
    let parts = parts.max(1);
    disk.make_folder(to)?;
    if fs::read_dir(to).at("read the folder", to)?.next().is_some() {
        let reason = "is not empty, and files of two checkpoints must not mix; give a new folder";
        return Err(CheckpointError::malformed(to, reason));
    }
    let layout = FlatLayout::new(spec, parts);
    let written = (0..parts)
        .try_for_each(|index| {
            let files: Vec<(PathBuf, Vec<Share>)> = KINDS
                .iter()
                .map(|(base, kind)| {
                    (to.join(file_name(base, index, parts)), share(spec, &layout, kind, index, parts))
                })
                .collect();
            let shares: Vec<&Share> = files.iter().flat_map(|(_, shares)| shares).collect();
            let read: ReadShared<'_> = &|number, first, values| {
                let s = shares[number];
                read(s.part, s.param, s.elements.start + first, values)
            };
            Parts { disk, files: &files, threads }.write(read)
        })
        .and_then(|()| {
            let files = records(disk, to, &file_names(parts), Duration::ZERO, &AtomicBool::new(false))?;
            let manifest = Manifest { files, ..manifest };
            seal(disk, to, &manifest)?;
            Ok(manifest)
        });
    if written.is_err() {
        // It was empty, so all that is in it is from here. What failed first is what is told.
        let _ = disk.remove_folder(to);
    }
    written
}
