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
/// Panels that such a copy fills side by side.
const SIDE: usize = 4;

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
                    // What follows a row is read along where it is there: no tile uses it.
                    copy::<V, LINE, _>(&data[from + r..], rows - r, &mut out[r / MR * LINE * KC + q * LINE..]);
                }
            }
        }
    });
}

/// Copies `columns` columns of `b` from `first` on as panels of `NR`, one every `panel` floats, step by step; where columns
/// end within a panel, the rest of it is zeros.
#[inline(always)]
pub(super) fn pack_b<V: Simd, const NR: usize>(
    b: Operand<'_>,
    first: usize,
    columns: usize,
    k: Stretch,
    out: &mut [f32],
    panel: usize,
) {
    if k.len == 0 {
        return;
    }
    elements!(b, data => {
        if b.step == 1 {
            for (j, out) in (0..columns).step_by(NR).zip(out.chunks_mut(panel)) {
                transpose::<V, NR, _>(data, b.row, first + j, NR.min(columns - j), k, &mut out[..NR * k.len]);
            }
        } else {
            let data = &data[k.from * b.step + first..];
            let mut done = 0;
            while done + SIDE * NR <= columns {
                copy_panels::<V, NR, SIDE, _>(&data[done..], b.step, k.len, &mut out[done / NR * panel..], panel);
                done += SIDE * NR;
            }
            while done + NR <= columns {
                copy_panels::<V, NR, 1, _>(&data[done..], b.step, k.len, &mut out[done / NR * panel..], panel);
                done += NR;
            }
            if done < columns {
                let rest = columns - done;
                for (q, out) in out[done / NR * panel..].chunks_exact_mut(NR).enumerate().take(k.len) {
                    widen(&data[q * b.step + done..][..rest], &mut out[..rest]);
                    out[rest..].fill(0.0);
                }
            }
        }
    });
}

/// Copies rows `step` apart, `SIDE` panels of `NR` elements at a time, so that what lies side by side is read at once.
#[inline(always)]
fn copy_panels<V: Simd, const NR: usize, const SIDE: usize, T: Float>(
    data: &[T],
    step: usize,
    rows: usize,
    out: &mut [f32],
    panel: usize,
) {
    let there = data.len() >= (rows - 1) * step + SIDE * NR;
    assert!(there && out.len() >= (SIDE - 1) * panel + rows * NR, "panels of {rows} rows");
    let (data, out) = (data.as_ptr(), out.as_mut_ptr());
    for q in 0..rows {
        let (row, line) = (data.wrapping_add(q * step), out.wrapping_add(q * NR));
        for p in 0..SIDE {
            let (from, to) = (row.wrapping_add(p * NR), line.wrapping_add(p * panel));
            V::prefetch(from.wrapping_add(AHEAD * step).cast());
            for l in (0..NR).step_by(V::LANES) {
                // SAFETY: all is there, as was asserted; `NR` is a multiple of the lanes, and the machine has `V`: a device is
                // only made for a family that it has.
                unsafe { V::widen(from.add(l), to.add(l)) };
            }
        }
    }
}

/// Copies `N` elements as f32, whole vectors, or the first `n` of them where that is all there is.
#[inline(always)]
fn copy<V: Simd, const N: usize, T: Float>(from: &[T], n: usize, to: &mut [f32]) {
    if from.len() < N {
        return widen(&from[..n], &mut to[..n]);
    }
    let (from, to) = (&from[..N], &mut to[..N]);
    for l in (0..N).step_by(V::LANES) {
        // SAFETY: `N` is a multiple of the lanes, and the machine has `V`: a device is only made for a family that it has.
        unsafe { V::widen(from.as_ptr().add(l), to.as_mut_ptr().add(l)) };
    }
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
