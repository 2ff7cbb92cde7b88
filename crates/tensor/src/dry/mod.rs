//! The dry device: allocates in the ledger and counts, but holds no memory and computes nothing.
//!
//! The same program on `Dry` issues the same allocations as on a real device of the same description.

use crate::device::{
    AdamW, Attention, AttentionDims, AttentionInput, AttentionSaved, Buffer, Columns, Dropout, Epilogue,
    LayerNorm, Linear, Loss, MatmulDims, MatmulLayout, Memory, Norms, Optimizer, Pointwise, RopeDims,
    RowStats,
};
use crate::ledger::Charge;
use crate::{Category, DType, Description, Ledger, OutOfMemory, Slice, SliceMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that only counts.
#[derive(Debug)]
pub struct Dry {
    ledger: Ledger,
    description: Description,
    flops: AtomicU64,
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
        Ok(Self { ledger, description, flops: AtomicU64::new(0), _scratch: scratch })
    }

    /// FLOPs of the matrix products and attentions issued so far; a multiply-add counts two.
    pub fn flops(&self) -> u64 {
        self.flops.load(Ordering::Relaxed)
    }

    fn count(&self, flops: u64) {
        self.flops.fetch_add(flops, Ordering::Relaxed);
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

    fn read(&self, _: S<'_>, bytes: &mut [u8]) {
        bytes.fill(0);
    }

    fn copy(&self, _: S<'_>, _: M<'_>) {}
    fn cast(&self, _: S<'_>, _: M<'_>) {}
    fn zero(&self, _: M<'_>) {}
    fn fill(&self, _: M<'_>, _: f32) {}
    fn fill_normal(&self, _: M<'_>, _: u64, _: u64, _: f64) {}
}

impl Linear for Dry {
    fn matmul(&self, _: MatmulLayout, d: MatmulDims, _: S<'_>, _: S<'_>, _: M<'_>, _: Epilogue<'_, DryBuf>) {
        self.count(2 * (d.m * d.n) as u64 * d.k as u64);
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
        self.count(attention_flops(&d));
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
        self.count(2 * attention_flops(&d));
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
