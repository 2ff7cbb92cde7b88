//! Hugging Face model folders: weights in one file or several, checked against a model and read into place.

use crate::error::{CheckpointError, shown};
use crate::export::Source;
use crate::files;
use crate::header::TensorInfo;
use crate::index::{INDEX, Index};
use crate::names::{self, Assignment, Tensors};
use crate::tensor_file::{Elements, TensorFile, Values};
use memwall_engine::Parameters;
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::SliceMut;
use memwall_tensor::device::Device;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Weights in one file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// How text is generated from the model.
pub(crate) const GENERATION: &str = "generation_config.json";

/// The weight files of a model folder: headers that fit their files, and an index that fits the headers.
#[derive(Debug)]
struct WeightFiles {
    /// The one file, or the index.
    path: PathBuf,
    files: Vec<TensorFile>,
    /// Every tensor, and which file holds it.
    tensors: HashMap<String, usize>,
}

impl WeightFiles {
    /// Opens `model.safetensors` if it is there, else the files of `model.safetensors.index.json`; as transformers does.
    /// `None` where the folder has neither.
    ///
    /// # Errors
    /// A file is missing or malformed, or the index does not fit its files; files and tensors are named.
    fn find(folder: &Path) -> Result<Option<Self>, CheckpointError> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if single.exists() {
            let file = TensorFile::open(&single)?;
            let tensors = file.names().map(|n| (n.to_owned(), 0)).collect();
            return Ok(Some(Self { path: single, files: vec![file], tensors }));
        }
        if !index.exists() {
            return Ok(None);
        }
        let (files, tensors) = open_all(folder, &index)?;
        Ok(Some(Self { path: index, files, tensors }))
    }

    fn infos(&self) -> Tensors<'_> {
        self.tensors.iter().filter_map(|(n, f)| Some((&**n, self.files[*f].info(n)?))).collect()
    }
}

/// The weights of a model folder, checked against a spec, open for reading. Elements may be F32, BF16 or F16, each
/// tensor of its own type.
#[derive(Debug)]
pub struct ModelFile {
    files: Vec<TensorFile>,
    /// File and name in it of each parameter.
    places: Vec<(usize, String)>,
    generation: Option<Map<String, Value>>,
}

impl ModelFile {
    /// Opens the weights of `folder`, `model.safetensors` if it is there, else the files of
    /// `model.safetensors.index.json`, as transformers does, and checks that they are exactly the parameters of `spec`. Names may lack the base model's prefix (`model.`, `transformer.`); what is not a parameter but computed
    /// (causal masks, rotary frequencies) is skipped, and so is a tied model's stored head if it equals the embedding
    /// to the bit.
    ///
    /// # Errors
    /// A file is missing, malformed, or holds another model; files and tensors are named.
    pub fn open(folder: &Path, spec: &ModelSpec) -> Result<Self, CheckpointError> {
        let Some(weights) = WeightFiles::find(folder)? else {
            let reason = format!(
                "holds neither {SINGLE} nor {INDEX}; save the model with save_pretrained, which writes them"
            );
            return Err(CheckpointError::malformed(folder, reason));
        };
        let Assignment { names, tied_copy } = names::assign(spec, &weights.infos())
            .map_err(|problems| CheckpointError::wrong_model(&weights.path, &problems))?;
        let WeightFiles { path, files, tensors } = weights;
        if let Some((copy, original)) = tied_copy {
            let elements = |name: &str| files[tensors[name]].elements(name);
            if let Some(index) = difference(elements(&copy)?, elements(&original)?)? {
                let reason = format!(
                    "its config.json says tie_word_embeddings = true, but {copy} is not {original} (they differ \
                     first at element {index}); set tie_word_embeddings to false, or remove {copy}"
                );
                return Err(CheckpointError::WrongModel { path, reason });
            }
        }
        let places = names.into_iter().map(|name| (tensors[&name], name)).collect();
        Ok(Self { places, generation: generation_config(folder)?, files })
    }

    /// Whether `folder` has weights to open, whatever is in them.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(SINGLE).exists() || folder.join(INDEX).exists()
    }

    /// The files that hold the weights.
    pub fn files(&self) -> &[TensorFile] {
        &self.files
    }

    /// The keys of the folder's generation_config.json, if it has one.
    pub fn generation_config(&self) -> Option<&Map<String, Value>> {
        self.generation.as_ref()
    }

    /// Reads what is held of every parameter into its place.
    ///
    /// # Errors
    /// A file cannot be read, or holds a value that is not a finite number.
    pub fn load<D: Device>(&self, into: &mut impl Parameters<D>) -> Result<(), CheckpointError> {
        for i in 0..self.places.len() {
            let held = into.held(ParamId(i));
            let (device, dst) = into.parameter_mut(ParamId(i));
            if !held.is_empty() {
                self.read(ParamId(i), device, held.start, dst)?;
            }
        }
        Ok(())
    }

    /// Reads one parameter's elements from number `first` on, as many as there is room for, into their place on a device, as
    /// f32.
    ///
    /// # Errors
    /// As of [`ModelFile::load`].
    pub fn read<D: Device>(
        &self,
        param: ParamId,
        device: &D,
        first: usize,
        dst: SliceMut<'_, D::Buf>,
    ) -> Result<(), CheckpointError> {
        let (file, name) = &self.places[param.0];
        let whole = self.files[*file].info(name).map_or(0, TensorInfo::len);
        self.files[*file].read_part(name, device, (first, whole), dst, Values::Finite)
    }
}

