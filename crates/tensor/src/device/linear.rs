//! Matrix products in the three layouts of training.

use crate::device::Memory;
use crate::{Slice, SliceMut};

/// Which operand is read transposed. All matrices are row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatmulLayout {
    /// `c[m,n] = a[m,k] b[n,k]^T`: forward, with `b` a weight `[out, in]`.
    Nt,
    /// `c[m,n] = a[m,k] b[k,n]`: the gradient of the input.
    Nn,
    /// `c[m,n] = a[k,m]^T b[k,n]`: the gradient of the weight.
    Tn,
}

/// Sizes of a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulDims {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
}

/// Matrix products. Each operand and the result is f32 or bf16; sums are f32, rounded once where the result is bf16.
pub trait Linear: Memory {
    /// `c = a b`, or `c += a b` when `accumulate`. Each element is one chain of fused multiply-adds over
    /// `k` in order, begun at zero, or at `c`. One row in the layout [`MatmulLayout::Nt`], all f32, a token being generated, is
    /// summed as [`crate::math::dot16`] does instead: packing the weight would cost more than the product.
    fn matmul(
        &self,
        layout: MatmulLayout,
        dims: MatmulDims,
        a: Slice<'_, Self::Buf>,
        b: Slice<'_, Self::Buf>,
        c: SliceMut<'_, Self::Buf>,
        accumulate: bool,
    );
}
