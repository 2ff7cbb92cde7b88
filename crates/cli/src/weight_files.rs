//! The weight files of a model folder, by their headers: names, types and shapes of tensors, no values.

use memwall_checkpoint::{CheckpointError, TensorFile};
use memwall_model::ModelSpec;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// One file.
#[derive(Debug)]
pub(crate) struct WeightFile {
    /// Name in the folder.
    pub(crate) name: String,
    /// Name, type and dims of each tensor.
    pub(crate) tensors: Vec<(String, String, Vec<usize>)>,
}

impl WeightFile {
    /// Number of tensors of each type.
    pub(crate) fn types(&self) -> BTreeMap<&str, usize> {
        let mut types = BTreeMap::new();
        for (_, t, _) in &self.tensors {
            *types.entry(t.as_str()).or_default() += 1;
        }
        types
    }
}

/// All files of a folder.
#[derive(Debug)]
pub(crate) struct WeightFiles {
    pub(crate) files: Vec<WeightFile>,
}

impl WeightFiles {
    /// The headers of `model.safetensors`, or of the files that `model.safetensors.index.json` names; `None` where
    /// the folder has neither.
    ///
    /// # Errors
    /// A file cannot be read or is malformed.
    pub(crate) fn find(folder: &Path) -> Result<Option<Self>, CheckpointError> {
        const ONE: &str = "model.safetensors";
        let index = folder.join("model.safetensors.index.json");
        let names = if folder.join(ONE).exists() {
            BTreeSet::from([ONE.to_owned()])
        } else if index.exists() {
            indexed(&index)?
        } else {
            return Ok(None);
        };
        let files = names.into_iter().map(|name| {
            let tensors = TensorFile::open(&folder.join(&name))?.tensors();
            Ok(WeightFile { name, tensors })
        });
        Ok(Some(Self { files: files.collect::<Result<_, CheckpointError>>()? }))
    }

    /// What keeps these files from being the weights of `spec`; at most eight problems, and how many more.
    pub(crate) fn problems(&self, spec: &ModelSpec) -> Vec<String> {
        let mut problems = Vec::new();
        let mut found: BTreeMap<&str, &[usize]> = BTreeMap::new();
        for (file, (name, _, shape)) in self.files.iter().flat_map(|f| f.tensors.iter().map(move |t| (f, t)))
        {
            if found.insert(name, shape).is_some() {
                problems.push(format!("{name} is in {} and in another file too", file.name));
            }
        }
        for p in &spec.params {
            match found.remove(p.name.as_str()) {
                None => problems.push(format!("{} is missing", p.name)),
                Some(shape) if *shape != *p.shape => {
                    problems.push(format!("{} has shape {shape:?}, not {:?}", p.name, p.shape));
                }
                Some(_) => {}
            }
        }
        // Some exporters store what is computed (angles) or shared (a tied head) as well.
        let ignorable = |name: &str| {
            name.ends_with("rotary_emb.inv_freq") || (spec.config.tied && name == "lm_head.weight")
        };
        let extra = found.into_keys().filter(|name| !ignorable(name));
        problems.extend(extra.map(|name| format!("{name} is not a parameter of this model")));
        let more = problems.len().saturating_sub(8);
        problems.truncate(8);
        problems.extend((more > 0).then(|| format!("and {more} more")));
        problems
    }
}

/// The files that an index names.
fn indexed(path: &Path) -> Result<BTreeSet<String>, CheckpointError> {
    let bad = |reason: String| CheckpointError::Malformed { path: path.into(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| bad(format!("cannot be read: {e}")))?;
    let index: Value = serde_json::from_str(&text).map_err(|e| bad(format!("is not JSON: {e}")))?;
    let map = index["weight_map"].as_object().filter(|map| !map.is_empty());
    let map = map.ok_or_else(|| bad("has no \"weight_map\" from tensors to files".into()))?;
    map.values()
        .map(|name| {
            // A name with a folder in it could lead anywhere.
            let plain = name.as_str().filter(|name| Path::new(name).file_name().is_some_and(|n| n == *name));
            plain.map(str::to_owned).ok_or_else(|| bad(format!("names {name} as a file of the folder")))
        })
        .collect()
}
