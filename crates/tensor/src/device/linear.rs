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

/// What becomes of a product's sums where they are stored.
#[derive(Debug)]
pub struct Epilogue<'a, B> {
    /// The chains begin at what `c` holds, instead of zero.
    pub accumulate: bool,
    /// `[n]`, in the type of `c`: added to every row after its chains, before the sum is rounded.
    pub bias: Option<Slice<'a, B>>,
    /// What else is computed of the stored result.
    pub activation: Option<Activation<'a, B>>,
}

/// A function of a product's stored (and so rounded) result, `[m, n]` in its type, that is stored beside it.
#[derive(Debug)]
pub enum Activation<'a, B> {
    /// `out = gelu(c)`, as [`crate::device::Pointwise::gelu`].
    Gelu {
        /// Where it goes.
        out: SliceMut<'a, B>,
    },
    /// `out = silu(gate) * c`, as [`crate::device::Pointwise::swiglu`].
    Swiglu {
        /// What goes through the activation.
        gate: Slice<'a, B>,
        /// Where it goes.
        out: SliceMut<'a, B>,
    },
}

impl<B> Epilogue<'_, B> {
    /// The product alone.
    pub fn store() -> Self {
        Self { accumulate: false, bias: None, activation: None }
    }

    /// The product, added to what is there when `accumulate`.
    pub fn accumulate(accumulate: bool) -> Self {
        Self { accumulate, ..Self::store() }
    }
}

/// Matrix products. Each operand and the result is f32 or bf16; sums are f32, rounded once where the result is bf16.
pub trait Linear: Memory {
    /// `c = a b`, or `c += a b`, and what the epilogue adds to that. Each element is one chain of fused multiply-adds over
    /// `k` in order, begun at zero, or at `c`. One row in the layout [`MatmulLayout::Nt`], a token being generated, is
    /// summed as [`crate::math::dot16`] does instead: packing the weight would cost more than the product.
    fn matmul(
        &self,
        layout: MatmulLayout,
        dims: MatmulDims,
        a: Slice<'_, Self::Buf>,
        b: Slice<'_, Self::Buf>,
        c: SliceMut<'_, Self::Buf>,
        epilogue: Epilogue<'_, Self::Buf>,
    );
}
