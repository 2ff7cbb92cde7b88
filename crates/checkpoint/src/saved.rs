//! A checkpoint that is open to be read, whatever parts it lies in.

use crate::error::CheckpointError;
use crate::export::Source;
use crate::manifest::Manifest;
use crate::parts::{Whole, by_kind, tensors};
use crate::pieces::Pieces;
use memwall_engine::Part;
use memwall_model::{ModelSpec, ParamId};
use std::path::{Path, PathBuf};

/// A checkpoint that is open to be read. Its tensors' hashes are not looked at: see [`crate::verify`].
#[derive(Debug)]
pub struct SavedState {
    folder: PathBuf,
    manifest: Manifest,
    spec: ModelSpec,
    kinds: Vec<(Vec<Whole>, Pieces)>,
}

impl SavedState {
    /// Opens the checkpoint in a folder.
    ///
    /// # Errors
    /// It is none, or a file is missing or not what was written as far as sizes and headers tell.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(folder)?;
        if let Some(problem) = manifest.misplaced(folder, None)?.into_iter().next() {
            return Err(problem);
        }
        let spec = manifest.spec(folder)?;
        let kinds = by_kind(&manifest.files)
            .map(|(kind, records)| {
                let wholes = tensors(&spec, kind);
                let pieces = Pieces::open(folder, records, &wholes)?;
                Ok((wholes, pieces))
            })
            .collect::<Result<_, CheckpointError>>()?;
        Ok(Self { folder: folder.into(), manifest, spec, kinds })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Its tensors, weights first: names and dims.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.kinds.iter().flat_map(|(wholes, _)| wholes).map(|w| (&*w.entry.name, &*w.entry.shape))
    }

    /// Reads a tensor's elements from number `first` on. Several threads may read.
    ///
    /// # Errors
    /// There is no such tensor, or its file cannot be read.
    pub fn read(&self, name: &str, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        let with = self.kinds.iter().find(|(_, pieces)| !pieces.parts_of(name).is_empty());
        match with {
            Some((_, pieces)) => pieces.read(name, first, piece),
            None => Err(CheckpointError::WrongModel {
                path: self.folder.clone(),
                reason: format!("{name} is missing"),
            }),
        }
    }

    /// The same for a part of a parameter's state.
    pub(crate) fn read_part(
        &self,
        part: Part,
        param: ParamId,
        first: usize,
        piece: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let all = self.kinds.iter().flat_map(|(wholes, _)| wholes);
        let whole = all.into_iter().find(|w| (w.part, w.param) == (part, param));
        self.read(whole.map_or("", |w| &w.entry.name), first, piece)
    }
}

impl Source for &SavedState {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn read(&mut self, param: ParamId, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        self.read_part(Part::Weight, param, first, piece)
    }
}
