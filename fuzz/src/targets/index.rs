//! A model.safetensors.index.json beside its two files.

use super::model::{Places, spec};
use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_checkpoint::ModelFile;
use memwall_model::{ModelSpec, ParamSpec};
use safetensors::{Dtype, tensor::TensorView};
use std::fs;
use std::path::{Path, PathBuf};

pub(super) const DEFINITION: Definition = Definition {
    name: "index",
    form: Form::Text,
    words: &[
        "\"weight_map\"",
        "\"metadata\"",
        "\"total_size\"",
        "\"model-00001-of-00002.safetensors\"",
        "\"model-00002-of-00002.safetensors\"",
        "\"model-00003-of-00002.safetensors\"",
        "\"../model.safetensors\"",
        "\"/dev/zero\"",
        "\"model.embed_tokens.weight\"",
        "\"model.norm.weight\"",
        "\"lm_head.weight\"",
        "\"model.safetensors.index.json\"",
        "\".\"",
        "\"a\\u0000\"",
    ],
    inputs: Vec::new,
    target: |folder: &Path| Box::new(Index::new(folder)),
    for_tests: false,
};

struct Index {
    spec: ModelSpec,
    folder: PathBuf,
    file: PathBuf,
    places: Places,
}

impl Index {
    fn new(folder: &Path) -> Self {
        let spec = spec();
        let (first, second) = spec.params.split_at(spec.params.len() / 2);
        for (number, params) in [(1, first), (2, second)] {
            let zeros = vec![0; 4096];
            let view = |p: &ParamSpec| {
                let view = TensorView::new(Dtype::F32, p.shape.clone(), &zeros[..p.len() * 4]);
                (p.name.clone(), view.expect("a small tensor"))
            };
            let bytes = safetensors::serialize(params.iter().map(view), None).expect("a valid file");
            let name = format!("model-{number:05}-of-00002.safetensors");
            fs::write(folder.join(name), bytes).expect("the scratch folder can be written");
        }
        let places = Places::new(&spec);
        Self { spec, folder: folder.into(), file: folder.join("model.safetensors.index.json"), places }
    }
}

impl Target for Index {
    fn run(&mut self, input: &[u8]) -> Outcome {
        fs::write(&self.file, input).expect("the scratch folder can be written");
        match ModelFile::open(&self.folder, &self.spec) {
            Ok(opened) => Outcome::of(opened.load(&mut self.places)),
            Err(e) => Outcome::Refused(e.to_string()),
        }
    }

    fn allowance(&self, len: usize) -> usize {
        (512 << 10) + 32 * len
    }
}
