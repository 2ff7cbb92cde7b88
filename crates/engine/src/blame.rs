//! Which tensor is to blame for a loss or a gradient that is not finite.

use crate::settings::Part;
use crate::{EngineError, Rank, STATISTICS};
use memwall_model::ParamId;
use memwall_tensor::device::Device;

/// What a rank has found, the worst first: of equals the first in the order of the forward pass, or the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// A weight that is not finite: it is the cause of all that comes after it.
    Weight(u64),
    /// A gradient that is not.
    Gradient(u64),
    /// Finite gradients, whose squares are too large for their exact sum: a measure that is less for a larger one, and whose.
    Large(u64, u64),
    /// Nothing but the loss itself.
    Loss,
}

impl Found {
    fn to_words(self) -> [u64; STATISTICS] {
        let mut words = [0; STATISTICS];
        words[..3].copy_from_slice(&match self {
            Found::Weight(param) => [0, param, 0],
            Found::Gradient(param) => [1, param, 0],
            Found::Large(size, param) => [2, param, size],
            Found::Loss => [3, 0, 0],
        });
        words
    }

    fn from_words(words: &[u64; STATISTICS]) -> Self {
        match *words {
            [0, param, ..] => Found::Weight(param),
            [1, param, ..] => Found::Gradient(param),
            [2, param, size, ..] => Found::Large(size, param),
            _ => Found::Loss,
        }
    }
}

impl<D: Device> Rank<D> {
    /// Names the tensor that is to blame. Each rank sees its part of what ranks share, so they tell each other what they have
    /// found: loss and norm are the same on all, and all come here.
    pub(crate) fn not_finite(&mut self, step: u64, loss: f64) -> EngineError {
        let own = self.find(loss);
        let all = self.gather_statistics(own.to_words());
        let worst = all.iter().flatten().map(Found::from_words).min().unwrap_or(own);
        let name = |param: u64| &self.spec().param(ParamId(param as usize)).name;
        EngineError::NotFinite {
            step,
            what: if loss.is_finite() { "gradient" } else { "loss" },
            tensor: match worst {
                Found::Weight(param) => format!("the weight {}", name(param)),
                Found::Gradient(param) | Found::Large(_, param) => format!("the gradient of {}", name(param)),
                Found::Loss => "the loss itself".into(),
            },
        }
    }

    /// What this rank sees.
    fn find(&self, loss: f64) -> Found {
        let ids = || 0..self.spec().params.len();
        let bad = |values: Vec<f32>| values.iter().any(|x| !x.is_finite());
        let weight = |p: &usize| bad(self.device().read_f32(self.part(Part::Weight, ParamId(*p))));
        if let Some(p) = ids().find(weight) {
            return Found::Weight(p as u64);
        }
        if let Some(p) = ids().find(|p| bad(self.gradient(ParamId(*p)))) {
            return Found::Gradient(p as u64);
        }
        let size = |p| self.gradient(ParamId(p)).iter().fold(0f32, |m, x| m.max(x.abs()));
        // Bits of positive numbers are in the order of the numbers.
        let large = |p| Found::Large(u64::MAX - u64::from(size(p).to_bits()), p as u64);
        ids().map(large).min().filter(|_| loss.is_finite()).unwrap_or(Found::Loss)
    }
}
