//! The micro-batch under way: its buffers on the host and on the device.

use crate::settings::{Load, MicroBatch, Settings};
use crate::unit::{Sequences, rope_table};
use memwall_layout::Placements;
use memwall_model::{Dropout, ModelConfig};
use memwall_tensor::device::Device;
use memwall_tensor::{Category, DType, Error, Shape, Tensor, View, math};

/// Buffers of one micro-batch.
#[derive(Debug)]
pub(crate) struct Batch<D: Device> {
    batch: usize,
    length: usize,
    /// Token ids, `[batch x length]`.
    tokens: Tensor<D>,
    /// Targets, `[batch x length]`.
    targets: Tensor<D>,
    positions: Tensor<D>,
    table: Option<Tensor<D>>,
    /// Keys of dropout, `[batch]`.
    keys: Option<Tensor<D>>,
    key: u64,
    host: Host,
}

/// What a loader fills; empty until it first does.
#[derive(Debug, Default)]
struct Host {
    tokens: Vec<i32>,
    targets: Vec<i32>,
    positions: Vec<i32>,
    samples: Vec<u64>,
    keys: Vec<i64>,
}

impl Host {
    fn resize(&mut self, sequences: usize, tokens: usize) {
        self.tokens.resize(tokens, 0);
        self.targets.resize(tokens, 0);
        self.positions.resize(tokens, 0);
        self.samples.resize(sequences, 0);
        self.keys.resize(sequences, 0);
    }
}

impl<D: Device> Batch<D> {
    /// Allocates the buffers, of tokens `placed` among the ranks.
    pub(crate) fn new(
        device: &D,
        config: &ModelConfig,
        settings: &Settings,
        placed: Placements,
    ) -> Result<Self, Error> {
        let (batch, length, n) = (settings.micro_batch, settings.sequence, settings.micro_tokens());
        device.ledger().operation("micro-batch");
        let new = |len, dtype| Tensor::new(device, Shape::vector(len), dtype, placed, Category::Data);
        let drops = config.dropout != Dropout::NONE;
        Ok(Self {
            batch,
            length,
            positions: new(n, DType::I32)?,
            table: rope_table(device, config, length)?,
            tokens: new(n, DType::I32)?,
            targets: new(n, DType::I32)?,
            keys: drops.then(|| new(batch, DType::I64)).transpose()?,
            key: math::stream_key(settings.seed, "dropout"),
            host: Host::default(),
        })
    }

    /// Has `load` fill micro-batch number `micro`, and brings it to the device.
    ///
    /// # Panics
    /// When a position is outside of the sequence: a fault of the loader.
    pub(crate) fn load(&mut self, device: &D, micro: usize, load: Load<'_>) {
        self.host.resize(self.batch, self.batch * self.length);
        let h = &mut self.host;
        h.positions.iter_mut().enumerate().for_each(|(i, p)| *p = (i % self.length) as i32);
        load(
            micro,
            &mut MicroBatch {
                tokens: &mut h.tokens,
                targets: &mut h.targets,
                positions: &mut h.positions,
                samples: &mut h.samples,
            },
        );
        let inside = |p: &i32| (0..self.length as i32).contains(p);
        assert!(h.positions.iter().all(inside), "a position outside of a sequence of {}", self.length);
        device.write(self.tokens.view_mut().slice, bytemuck::cast_slice(&h.tokens));
        device.write(self.targets.view_mut().slice, bytemuck::cast_slice(&h.targets));
        device.write(self.positions.view_mut().slice, bytemuck::cast_slice(&h.positions));
        if let Some(keys) = &mut self.keys {
            for (k, sample) in h.keys.iter_mut().zip(&h.samples) {
                *k = math::random_u64(self.key, *sample) as i64;
            }
            device.write(keys.view_mut().slice, bytemuck::cast_slice(&h.keys));
        }
    }

    /// Token ids.
    pub(crate) fn tokens(&self) -> View<'_, D> {
        self.tokens.view()
    }

    /// Targets.
    pub(crate) fn targets(&self) -> View<'_, D> {
        self.targets.view()
    }

    /// As units see it while training, dropout included.
    pub(crate) fn training(&self) -> Sequences<'_, D> {
        Sequences { keys: self.keys.as_ref().map(Tensor::view), ..self.evaluation() }
    }

    /// As units see it when nothing is dropped out.
    pub(crate) fn evaluation(&self) -> Sequences<'_, D> {
        Sequences {
            batch: self.batch,
            length: self.length,
            positions: self.positions.view(),
            table: self.table.as_ref().map(Tensor::view),
            keys: None,
        }
    }
}
