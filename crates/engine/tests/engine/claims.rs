//! What the project says of memory in general, counted exactly with the dims of real models.

use super::common::settings;
use memwall_engine::{Place, Precision, Settings, predict};
use memwall_model::{ModelSpec, Preset};
use memwall_tensor::{Category, Description};

/// Bytes a parameter that a well-known model's states take in bf16.
fn state_bytes_a_parameter(name: &str, gradients: Precision, micro_batches: usize) -> f64 {
    let preset = Preset::find(name).unwrap();
    let spec = ModelSpec::new(preset.model_config().unwrap());
    let settings = Settings { precision: Precision::Bf16, gradients, micro_batches, ..settings() };
    let p = predict(&spec, &settings, Place::SINGLE, Description { threads: 8 }, 1 << 46, false).unwrap();
    let state = [Category::Weights, Category::MasterWeights, Category::Gradients, Category::OptimizerState];
    let bytes: u64 = state.iter().map(|c| p.initial.live[*c]).sum();
    bytes as f64 / preset.parameters as f64
}

// With bf16 mixed precision and Adam each parameter costs 2 (weight) + 2 (gradient) + 4 (f32 master) + 4 + 4 (moments)
// = 16 bytes: 112 GB for 7 billion of them; 18 bytes where gradients of several micro-batches are summed in f32.
#[test]
fn seven_billion_parameters_in_bf16_with_adam_take_112_gb_for_states_alone() {
    for name in ["llama-2-7b", "mistral-7b", "qwen2.5-7b", "llama-3.1-8b", "gpt2-xl"] {
        let bytes = state_bytes_a_parameter(name, Precision::Bf16, 1);
        // Buffers are padded to blocks of 1024 elements, and that is all.
        assert!((16.0..16.001).contains(&bytes), "{name}: {bytes}");
        assert!((7e9 * bytes / 1e9 - 112.0).abs() < 0.01, "{name}");
        let summed = state_bytes_a_parameter(name, Precision::F32, 4);
        assert!((18.0..18.001).contains(&summed), "{name}: {summed}");
    }
}

// Memory goes to activations too, and those grow with the batch and the sequence while states do not.
#[test]
fn activations_grow_with_batch_and_sequence_and_states_do_not() {
    let spec = ModelSpec::new(Preset::find("qwen3-0.6b").unwrap().model_config().unwrap());
    let of = |micro_batch, sequence| {
        let settings = Settings { micro_batch, sequence, precision: Precision::Bf16, ..settings() };
        predict(&spec, &settings, Place::SINGLE, Description { threads: 8 }, 1 << 46, false).unwrap()
    };
    let one = of(1, 2048);
    for (micro_batch, sequence) in [(4, 2048), (1, 8192)] {
        let four = of(micro_batch, sequence);
        assert_eq!(four.run.at_peak[Category::OptimizerState], one.run.at_peak[Category::OptimizerState]);
        assert_eq!(
            four.run.peak_of_each[Category::Activations],
            4 * one.run.peak_of_each[Category::Activations]
        );
    }
}
