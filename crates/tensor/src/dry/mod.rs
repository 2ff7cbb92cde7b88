//! The dry device: allocates in the ledger and counts, but holds no memory and computes nothing.
//!
//! The same program on `Dry` issues the same allocations as on a real device of the same description.

use crate::device::{
    AdamW, Attention, AttentionDims, AttentionInput, AttentionSaved, Buffer, Columns, Dropout, Epilogue,
    LayerNorm, Linear, Loss, MatmulDims, MatmulLayout, Memory, Norms, Optimizer, Pointwise, RopeDims,
    RowStats,
};
use crate::ledger::Charge;
use crate::{Category, DType, Description, Ledger, OutOfMemory, Phase, Slice, SliceMut};
use std::iter::Sum;
use std::ops::Add;
use std::sync::{Mutex, PoisonError};

/// FLOPs of matrix products and attentions; a multiply-add counts two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flops {
    /// Of matrix products.
    pub matmul: u64,
    /// Of attention: two products forward, four backward. Scores that a backward computes again are not counted.
    pub attention: u64,
}

impl Flops {
    /// All of them.
    pub fn total(self) -> u64 {
        self.matmul.saturating_add(self.attention)
    }

    /// This many times over.
    #[must_use]
    pub fn times(self, n: u64) -> Self {
        Self { matmul: self.matmul.saturating_mul(n), attention: self.attention.saturating_mul(n) }
    }
}

impl Add for Flops {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            matmul: self.matmul.saturating_add(other.matmul),
            attention: self.attention.saturating_add(other.attention),
        }
    }
}

impl Sum for Flops {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}

/// A device that only counts.
#[derive(Debug)]
pub struct Dry {
    ledger: Ledger,
    description: Description,
    /// By unit, those outside of units first, and phase.
    work: Mutex<Vec<[Flops; Phase::ALL.len()]>>,
    _scratch: Charge,
}

/// A buffer of [`Dry`]: its charge, length and type.
#[derive(Debug)]
pub struct DryBuf {
    _charge: Charge,
    len: usize,
    dtype: DType,
}