/// The weights of a model folder, to be read on the host.
#[derive(Debug)]
pub struct ModelWeights<'a> {
    file: &'a ModelFile,
    spec: &'a ModelSpec,
}

impl<'a> ModelWeights<'a> {
    /// Of a folder that was opened for this model.
    pub fn new(file: &'a ModelFile, spec: &'a ModelSpec) -> Self {
        Self { file, spec }
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        self.spec
    }

    /// Reads a parameter's elements from number `first` on, as f32.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, param: ParamId, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        let (file, name) = &self.file.places[param.0];
        self.file.files[*file].read_host(name, first, piece)
    }

    /// The same by the name that the model has for it.
    pub(crate) fn read_named(
        &self,
        name: &str,
        first: usize,
        piece: &mut [f32],
    ) -> Result<(), CheckpointError> {
        match self.spec.params.iter().position(|p| p.name == name) {
            Some(param) => self.read(ParamId(param), first, piece),
            None => {
                let path = self.file.files.first().map(|f| f.path().into()).unwrap_or_default();
                Err(CheckpointError::WrongModel { path, reason: format!("{} is missing", shown(name)) })
            }
        }
    }
}

impl Source for ModelWeights<'_> {
    fn spec(&self) -> &ModelSpec {
        self.spec
    }

    fn read(&mut self, param: ParamId, first: usize, piece: &mut [f32]) -> Result<(), CheckpointError> {
        ModelWeights::read(self, param, first, piece)
    }
}

/// The files of an index, and for each of their tensors which file has it.
type Opened = (Vec<TensorFile>, HashMap<String, usize>);

/// Opens the files of an index, and checks that they hold what it says, each tensor once.
fn open_all(folder: &Path, path: &Path) -> Result<Opened, CheckpointError> {
    let bad = |reason| CheckpointError::malformed(path, reason);
    let index = Index::read(path)?;
    let mut files = Vec::with_capacity(index.files.len());
    for (number, name) in index.files.iter().enumerate() {
        let path: PathBuf = folder.join(name);
        if !path.exists() {
            return Err(bad(format!("names the file {}, which is not there; copy it too", shown(name))));
        }
        let file = TensorFile::open(&path)?;
        // The least, so that the same fault is told each time.
        if let Some(tensor) = file.names().filter(|t| index.places.get(*t) != Some(&number)).min() {
            let listed = match index.places.get(tensor) {
                Some(other) => format!("lists in {}", shown(&index.files[*other])),
                None => "does not list".into(),
            };
            let (tensor, name) = (shown(tensor), shown(name));
            return Err(bad(format!(
                "{listed} the tensor {tensor}, which is in {name}; take index and files of the same model"
            )));
        }
        files.push(file);
    }
    let absent = index.places.iter().filter(|(tensor, file)| files[**file].info(tensor).is_none());
    if let Some((tensor, file)) = absent.min() {
        let (tensor, name) = (shown(tensor), shown(&index.files[*file]));
        return Err(bad(format!(
            "lists the tensor {tensor} in {name}, which does not hold it; take index and files of the same model"
        )));
    }
    Ok((files, index.places))
}

/// The first element in which two tensors of the same shape differ, as f32 and to the bit.
fn difference(mut a: Elements<'_>, mut b: Elements<'_>) -> Result<Option<usize>, CheckpointError> {
    let mut at = 0;
    while let (Some(x), Some(y)) = (a.next()?, b.next()?) {
        let mut pairs = x.values.iter().zip(y.values);
        if let Some(i) = pairs.position(|(x, y)| x.to_bits() != y.to_bits()) {
            return Ok(Some(at + i));
        }
        at += x.values.len();
    }
    Ok(None)
}

fn generation_config(folder: &Path) -> Result<Option<Map<String, Value>>, CheckpointError> {
    let path = folder.join(GENERATION);
    if !path.exists() {
        return Ok(None);
    }
    let parsed = serde_json::from_slice(&files::read(&path)?);
    parsed.map(Some).map_err(|e| {
        let reason = format!("is not a JSON object: {}; restore or remove it", shown(&e.to_string()));
        CheckpointError::malformed(&path, reason)
    })
}
