//! The optimizer's part of a step.

use crate::error::InUnit;
use crate::{EngineError, Rank, Zero};
use memwall_comm::{Call, Pending};
use memwall_tensor::ViewMut;
use memwall_tensor::device::{AdamW, Device};
use memwall_tensor::fixed::Wide;
use memwall_tensor::ops::{self, Stepped};

impl<D: Device> Rank<D> {
    /// Clips and updates the parameters that this rank owns, and gathers the others' where it holds all.
    pub(crate) fn update(&mut self, learning_rate: f64) -> Result<(), EngineError> {
        let sums = self.sums.as_ref().expect("no collective has the sums");
        let squares = sums.view().rows(Wide::LEN, Wide::LEN);
        let limit = self.settings.clip.map(|c| c as f32);
        ops::clip_factor(&self.device, squares, limit, self.clip.view_mut())?;
        let mut flying = None;
        for unit in 0..self.first.len() {
            self.update_unit(unit, learning_rate)?;
            let before = std::mem::replace(&mut flying, self.send_weights(unit)?);
            self.get_weights(before)?;
        }
        self.get_weights(flying)
    }

    fn update_unit(&mut self, unit: usize, learning_rate: f64) -> Result<(), EngineError> {
        let o = self.settings.optimizer;
        let flat = &self.weights.layout().units[unit];
        let (len, segments) = (flat.len, flat.segments.len());
        let own = self.shares.own(len);
        // Where the weights that lie here begin.
        let base = self.shares.weights(len).start;
        for i in 0..segments {
            let s = self.weights.layout().units[unit].segments[i];
            let (start, end) = (s.range().start.max(own.start), s.range().end.min(own.end));
            if start >= end {
                continue;
            }
            let (n, at) = (end - start, start - own.start);
            let placed = self.first[unit].placements();
            // The elements of the weights that this rank owns are a shard of them, wherever they lie.
            fn owned<'a, D: Device>(
                weights: ViewMut<'a, D>,
                start: usize,
                n: usize,
                placed: memwall_layout::Placements,
            ) -> ViewMut<'a, D> {
                ViewMut { placements: placed, ..weights.rows(start, n) }
            }
            let weights = self.weights.flat_mut(unit).view_mut();
            let weights = owned(weights, start - base, n, placed);
            // The master changes, and its rounded copy follows.
            let (parameter, rounded) = match &mut self.masters {
                Some(masters) => (masters[unit].view_mut().rows(at, n), Some(weights)),
                None => (weights, None),
            };
            let settings = AdamW {
                learning_rate,
                beta1: o.beta1,
                beta2: o.beta2,
                eps: o.eps,
                weight_decay: if s.decay { o.weight_decay } else { 0.0 },
                step: self.step + 1,
            };
            let stepped = Stepped {
                parameter,
                first: self.first[unit].view_mut().rows(at, n),
                second: self.second[unit].view_mut().rows(at, n),
                rounded,
            };
            let gradient = self.gradients.sum(unit).view().rows(at, n);
            ops::adamw(&self.device, settings, self.clip.view(), gradient, stepped).in_unit(unit)?;
        }
        Ok(())
    }

    /// Begins to gather a unit's weights of which each rank has updated a part, where every rank holds all of them.
    fn send_weights(&mut self, unit: usize) -> Result<Option<(usize, Pending<D>)>, EngineError> {
        if !matches!(self.shares.zero(), Zero::One | Zero::Two) {
            return Ok(None);
        }
        let whole = self.weights.take(unit);
        let call = Call::AllGather { part: None, whole };
        Ok(Some((unit, self.groups.shard.start(&self.device, call)?)))
    }

    fn get_weights(&mut self, flying: Option<(usize, Pending<D>)>) -> Result<(), EngineError> {
        if let Some((unit, pending)) = flying {
            let whole = self.groups.shard.wait(&self.device, pending)?.into_buffer();
            self.weights.restore(unit, whole);
        }
        Ok(())
    }

    /// Makes the weights what their masters say, where those were written from outside.
    pub(crate) fn round_if_stale(&mut self) -> Result<(), EngineError> {
        let Some(masters) = self.masters.as_ref().filter(|_| self.stale) else { return Ok(()) };
        for (unit, master) in masters.iter().enumerate() {
            let len = self.weights.layout().units[unit].len;
            let own = self.shares.own(len);
            let at = own.start - self.shares.weights(len).start;
            let weights = self.weights.flat_mut(unit).view_mut().slice.part(at, own.len());
            self.device.cast(master.view().slice, weights);
        }
        for unit in 0..self.first.len() {
            let sent = self.send_weights(unit)?;
            self.get_weights(sent)?;
        }
        self.stale = false;
        Ok(())
    }
}
