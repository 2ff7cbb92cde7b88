//! Writing a Hugging Face model folder that transformers loads as it is.

use crate::disk::Disk;
use crate::error::{At, CheckpointError};
use crate::float::FloatType;
use crate::index::INDEX;
use crate::model_folder::{GENERATION, SINGLE};
use crate::tensor_file::Values;
use crate::tensor_write::{self, Encoding, Entry};
use memwall_engine::{Part, Rank};
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::Device;
use serde_json::{Map, Value, json};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// How a model is exported.
#[derive(Debug, Clone)]
pub struct Export<'a> {
    /// Type of the weights in the files.
    pub dtype: FloatType,
    /// Bytes of tensors in one file at most; a tensor that is larger has a file of its own. Weights that fit one file
    /// are in `model.safetensors`, others in several with an index.
    pub max_shard_bytes: u64,
    /// The token that ends a document, for a model whose config names none.
    pub end_of_document: Option<u32>,
    /// Keys of the generation_config.json of the model that was trained further; without them, the token ids of the
    /// config are written.
    pub generation_config: Option<&'a Map<String, Value>>,
}

impl Export<'_> {
    /// Bytes of tensors in one file that are usual on the Hub.
    pub const USUAL_SHARD: u64 = 5_000_000_000;
}

/// Where the weights of an export come from.
pub trait Source {
    /// The model.
    fn spec(&self) -> &ModelSpec;

    /// Fills a piece of a parameter, as f32, from its element number `first` on.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&mut self, param: ParamId, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError>;
}

/// A rank that holds all weights.
impl<D: Device> Source for &Rank<D> {
    fn spec(&self) -> &ModelSpec {
        Rank::spec(self)
    }

    fn read(&mut self, param: ParamId, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        let part = self.part(Part::Weight, param).part(first, piece.len());
        self.device().read_floats(part, piece);
        Ok(())
    }
}

/// Writes the weights of a source, config.json and generation_config.json into `folder`, which is empty or not there.
/// Each file is there whole or not at all, and config.json comes last. After an error the files that were written are
/// deleted again as far as the disk allows it.
///
/// # Errors
/// The folder is not empty, the disk's, or a weight that is not finite in the type of the files: a tensor and element
/// are named.
pub fn write_model(
    disk: &Disk,
    folder: &Path,
    source: &mut dyn Source,
    export: &Export<'_>,
) -> Result<(), CheckpointError> {
    disk.make_folder(folder)?;
    if fs::read_dir(folder).at("read the folder", folder)?.next().is_some() {
        let reason = "is not empty, and files of two models must not mix; give a new folder";
        return Err(CheckpointError::malformed(folder, reason));
    }
    let written = write_files(disk, folder, source, export);
    if written.is_err() {
        // The folder was empty, so all that is in it is from here. What failed first is what is told.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let _ = disk.remove_file(&entry.path());
        }
    }
    written
}

fn write_files(
    disk: &Disk,
    folder: &Path,
    source: &mut dyn Source,
    export: &Export<'_>,
) -> Result<(), CheckpointError> {
    let entries = entries(source.spec());
    let shards = shards(&entries, export);
    let encoding = Encoding { dtype: export.dtype, values: Values::Finite };
    let mut weight_map = Map::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => SINGLE.to_owned(),
            n => format!("model-{:05}-of-{n:05}.safetensors", number + 1),
        };
        let partial = folder.join(format!("{name}.partial"));
        let read: tensor_write::Read<'_> =
            &mut |number, first, piece| source.read(ParamId(shard.start + number), first, piece);
        tensor_write::write(disk, &partial, encoding, &entries[shard.clone()], read)?;
        disk.rename(&partial, &folder.join(&name))?;
        weight_map.extend(shard.clone().map(|i| (entries[i].name.clone(), name.clone().into())));
    }
    let put = |name: &str, value: &Value| disk.replace(&folder.join(name), format!("{value:#}\n").as_bytes());
    if shards.len() > 1 {
        let total: u64 = entries.iter().map(|e| e.bytes(export.dtype)).sum();
        put(INDEX, &json!({"metadata": {"total_size": total}, "weight_map": weight_map}))?;
    }
    let config = source.spec().config.to_export_json(export.dtype.name(), export.end_of_document);
    put(GENERATION, &generation(&config, export))?;
    put("config.json", &config)
}

/// All parameters, each once: of a tied head there is no copy.
pub(crate) fn entries(spec: &ModelSpec) -> Vec<Entry> {
    spec.params.iter().map(|p| Entry { name: p.name.clone(), shape: p.shape.clone() }).collect()
}

/// Which parameters go into which file: in order, as many as fit.
fn shards(entries: &[Entry], export: &Export<'_>) -> Vec<Range<usize>> {
    let mut shards: Vec<Range<usize>> = Vec::new();
    let mut room = 0;
    for (i, entry) in entries.iter().enumerate() {
        let bytes = entry.bytes(export.dtype);
        match shards.last_mut().filter(|_| bytes <= room) {
            Some(shard) => shard.end = i + 1,
            None => {
                shards.push(i..i + 1);
                room = export.max_shard_bytes;
            }
        }
        room = room.saturating_sub(bytes);
    }
    shards
}

/// The token ids that generation starts, ends and pads with, as config.json has them.
fn generation(config: &Value, export: &Export<'_>) -> Value {
    if let Some(keys) = export.generation_config {
        return Value::Object(keys.clone());
    }
    let ids = ["bos_token_id", "eos_token_id", "pad_token_id"].into_iter();
    let named =
        ids.filter_map(|key| Some((key.to_owned(), config.get(key).filter(|id| !id.is_null())?.clone())));
    Value::Object(named.collect())
}
