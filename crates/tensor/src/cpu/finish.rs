//! What becomes of the sums of a matrix product: bias, rounding, and an activation beside.

use super::activations::{gelu, silu};
use super::memory::Element;
use super::{CpuBuf, S, Shared};
use crate::device::{Activation, MatmulDims};
use crate::{DType, Float};

/// An [`crate::device::Epilogue`], but for where chains begin.
pub(super) struct Finish<'a, C> {
    bias: Option<&'a [C]>,
    activation: Option<(Function<'a, C>, Shared<C>)>,
    /// Columns of the result.
    n: usize,
}

enum Function<'a, C> {
    Gelu,
    Swiglu(&'a [C]),
}

impl<'a, C: Float + Element> Finish<'a, C> {
    /// Checks sizes, since tasks write through shared pointers.
    pub(super) fn new(
        MatmulDims { m, n, .. }: MatmulDims,
        bias: Option<S<'a>>,
        activation: Option<Activation<'a, CpuBuf>>,
    ) -> Self {
        let bias: Option<&[C]> = bias.map(|b| b.get());
        assert!(bias.is_none_or(|b| b.len() == n), "a bias of {n} columns");
        let activation = activation.map(|activation| {
            let (function, out) = match activation {
                Activation::Gelu { out } => (Function::Gelu, out),
                Activation::Swiglu { gate, out } => (Function::Swiglu(gate.get()), out),
            };
            let out: &mut [C] = out.get();
            let gates = if let Function::Swiglu(gate) = function { gate.len() } else { m * n };
            assert!(out.len() == m * n && gates == m * n, "an activation of [{m}, {n}]");
            (function, Shared::of(out))
        });
        Self { bias, activation, n }
    }
}

impl<C: Float> Finish<'_, C> {
    /// Whether sums as they are in an f32 result are not yet all there is to do.
    pub(super) fn needed(&self) -> bool {
        C::DTYPE != DType::F32 || self.bias.is_some() || self.activation.is_some()
    }
}

/// Stores `len` sums of row `row` of the result, from `column` on, to `c`, which may be where the sums are.
///
/// # Safety
/// Sums and that part of the result are there, and are this thread's alone.
#[inline(always)]
pub(super) unsafe fn finish_row<C: Float>(
    finish: &Finish<'_, C>,
    sums: *const f32,
    c: *mut C,
    len: usize,
    row: usize,
    column: usize,
) {
    // SAFETY: the caller's promise; an element's sum is read before the element is written.
    unsafe {
        if let Some(bias) = finish.bias.map(|b| &b[column..column + len]) {
            for (j, b) in bias.iter().enumerate() {
                *c.add(j) = C::narrow(*sums.add(j) + b.wide());
            }
        } else if sums.addr() != c.addr() {
            for j in 0..len {
                *c.add(j) = C::narrow(*sums.add(j));
            }
        }
    }
    let Some((function, out)) = &finish.activation else { return };
    let at = row * finish.n + column;
    // SAFETY: as above, and what is beside that part of the result is as much this thread's.
    let (c, out) = unsafe { (std::slice::from_raw_parts(c, len), out.part(at, len)) };
    match function {
        Function::Gelu => {
            for (o, x) in out.iter_mut().zip(c) {
                *o = C::narrow(gelu(x.wide()));
            }
        }
        Function::Swiglu(gate) => {
            for ((o, x), g) in out.iter_mut().zip(c).zip(&gate[at..]) {
                *o = C::narrow(silu(g.wide()) * x.wide());
            }
        }
    }
}
