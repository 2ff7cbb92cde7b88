//! What the engine's tests share: reference folders, and ranks on any device.
#![allow(dead_code)]

pub mod decoder;
pub mod jobs;

use memwall_comm::Solo;
use memwall_engine::{
    AdamWSettings, Decay, Keep, MicroBatch, Parameters, Part, Precision, Rank, Schedule, Settings, StepReport,
};
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::device::Device;
use memwall_tensor::{Cpu, Description, device::Memory};
use safetensors::SafeTensors;
use std::path::PathBuf;

/// The reference folders that this engine can train.
pub const FOLDERS: [&str; 7] = [
    "llama_gqa_untied",
    "llama_gqa_tied",
    "llama_mha_headdim_rope3",
    "mistral_window",
    "qwen2_bias",
    "qwen3_qknorm",
    "gpt2",
];

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
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name);
        let read = |f: &str| std::fs::read(dir.join(f)).unwrap_or_else(|e| panic!("{f}: {e}"));
        let config = String::from_utf8(read("config.json")).unwrap();
        Self {
            spec: ModelSpec::new(ModelConfig::from_json(&config).unwrap()),
            meta: serde_json::from_slice(&read("meta.json")).unwrap(),
            model: read("model.safetensors"),
            batch: read("batch.safetensors"),
            reference: read("reference.safetensors"),
        }
    }

    /// A result in f64, whatever it was stored in.
    pub fn result(&self, name: &str) -> Vec<f64> {
        floats(&self.reference, name)
    }

    pub fn integers(&self, name: &str) -> Vec<i64> {
        let file = SafeTensors::deserialize(&self.reference).unwrap();
        let t = file.tensor(name).unwrap();
        t.data().chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect()
    }

    /// Gives `into` the reference's weights.
    pub fn load(&self, into: &mut impl Parameters<Cpu>) {
        for (i, p) in self.spec.params.iter().enumerate() {
            let (device, dst) = into.parameter_mut(ParamId(i));
            device.write(dst, bytemuck::cast_slice(&self.model(&p.name)));
        }
    }

    pub fn model(&self, name: &str) -> Vec<f32> {
        floats(&self.model, name).into_iter().map(|x| x as f32).collect()
    }

    /// Batch number `batch` (of three) of "input_ids", "targets" or "targets_masked", flat; -100 becomes -1.
    pub fn tokens(&self, name: &str, batch: usize) -> Vec<i32> {
        let file = SafeTensors::deserialize(&self.batch).unwrap();
        let t = file.tensor(name).unwrap();
        let all: Vec<i64> = t.data().chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect();
        let n = all.len() / 3;
        all[batch * n..(batch + 1) * n].iter().map(|x| (*x).max(-1) as i32).collect()
    }
}

fn floats(file: &[u8], name: &str) -> Vec<f64> {
    let file = SafeTensors::deserialize(file).unwrap();
    let t = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    match t.dtype() {
        safetensors::Dtype::F32 => {
            t.data().chunks(4).map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap()))).collect()
        }
        safetensors::Dtype::F64 => {
            t.data().chunks(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect()
        }
        other => panic!("{name} is {other:?}"),
    }
}

/// Settings of a step over one micro-batch of 2 x 16, AdamW as in the recipe "plain".
pub fn settings() -> Settings {
    Settings {
        micro_batch: 2,
        micro_batches: 1,
        sequence: 16,
        precision: Precision::F32,
        gradients: Precision::F32,
        deterministic: false,
        clip: None,
        seed: 1,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-6, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, last: 1e-2, warmup: 0, steps: 10, decay: Decay::Constant },
    }
}

pub const BUDGET: u64 = 256 << 20;

pub fn cpu(threads: usize) -> Cpu {
    Cpu::new(Description { threads }, BUDGET).unwrap()
}

/// A rank of one device.
pub fn rank_on<D: Device>(device: D, spec: &ModelSpec, settings: Settings) -> Rank<D>
where
    Solo: memwall_comm::Group<D>,
{
    Rank::new(device, Box::new(Solo), spec.clone(), settings).unwrap()
}

/// A rank on the CPU with the reference's weights.
pub fn loaded(r: &Reference, spec: &ModelSpec, settings: Settings) -> Rank<Cpu> {
    let mut rank = rank_on(cpu(2), spec, settings);
    r.load(&mut rank);
    rank
}

/// One step over `tokens` and `targets`, given flat for all micro-batches.
pub fn step(rank: &mut Rank<Cpu>, tokens: &[i32], targets: &[i32]) -> StepReport {
    let valid = targets.iter().filter(|t| **t >= 0).count() as u64;
    rank.step(&mut from_slices(tokens, targets), valid).unwrap()
}

/// A loader of micro-batches that lie one behind the other, each sequence one document.
pub fn from_slices<'a>(tokens: &'a [i32], targets: &'a [i32]) -> impl FnMut(usize, &mut MicroBatch<'_>) + 'a {
    move |micro, b| {
        let n = b.tokens.len();
        b.tokens.copy_from_slice(&tokens[micro * n..(micro + 1) * n]);
        b.targets.copy_from_slice(&targets[micro * n..(micro + 1) * n]);
        let first = micro * b.samples.len();
        b.samples.iter_mut().enumerate().for_each(|(i, s)| *s = (first + i) as u64);
    }
}

pub fn weight(rank: &Rank<Cpu>, id: usize) -> Vec<f32> {
    rank.device().read_f32(rank.part(Part::Weight, ParamId(id)))
}

/// `max |a - b| / max |b|`.
pub fn deviation(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(0f64, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0f64, |m, (a, b)| m.max((f64::from(*a) - b).abs())) / scale.max(1e-30)
}
