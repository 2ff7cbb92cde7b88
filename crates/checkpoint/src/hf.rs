//! Hugging Face model folders.

use crate::disk::Disk;
use crate::error::CheckpointError;
use crate::tensor_file::{self, Entry, TensorFile};
use memwall_engine::{Parameters, Part, Rank};
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::SliceMut;
use memwall_tensor::device::Device;
use std::path::Path;

/// The weights of a model folder, checked against a spec, open for reading.
#[derive(Debug)]
pub struct ModelFile(TensorFile);

pub(crate) fn entries(spec: &ModelSpec) -> Vec<Entry> {
    spec.params.iter().map(|p| Entry { name: p.name.clone(), shape: p.shape.clone() }).collect()
}

impl ModelFile {
    /// Opens `folder/model.safetensors` and checks that it holds exactly the parameters of `spec`.
    ///
    /// # Errors
    /// The file is missing, malformed, or holds another model; tensors are named.
    pub fn open(folder: &Path, spec: &ModelSpec) -> Result<Self, CheckpointError> {
        let path = folder.join("model.safetensors");
        if !path.exists() && folder.join("model.safetensors.index.json").exists() {
            let reason = "is missing: weights in several files with an index are not read yet; save the model \
                          as one file (save_pretrained(..., max_shard_size=\"100GB\"))";
            return Err(CheckpointError::malformed(path, reason));
        }
        let file = TensorFile::open(&path)?;
        // Some exporters store what is computed (angles) or shared (a tied head) as well.
        let tied = spec.config.tied;
        file.require(&entries(spec), |name| {
            name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
        })?;
        Ok(Self(file))
    }

    /// Reads every parameter of `spec` into its place.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load<D: Device>(
        &self,
        spec: &ModelSpec,
        into: &mut impl Parameters<D>,
    ) -> Result<(), CheckpointError> {
        for (i, p) in spec.params.iter().enumerate() {
            let (device, dst) = into.parameter_mut(ParamId(i));
            self.read(&p.name, device, dst)?;
        }
        Ok(())
    }

    /// Reads one parameter into its place on a device.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read<D: Device>(
        &self,
        name: &str,
        device: &D,
        dst: SliceMut<'_, D::Buf>,
    ) -> Result<(), CheckpointError> {
        self.0.read(name, device, dst)
    }
}

/// Writes the weights of a rank as `folder/model.safetensors`.
///
/// # Errors
/// The disk's.
pub fn write_model<D: Device>(disk: &Disk, folder: &Path, rank: &Rank<D>) -> Result<(), CheckpointError> {
    write_part(disk, &folder.join("model.safetensors"), rank, &[(Part::Weight, "")]).map(|_| ())
}

/// Writes parts of a rank's state, each under a prefix.
pub(crate) fn write_part<D: Device>(
    disk: &Disk,
    path: &Path,
    rank: &Rank<D>,
    parts: &[(Part, &str)],
) -> Result<crate::FileRecord, CheckpointError> {
    let params = &rank.spec().params;
    let tensors = parts.iter().flat_map(|&(part, prefix)| {
        params.iter().enumerate().map(move |(i, p)| {
            let entry = Entry { name: format!("{prefix}{}", p.name), shape: p.shape.clone() };
            (entry, rank.part(part, ParamId(i)))
        })
    });
    tensor_file::write(disk, path, rank.device(), tensors)
}
