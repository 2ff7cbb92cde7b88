//! What an independent implementation computed, from `tests/reference`.

use super::{Batch, cpu, rank_on};
use memwall_engine::{Parameters, Rank, Settings};
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::Cpu;
use memwall_tensor::device::Device;
use safetensors::{Dtype, SafeTensors};
use std::path::PathBuf;

/// The reference folders.
pub const FOLDERS: [&str; 7] = [
    "llama_gqa_untied",
    "llama_gqa_tied",
    "llama_mha_headdim_rope3",
    "mistral_window",
    "qwen2_bias",
    "qwen3_qknorm",
    "gpt2",
];

fn read(file: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// One reference folder in memory.
pub struct Reference {
    pub spec: ModelSpec,
    pub meta: serde_json::Value,
    model: Vec<u8>,
    batch: Vec<u8>,
    reference: Vec<u8>,
}

impl Reference {
    pub fn read(name: &str) -> Self {
        let read = |f: &str| read(&format!("{name}/{f}"));
        let config = String::from_utf8(read("config.json")).unwrap();
        Self {
            spec: ModelSpec::new(ModelConfig::from_json(&config).unwrap()),
            meta: serde_json::from_slice(&read("meta.json")).unwrap(),
            model: read("model.safetensors"),
            batch: read("batch.safetensors"),
            reference: read("reference.safetensors"),
        }
    }

    /// A result.
    pub fn result(&self, name: &str) -> Vec<f64> {
        floats(&self.reference, name)
    }

    pub fn integers(&self, name: &str) -> Vec<i64> {
        integers(&self.reference, name)
    }

    /// Gives `into` the reference's weights.
    pub fn load<D: Device>(&self, into: &mut impl Parameters<D>) {
        for (i, p) in self.spec.params.iter().enumerate() {
            let (device, dst) = into.parameter_mut(ParamId(i));
            device.write(dst, bytemuck::cast_slice(&self.model(&p.name)));
        }
    }

    /// A rank on the CPU with the reference's weights.
    pub fn rank(&self, settings: Settings) -> Rank<Cpu> {
        let mut rank = rank_on(cpu(2), &self.spec, settings);
        self.load(&mut rank);
        rank
    }

    pub fn model(&self, name: &str) -> Vec<f32> {
        floats(&self.model, name).into_iter().map(|x| x as f32).collect()
    }

    /// Batch number `batch` (of three) of "input_ids", "targets" or "targets_masked", flat; -100 becomes -1.
    pub fn tokens(&self, name: &str, batch: usize) -> Vec<i32> {
        part(&integers(&self.batch, name), batch, 3)
    }

    /// Batch number `batch` (of three) with one of its targets.
    pub fn batch(&self, targets: &str, batch: usize) -> Batch {
        Batch::new(16, &self.tokens("input_ids", batch), &self.tokens(targets, batch))
    }
}

/// What PyTorch computed in bf16 for one of the folders.
pub struct Bf16Reference {
    pub meta: serde_json::Value,
    gradients: Vec<u8>,
    masters: Vec<u8>,
}

impl Bf16Reference {
    pub fn read(name: &str) -> Self {
        let read = |f: &str| read(&format!("bf16/{name}.{f}"));
        Self {
            meta: serde_json::from_slice(&read("meta.json")).unwrap(),
            gradients: read("gradients.safetensors"),
            masters: read("masters.safetensors"),
        }
    }

    /// The gradient of a parameter with nothing rounded but the weights.
    pub fn gradient(&self, name: &str) -> Vec<f64> {
        floats(&self.gradients, &format!("grad.exact.{name}"))
    }

    /// The master of a parameter after three steps with nothing rounded but the weights.
    pub fn master(&self, name: &str) -> Vec<f64> {
        floats(&self.masters, &format!("adamw_clip.exact.{name}"))
    }

    /// The batches of the curve, one a step.
    pub fn curve() -> Vec<Batch> {
        let file = read("bf16/curve_batches.safetensors");
        let [tokens, targets] = ["input_ids", "targets"].map(|n| integers(&file, n));
        (0..60).map(|k| Batch::new(32, &part(&tokens, k, 60), &part(&targets, k, 60))).collect()
    }
}

/// Part `index` of `parts`; -100 becomes -1.
fn part(all: &[i64], index: usize, parts: usize) -> Vec<i32> {
    let n = all.len() / parts;
    all[index * n..(index + 1) * n].iter().map(|x| (*x).max(-1) as i32).collect()
}

fn integers(file: &[u8], name: &str) -> Vec<i64> {
    let file = SafeTensors::deserialize(file).unwrap();
    let t = file.tensor(name).unwrap();
    assert_eq!(t.dtype(), Dtype::I64);
    t.data().chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect()
}

/// A tensor in f64, whatever it was stored in.
fn floats(file: &[u8], name: &str) -> Vec<f64> {
    let file = SafeTensors::deserialize(file).unwrap();
    let t = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    match t.dtype() {
        Dtype::F32 => {
            t.data().chunks(4).map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap()))).collect()
        }
        Dtype::F64 => t.data().chunks(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect(),
        other => panic!("{name} is {other:?}"),
    }
}

/// GPT-2's key biases have no gradient in exact arithmetic (one moves all scores of a query alike): AdamW makes full
/// steps of their rounding noise.
pub fn without_key_bias<T: Copy>(name: &str, values: &[T]) -> Vec<T> {
    let third = values.len() / 3;
    let keys = if name.ends_with("c_attn.bias") { third..2 * third } else { 0..0 };
    [&values[..keys.start], &values[keys.end..]].concat()
}

/// `max |a - b| / max |b|`.
pub fn deviation<T: Copy + Into<f64>>(a: &[T], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(0f64, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0f64, |m, (a, b)| m.max(((*a).into() - b).abs())) / scale.max(1e-30)
}
