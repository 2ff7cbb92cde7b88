//! The small model whose weights are read.

use memwall_engine::Parameters;
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, Cpu, DType, Description, SliceMut};
use std::ops::Range;

/// A tied model of a few hundred parameters.
const CONFIG: &str = r#"{"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 5, "tie_word_embeddings": true}"#;

/// The model.
pub(super) fn spec() -> ModelSpec {
    ModelSpec::new(ModelConfig::from_json(CONFIG).expect("a valid config"))
}

/// A device.
pub(super) fn device() -> Cpu {
    Cpu::new(Description { threads: 1 }, 64 << 20).expect("64 MiB hold a device and a small model")
}

/// Places for the parameters on a device.
pub(super) struct Places {
    device: Cpu,
    buffers: Vec<<Cpu as Memory>::Buf>,
}

impl Places {
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let device = device();
        let alloc = |n| device.alloc(n, DType::F32, Category::Weights).expect("a small model fits");
        let buffers = spec.params.iter().map(|p| alloc(p.len())).collect();
        Self { device, buffers }
    }

    /// The values of a parameter.
    pub(super) fn values(&self, param: ParamId) -> Vec<f32> {
        self.device.read_f32(memwall_tensor::Slice::all(&self.buffers[param.0]))
    }
}

impl Parameters<Cpu> for Places {
    fn held(&self, param: ParamId) -> Range<usize> {
        0..memwall_tensor::device::Buffer::len(&self.buffers[param.0])
    }

    fn parameter_mut(&mut self, param: ParamId) -> (&Cpu, SliceMut<'_, <Cpu as Memory>::Buf>) {
        (&self.device, SliceMut::all(&mut self.buffers[param.0]))
    }
}
