//! What the checkpoint tests share: a small rank, and files of another writer.
#![allow(dead_code, reason = "not every test uses all of it")]

use memwall_comm::Groups;
use memwall_engine::{AdamWSettings, Decay, Keep, Part, Precision, Rank, Schedule, Settings, Zero};
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, Description};
use safetensors::{Dtype, tensor::TensorView};

/// A rank with random values: two layers, this wide, with this vocabulary, sequences of 8 tokens.
pub fn rank(hidden: usize, vocabulary: usize, seed: u64) -> Rank<Cpu> {
    rank_of(&config(hidden, vocabulary, false), seed)
}

/// The config.json of such a model.
pub fn config(hidden: usize, vocabulary: usize, tied: bool) -> String {
    format!(
        r#"{{"hidden_size": {hidden}, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": {vocabulary}, "tie_word_embeddings": {tied}}}"#
    )
}

/// A rank with random values of the model of a config.json.
pub fn rank_of(config: &str, seed: u64) -> Rank<Cpu> {
    rank_in(config, seed, Precision::F32)
}

/// The same, in f32, or in bf16 with f32 masters.
pub fn rank_in(config: &str, seed: u64, precision: Precision) -> Rank<Cpu> {
    let spec = ModelSpec::new(ModelConfig::from_json(config).unwrap());
    let settings = Settings { precision, gradients: precision, ..settings(seed) };
    let device = Cpu::new(Description { threads: 1 }, 64 << 20).unwrap();
    let mut rank = Rank::new(device, Groups::solo(), spec, settings).unwrap();
    rank.initialize();
    rank
}

/// The settings of such a rank.
pub fn settings(seed: u64) -> Settings {
    Settings {
        precision: Precision::F32,
        gradients: Precision::F32,
        micro_batch: 1,
        micro_batches: 1,
        sequence: 8,
        deterministic: false,
        zero: Zero::None,
        clip: None,
        seed,
        snapshot: 0,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, last: 1e-2, warmup: 0, steps: 9, decay: Decay::Constant },
    }
}

/// The bits of every weight of a rank, in order.
pub fn weights(rank: &Rank<Cpu>) -> Vec<Vec<u32>> {
    let ids = (0..rank.spec().params.len()).map(ParamId);
    let bits = |p| rank.device().read_f32(rank.part(Part::Weight, p)).into_iter().map(f32::to_bits).collect();
    ids.map(bits).collect()
}

/// A safetensors file of these tensors (name, type, dims, bytes), written by the format's own library.
pub fn tensor_file(tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}
