//! A model.safetensors: opened, matched with a model, and read into place; as the format's own library reads it.

use super::model::{Places, spec};
use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use memwall_checkpoint::{ModelFile, TensorFile};
use memwall_model::{ModelSpec, ParamId};
use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::path::{Path, PathBuf};

pub(super) const WORDS: &[&str] = &[
    "\"F32\"",
    "\"BF16\"",
    "\"F16\"",
    "\"F64\"",
    "\"I8\"",
    "\"U8\"",
    "\"BOOL\"",
    "\"F4\"",
    "\"F8_E4M3\"",
    "\"I64\"",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"__metadata__\"",
    "\"format\"",
    "\"pt\"",
    "\"lm_head.weight\"",
    "\"model.embed_tokens.weight\"",
    "\"embed_tokens.weight\"",
    "\"norm.weight\"",
    "\"model.norm.weight\"",
    "\"h.0.attn.bias\"",
    "\"h.0.attn.masked_bias\"",
    "\"rotary_emb.inv_freq\"",
    "[0,0]",
    "[0]",
    "[1,1,2,2]",
    "[5,4]",
    "model.",
    "layers.0.",
];

pub(super) const DEFINITION: Definition = Definition {
    name: "safetensors",
    form: Form::Tensors,
    words: WORDS,
    inputs: Vec::new,
    target: |folder: &Path| Box::new(Weights::new(folder)),
    for_tests: false,
};

struct Weights {
    spec: ModelSpec,
    folder: PathBuf,
    file: PathBuf,
    places: Places,
}

impl Weights {
    fn new(folder: &Path) -> Self {
        let spec = spec();
        let places = Places::new(&spec);
        Self { spec, folder: folder.into(), file: folder.join("model.safetensors"), places }
    }

    /// What is read is what the library finds under the same name.
    fn compare(&self, theirs: &SafeTensors<'_>) {
        for (i, p) in self.spec.params.iter().enumerate() {
            let short = p.name.strip_prefix("model.").unwrap_or(&p.name);
            let view =
                theirs.tensor(&p.name).or_else(|_| theirs.tensor(short)).expect("the library finds it");
            let width = view.data().len() / p.len();
            let expected = view.data().chunks(width).map(|b| match view.dtype() {
                Dtype::F32 => u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                Dtype::BF16 => u32::from_le_bytes([0, 0, b[0], b[1]]),
                // Of a half, sign and exponent field tell zero from the rest.
                _ => u32::from(u16::from_le_bytes([b[0], b[1]]) & 0x7fff != 0),
            });
            let half = view.dtype() == Dtype::F16;
            let ours = self.places.values(ParamId(i)).into_iter();
            let ours = ours.map(|v| if half { u32::from(v != 0.0) } else { v.to_bits() });
            assert!(ours.eq(expected), "{} is read otherwise than by the format's library", p.name);
        }
    }
}

impl Target for Weights {
    fn run(&mut self, input: &[u8]) -> Outcome {
        fs::write(&self.file, input).expect("the scratch folder can be written");
        let theirs = SafeTensors::deserialize(input);
        if TensorFile::open(&self.file).is_ok() {
            assert!(theirs.is_ok(), "it opens, but the format's library refuses it: {:?}", theirs.err());
        }
        let opened = match ModelFile::open(&self.folder, &self.spec) {
            Ok(opened) => opened,
            Err(e) => return Outcome::Refused(e.to_string()),
        };
        let loaded = opened.load(&mut self.places);
        if loaded.is_ok() {
            self.compare(&theirs.expect("it opened"));
        }
        Outcome::of(loaded)
    }

    fn allowance(&self, len: usize) -> usize {
        // The library's reading is counted as well, and is most of it.
        (512 << 10) + 64 * len
    }
}