impl Buffer for DryBuf {
    fn len(&self) -> usize {
        self.len
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn read(&self, _: usize, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

type S<'a> = Slice<'a, DryBuf>;
type M<'a> = SliceMut<'a, DryBuf>;

impl Dry {
    /// The twin of a device of this description whose limit is `budget` bytes.
    ///
    /// # Errors
    /// The budget does not even hold the device's own working space.
    pub fn new(description: Description, budget: u64) -> Result<Self, OutOfMemory> {
        let ledger = Ledger::new(budget);
        let scratch = ledger.charge(description.scratch_bytes() as u64, Category::Workspace)?;
        Ok(Self { ledger, description, work: Mutex::default(), _scratch: scratch })
    }

    /// FLOPs of the matrix products and attentions issued so far; a multiply-add counts two.
    pub fn flops(&self) -> u64 {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.iter().flatten().copied().sum::<Flops>().total()
    }

    /// Those issued so far in a phase by a unit, or outside of units.
    pub fn work(&self, phase: Phase, unit: impl Into<Option<usize>>) -> Flops {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.get(unit.into().map_or(0, |u| u + 1)).map_or(Flops::default(), |phases| phases[phase as usize])
    }

    fn count(&self, flops: Flops) {
        let moment = self.ledger.moment();
        let unit = moment.unit.map_or(0, |u| u as usize + 1);
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if work.len() <= unit {
            work.resize(unit + 1, Default::default());
        }
        let sum = &mut work[unit][moment.phase as usize];
        *sum = *sum + flops;
    }
}

impl Memory for Dry {
    type Buf = DryBuf;

    fn alloc(&self, len: usize, dtype: DType, category: Category) -> Result<DryBuf, OutOfMemory> {
        let charge = self.ledger.charge((len * dtype.bytes()) as u64, category)?;
        Ok(DryBuf { _charge: charge, len, dtype })
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn description(&self) -> Description {
        self.description
    }

    fn write(&self, _: M<'_>, _: &[u8]) {}
    fn write_rows(&self, _: M<'_>, _: usize, _: &mut dyn FnMut(usize, &mut [f32])) {}

    fn copy(&self, _: S<'_>, _: M<'_>) {}
    fn cast(&self, _: S<'_>, _: M<'_>) {}
    fn zero(&self, _: M<'_>) {}
    fn fill(&self, _: M<'_>, _: f32) {}
    fn fill_normal(&self, _: M<'_>, _: u64, _: u64, _: f64) {}
}

impl Linear for Dry {
    fn matmul(&self, _: MatmulLayout, d: MatmulDims, _: S<'_>, _: S<'_>, _: M<'_>, _: Epilogue<'_, DryBuf>) {
        let flops = (2 * (d.m * d.n) as u64).saturating_mul(d.k as u64);
        self.count(Flops { matmul: flops, attention: 0 });
    }
}

/// FLOPs of the two products of a causal attention's forward, each sequence one document.
fn attention_flops(d: &AttentionDims) -> u64 {
    let (ahead, queries) = ((d.keys - d.queries) as u64, d.queries as u64);
    let window = d.window.map_or(u64::MAX, |w| w as u64);
    // Query i sees min(ahead + i + 1, window) keys: a growing part, then a constant one.
    let growing = window.saturating_sub(ahead).min(queries);
    let pairs = growing * (2 * ahead + growing + 1) / 2 + (queries - growing) * window.min(d.keys as u64);
    4 * d.batch as u64 * pairs * (d.heads * d.head_dim) as u64
}

impl Attention for Dry {
    fn attention(&self, d: AttentionDims, _: AttentionInput<'_, DryBuf>, _: M<'_>, _: M<'_>) {
        self.count(Flops { matmul: 0, attention: attention_flops(&d) });
    }

    fn attention_backward(
        &self,
        d: AttentionDims,
        _: AttentionInput<'_, DryBuf>,
        _: AttentionSaved<'_, DryBuf>,
        _: S<'_>,
        _: M<'_>,
        _: M<'_>,
        _: M<'_>,
        _: M<'_>,
    ) {
        self.count(Flops { matmul: 0, attention: 2 * attention_flops(&d) });
    }
}

impl Norms for Dry {
    fn rms_norm(&self, _: S<'_>, _: S<'_>, _: f32, _: M<'_>, _: M<'_>) {}
    fn rms_norm_input_gradient(&self, _: S<'_>, _: S<'_>, _: S<'_>, _: S<'_>, _: M<'_>) {}
    fn rms_norm_weight_gradient(&self, _: S<'_>, _: S<'_>, _: S<'_>, _: M<'_>, _: bool) {}
    fn layer_norm(&self, _: S<'_>, _: LayerNorm<'_, DryBuf>, _: M<'_>, _: M<'_>, _: M<'_>) {}
    fn layer_norm_input_gradient(&self, _: S<'_>, _: S<'_>, _: RowStats<'_, DryBuf>, _: S<'_>, _: M<'_>) {}
    fn layer_norm_weight_gradient(&self, _: S<'_>, _: RowStats<'_, DryBuf>, _: S<'_>, _: M<'_>, _: bool) {}
}

impl Pointwise for Dry {
    fn embedding(&self, _: S<'_>, _: S<'_>, _: usize, _: M<'_>, _: bool) {}
    fn embedding_gradient(&self, _: S<'_>, _: S<'_>, _: usize, _: M<'_>, _: bool) {}
    fn rope(&self, _: RopeDims, _: M<'_>, _: S<'_>, _: S<'_>, _: bool) {}
    fn swiglu(&self, _: S<'_>, _: S<'_>, _: M<'_>) {}
    fn swiglu_backward(&self, _: M<'_>, _: M<'_>, _: S<'_>) {}
    fn gelu(&self, _: S<'_>, _: M<'_>) {}
    fn gelu_backward(&self, _: M<'_>, _: S<'_>) {}
    fn add(&self, _: M<'_>, _: S<'_>) {}
    fn sum_rows(&self, _: S<'_>, _: M<'_>, _: bool) {}
    fn copy_columns(&self, _: S<'_>, _: Columns, _: M<'_>, _: Columns, _: usize) {}
    fn dropout(&self, _: M<'_>, _: Dropout<'_, DryBuf>) {}
}

impl Loss for Dry {
    fn cross_entropy(&self, _: M<'_>, _: S<'_>, _: M<'_>, _: Option<f32>) {}
    fn sum_wide(&self, _: S<'_>, _: f64, _: M<'_>) {}
}

impl Optimizer for Dry {
    fn accumulate(&self, _: S<'_>, _: M<'_>, _: bool) {}
    fn sum_squares(&self, _: S<'_>, _: M<'_>) {}
    fn clip_factor(&self, _: S<'_>, _: Option<f32>, _: M<'_>) {}
    fn adamw(&self, _: AdamW, _: S<'_>, _: S<'_>, _: M<'_>, _: M<'_>, _: M<'_>, _: Option<M<'_>>) {}
}
