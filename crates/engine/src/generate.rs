//! Generation, one token at a time, with a key/value cache; made of the same pieces of the same units.

use crate::error::InUnit;
use crate::stack::{Parameters, Stack};
use crate::unit::{Sequences, rope_table};
use crate::{EngineError, Weights};
use memwall_layout::Placements;
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::Device;
use memwall_tensor::{Category, DType, Shape, SliceMut, Tensor, ops};
use std::ops::Range;

/// A model that reads tokens and says what comes next.
pub struct Generator<D: Device> {
    device: D,
    weights: Weights<D>,
    stack: Stack,
    /// Keys and values of each block, `[capacity, kv_heads x head_dim]`.
    cache: Vec<(Tensor<D>, Tensor<D>)>,
    table: Option<Tensor<D>>,
    capacity: usize,
    used: usize,
}

impl<D: Device> Generator<D> {
    /// A generator for texts of up to `capacity` tokens, prompt included. Parameters are zero until loaded.
    ///
    /// # Errors
    /// Out of memory, or texts longer than the positions that the model has learned.
    pub fn new(device: D, spec: &ModelSpec, capacity: usize) -> Result<Self, EngineError> {
        Stack::check_length(&spec.config, capacity)?;
        let weights = Weights::new(&device, spec, DType::F32)?;
        let c = &spec.config;
        let stack = Stack::new(spec);
        let shape = Shape::matrix(capacity, c.kv_heads * c.head_dim);
        device.ledger().operation("keys and values");
        let new = || Tensor::new(&device, shape, DType::F32, Placements::REPLICATED, Category::Activations);
        let cache = stack.blocks.iter().map(|_| Ok((new()?, new()?))).collect::<Result<_, EngineError>>()?;
        Ok(Self {
            table: rope_table(&device, c, capacity)?,
            device,
            weights,
            stack,
            cache,
            capacity,
            used: 0,
        })
    }

    /// Tokens that may still be read.
    pub fn room(&self) -> usize {
        self.capacity - self.used
    }

    /// Reads `tokens` after those read before and returns the logits of what comes next.
    ///
    /// # Errors
    /// Out of memory.
    ///
    /// # Panics
    /// When there are no tokens, or more than there is room for.
    pub fn read(&mut self, tokens: &[i32]) -> Result<Vec<f32>, EngineError> {
        assert!(!tokens.is_empty() && tokens.len() <= self.room(), "no room for {} tokens", tokens.len());
        let (n, keys) = (tokens.len(), self.used + tokens.len());
        let ids = self.integers(tokens.iter().copied())?;
        let positions = self.integers((self.used..keys).map(|p| p as i32))?;
        let table = self.table.as_ref().map(Tensor::view);
        let seq = Sequences { batch: 1, length: n, positions: positions.view(), table, keys: None };
        let (device, stack) = (&self.device, &self.stack);
        let mut x = stack.embedding.forward(device, &self.weights.lease(0), seq, ids.view()).in_unit(0)?;
        for (i, (block, (k, v))) in stack.blocks.iter().zip(&mut self.cache).enumerate() {
            let w = self.weights.lease(i + 1);
            let mut pass = || {
                let new = block.attention.project(device, &w, seq, x.view())?.qkv;
                device.copy(new.k.view().slice, k.view_mut().rows(self.used, n).slice);
                device.copy(new.v.view().slice, v.view_mut().rows(self.used, n).slice);
                let (k, v) = (k.view().rows(0, keys), v.view().rows(0, keys));
                let out = block.attention.attend_cached(device, seq, new.q.view(), k, v)?;
                let stream = ops::copy_like(device, x.view())?;
                let middle = block.attention.add(device, &w, seq, out.view(), stream)?;
                let (_, activated) = block.mlp.inner(device, &w, middle.view())?;
                block.mlp.add(device, &w, seq, activated.view(), middle)
            };
            x = pass().in_unit(i + 1)?;
        }
        let (own, weight) = (self.weights.lease(stack.last()), stack.head_weight(&self.weights));
        let logits = stack.head.last_logits(device, &own, weight, x.view()).in_unit(stack.last())?;
        self.used = keys;
        Ok(device.read_f32(logits.view().slice))
    }

    fn integers(&self, values: impl ExactSizeIterator<Item = i32>) -> Result<Tensor<D>, EngineError> {
        let shape = Shape::vector(values.len());
        let mut t = Tensor::new(&self.device, shape, DType::I32, Placements::REPLICATED, Category::Data)?;
        let values: Vec<i32> = values.collect();
        self.device.write(t.view_mut().slice, bytemuck::cast_slice(&values));
        Ok(t)
    }
}

impl<D: Device> Parameters<D> for Generator<D> {
    fn held(&self, param: ParamId) -> Range<usize> {
        0..self.weights.layout().place(param).1.shape.len()
    }

    fn parameter_mut(&mut self, param: ParamId) -> (&D, SliceMut<'_, D::Buf>) {
        (&self.device, self.weights.parameter_mut(param))
    }
}
