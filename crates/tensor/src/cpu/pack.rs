//! Operands of a matrix product, copied to where its tile reads them: widened to f32, and contiguous in its order.

use super::S;
use super::simd::Simd;
use crate::{DType, Float, bf16};

/// A matrix operand: element `(i, p)`, `p` counting along the sums, at `i * row + p * step`. One of the two is 1.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) data: Elements<'a>,
    pub(super) row: usize,
    pub(super) step: usize,
}

/// The elements of an operand.
#[derive(Clone, Copy)]
pub(super) enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Elements<'a> {
    pub(super) fn of(s: S<'a>) -> Self {
        if s.dtype() == DType::BF16 { Self::Bf16(s.get()) } else { Self::F32(s.get()) }
    }
}

/// Runs `$body` with `$data` as the operand's slice, whatever its type.
macro_rules! elements {
    ($operand:expr, $data:ident => $body:expr) => {
        match $operand.data {
            Elements::F32($data) => $body,
            Elements::Bf16($data) => $body,
        }
    };
}

/// How many steps ahead of a strided copy its reads are fetched.
const AHEAD: usize = 8;

/// A stretch of the sums: from where, and how long.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) from: usize,
    pub(super) len: usize,
}

/// Copies `rows` rows of `a` from `first` on as strips of `MR` rows, one every `LINE * KC`: where sums are contiguous, row by
/// row, each at a multiple of `KC`; else step by step, each at a multiple of `LINE`.
#[inline(always)]
pub(super) fn pack_a<V: Simd, const MR: usize, const LINE: usize, const KC: usize>(
    a: Operand<'_>,
    first: usize,
    rows: usize,
    k: Stretch,
    out: &mut [f32],
) {
    elements!(a, data => {
        if a.step == 1 {
            for r in 0..rows {
                let from = (first + r) * a.row + k.from;
                let to = r / MR * LINE * KC + r % MR * KC;
                widen(&data[from..from + k.len], &mut out[to..to + k.len]);
            }
        } else {
            for q in 0..k.len {
                let from = first + (k.from + q) * a.step;
                // All strips by one step: they share the cache lines that they are copied from.
                for r in (0..rows).step_by(MR) {
                    V::prefetch(data.as_ptr().wrapping_add(from + r + AHEAD * a.step).cast());
                    let to = r / MR * LINE * KC + q * LINE;
                    // What follows a row is read along where it is there: a copy of known length is faster, and no tile uses it.
                    match data.get(from + r..from + r + LINE) {
                        Some(line) => widen(line, &mut out[to..to + LINE]),
                        None => widen(&data[from + r..from + rows], &mut out[to..to + rows - r]),
                    }
                }
            }
        }
    });
}

/// Copies one panel of `b`: `NR` columns of the product from `first` on, step by step; where there are only `columns`, the
/// rest are zeros.
#[inline(always)]
pub(super) fn pack_b<V: Simd, const NR: usize>(
    b: Operand<'_>,
    first: usize,
    columns: usize,
    k: Stretch,
    out: &mut [f32],
) {
    let out = &mut out[..NR * k.len];
    elements!(b, data => {
        if b.step == 1 {
            transpose::<V, NR, _>(data, b.row, first, columns, k, out);
        } else {
            for (q, out) in out.chunks_exact_mut(NR).enumerate() {
                let from = first + (k.from + q) * b.step;
                for line in 0..(NR * size_of_val(&data[0])).div_ceil(64) {
                    V::prefetch(data.as_ptr().wrapping_add(from + AHEAD * b.step).cast::<f32>().wrapping_add(line * 16));
                }
                if columns == NR {
                    widen(&data[from..from + NR], out);
                } else {
                    widen(&data[from..from + columns], &mut out[..columns]);
                    out[columns..].fill(0.0);
                }
            }
        }
    });
}

#[inline(always)]
fn transpose<V: Simd, const NR: usize, T: Float>(
    data: &[T],
    row: usize,
    first: usize,
    columns: usize,
    k: Stretch,
    out: &mut [f32],
) {
    let (tall, long) = (columns / 8 * 8, k.len / 8 * 8);
    if columns < NR {
        out.fill(0.0);
    }
    let data = &data[first * row + k.from..(first + columns - 1) * row + k.from + k.len];
    for j in (0..tall).step_by(8) {
        for q in (0..long).step_by(8) {
            // SAFETY: rows `j .. j + 8` and steps `q .. q + 8` lie in `data` and in `out`, and the machine has `V`: a device
            // is only made for a family that it has.
            unsafe {
                V::transpose(data.as_ptr().add(j * row + q), row, out.as_mut_ptr().add(q * NR + j), NR)
            };
        }
    }
    for j in 0..columns {
        let done = if j < tall { long } else { 0 };
        for q in done..k.len {
            out[q * NR + j] = data[j * row + q].wide();
        }
    }
}

/// Copies elements as f32.
#[inline(always)]
fn widen<T: Float>(from: &[T], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.wide();
    }
}
