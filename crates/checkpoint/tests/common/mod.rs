//! What the checkpoint tests share: a small rank.

use memwall_comm::Solo;
use memwall_engine::{AdamWSettings, Decay, Keep, Precision, Rank, Schedule, Settings};
use memwall_model::{ModelConfig, ModelSpec};
use memwall_tensor::{Cpu, Description};

/// A rank with random values: two layers, this wide, with this vocabulary, sequences of 8 tokens.
pub fn rank(hidden: usize, vocabulary: usize, seed: u64) -> Rank<Cpu> {
    let config = format!(
        r#"{{"hidden_size": {hidden}, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": {vocabulary}}}"#
    );
    let spec = ModelSpec::new(ModelConfig::from_json(&config).unwrap());
    let settings = Settings {
        precision: Precision::F32,
        gradients: Precision::F32,
        micro_batch: 1,
        micro_batches: 1,
        sequence: 8,
        deterministic: false,
        clip: None,
        seed,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, last: 1e-2, warmup: 0, steps: 9, decay: Decay::Constant },
    };
    let device = Cpu::new(Description { threads: 1 }, 64 << 20).unwrap();
    let mut rank = Rank::new(device, Box::new(Solo), spec, settings).unwrap();
    rank.initialize();
    rank
}
