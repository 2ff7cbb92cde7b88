//! Matrix products: blocked, packed, and each element one chain of fused multiply-adds over k in order.
//!
//! A task owns a block of the result. For each block of k it packs its parts of both operands, widened to f32, in
//! this thread's scratch and runs the micro-kernel over them. Partial sums wait between blocks of k as f32: in the
//! result, or in scratch where the result is bf16. So no blocking changes a bit.

use super::family::{for_float, kernel};
use super::{Cpu, Family, M, S, Shared};
use crate::device::{Linear, MatmulDims, MatmulLayout, Memory};
use crate::math::dot16;
use crate::{DType, Float, bf16};

/// Rows of a task's block; a multiple of every family's tile.
const MC: usize = 168;
/// Columns of a task's task.
const NC: usize = 256;
/// Length of a packed stretch of k.
const KC: usize = 256;

/// Both packed operands, and the sums of a block whose result is bf16.
pub(super) const SCRATCH_FLOATS: usize = (MC + NC) * KC + MC * NC;

/// A matrix operand: element `(i, p)` at `i * row + p * col`.
#[derive(Clone, Copy)]
struct Operand<'a> {
    data: Elements<'a>,
    row: usize,
    col: usize,
}

/// The elements of an operand.
#[derive(Clone, Copy)]
enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Elements<'a> {
    fn of(s: S<'a>) -> Self {
        if s.dtype() == DType::BF16 { Self::Bf16(s.get()) } else { Self::F32(s.get()) }
    }
}

/// One task: a block of the result, and what it is computed from.
#[derive(Clone, Copy)]
struct Task<'a> {
    a: Operand<'a>,
    b: Operand<'a>,
    /// Where the block's first sum is.
    c: Shared<f32>,
    /// From one row of sums to the next.
    ldc: usize,
    /// Length of the sums.
    k: usize,
    accumulate: bool,
    /// First row of the block, and how many.
    i: usize,
    m: usize,
    /// First column of the block, and how many.
    j: usize,
    n: usize,
}

impl Linear for Cpu {
    fn matmul(&self, layout: MatmulLayout, dims: MatmulDims, a: S<'_>, b: S<'_>, c: M<'_>, accumulate: bool) {
        let MatmulDims { m, n, k } = dims;
        assert!(a.len() == m * k && b.len() == n * k && c.len() == m * n, "operands do not have {dims:?}");
        if k == 0 {
            if !accumulate {
                self.zero(c);
            }
            return;
        }
        let one_token = m == 1 && layout == MatmulLayout::Nt;
        if one_token && [a.dtype(), b.dtype(), c.dtype()] == [DType::F32; 3] {
            return self.vector_product(a.get(), b.get(), c.get(), accumulate);
        }
        // Element (i, p) of a and (j, p) of b, whatever the layout.
        let (a, b) = (Elements::of(a), Elements::of(b));
        let (a, b) = match layout {
            MatmulLayout::Nt => (Operand { data: a, row: k, col: 1 }, Operand { data: b, row: k, col: 1 }),
            MatmulLayout::Nn => (Operand { data: a, row: k, col: 1 }, Operand { data: b, row: 1, col: n }),
            MatmulLayout::Tn => (Operand { data: a, row: 1, col: m }, Operand { data: b, row: 1, col: n }),
        };
        for_float!(c, C => self.blocks(dims, a, b, c.get::<C>(), accumulate));
    }
}

impl Cpu {
    /// One row: packing the weight would cost more than the product.
    fn vector_product(&self, a: &[f32], b: &[f32], c: &mut [f32], accumulate: bool) {
        let n = c.len();
        let (tasks, size) = self.parts(n, 16);
        let c = Shared::of(c);
        self.parallel(tasks, |t| {
            let start = t * size;
            // SAFETY: task `t` takes the `t`-th part of the row.
            let out = unsafe { c.part(start, size.min(n - start)) };
            gemv(self.family, a, &b[start * a.len()..], out, accumulate);
        });
    }

    /// Computes the result block by block.
    fn blocks<C: Float>(&self, d: MatmulDims, a: Operand<'_>, b: Operand<'_>, c: &mut [C], accumulate: bool) {
        let (mc, nc) = block_size(d.m, d.n, self.description().threads);
        let (rows, cols) = (d.m.div_ceil(mc), d.n.div_ceil(nc));
        let c = Shared::of(c);
        self.parallel(rows * cols, |t| {
            let (i, j) = (t % rows * mc, t / rows * nc);
            let (m, n) = (mc.min(d.m - i), nc.min(d.n - j));
            // SAFETY: the scratch is this thread's, and long enough for both packed operands and a block of sums.
            let (pa, pb, sums) = unsafe {
                let s = self.scratch();
                (s.part(0, MC * KC), s.part(MC * KC, NC * KC), s.part((MC + NC) * KC, MC * NC))
            };
            let from = i * d.n + j;
            let task = |c, ldc| Task { a, b, c, ldc, k: d.k, accumulate, i, m, j, n };
            if C::DTYPE == DType::F32 {
                return multiply_block(self.family, task(Shared(c.at(from).cast()), d.n), pa, pb);
            }
            // SAFETY: rows `i .. i + m` and columns `j .. j + n` of the result are this task's alone.
            let row = |r: usize| unsafe { c.part(from + r * d.n, n) };
            if accumulate {
                for r in 0..m {
                    sums[r * n..(r + 1) * n].iter_mut().zip(row(r)).for_each(|(s, c)| *s = c.wide());
                }
            }
            multiply_block(self.family, task(Shared::of(sums), n), pa, pb);
            for r in 0..m {
                row(r).iter_mut().zip(&sums[r * n..]).for_each(|(c, s)| *c = C::narrow(*s));
            }
        });
    }
}

/// Rows and columns of a task's block: as large as scratch allows, but small enough that a few tasks come to each
/// thread. No blocking changes a bit.
fn block_size(m: usize, n: usize, threads: usize) -> (usize, usize) {
    let (mut mc, mut nc) = (MC, NC);
    let tasks = |mc, nc| m.div_ceil(mc) * n.div_ceil(nc);
    while threads > 1 && tasks(mc, nc) < 3 * threads && (mc > MC / 4 || nc > NC / 4) {
        if nc.min(n) >= mc.min(m) && nc > NC / 4 || mc <= MC / 4 { nc /= 2 } else { mc /= 2 }
    }
    (mc, nc)
}

kernel! {
    /// `out[j] = a . b[j]` for rows of `b`.
    fn gemv(a: &[f32], b: &[f32], out: &mut [f32], accumulate: bool) {
        for (o, row) in out.iter_mut().zip(b.chunks_exact(a.len())) {
            let sum = dot16(a, row);
            *o = if accumulate { *o + sum } else { sum };
        }
    }
}

/// Picks the tile that fits the family's registers, and runs it compiled for that family.
fn multiply_block(family: Family, task: Task<'_>, pa: &mut [f32], pb: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        fn avx512(task: Task<'_>, pa: &mut [f32], pb: &mut [f32]) {
            block_loop::<6, 32>(task, pa, pb);
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(task: Task<'_>, pa: &mut [f32], pb: &mut [f32]) {
            block_loop::<6, 16>(task, pa, pb);
        }
        match family {
            // SAFETY: a device is only made for a family that the machine has.
            Family::Avx512 => return unsafe { avx512(task, pa, pb) },
            // SAFETY: as above.
            Family::Avx2 => return unsafe { avx2(task, pa, pb) },
            Family::Portable => {}
        }
    }
    let _ = family;
    block_loop::<4, 8>(task, pa, pb);
}

#[inline(always)]
fn block_loop<const MR: usize, const NR: usize>(task: Task<'_>, pa: &mut [f32], pb: &mut [f32]) {
    let Task { a, b, c, k, ldc, accumulate, .. } = task;
    let mut p = 0;
    while p < k {
        let kc = KC.min(k - p);
        pack::<MR>(a, task.i, task.m, p, kc, pa);
        pack::<NR>(b, task.j, task.n, p, kc, pb);
        let fresh = p == 0 && !accumulate;
        for (jt, pb) in pb.chunks_exact(NR * kc).enumerate().take(task.n.div_ceil(NR)) {
            for (it, pa) in pa.chunks_exact(MR * kc).enumerate().take(task.m.div_ceil(MR)) {
                let (i, j) = (task.i + it * MR, task.j + jt * NR);
                let (m, n) = (MR.min(task.i + task.m - i), NR.min(task.j + task.n - j));
                let tile = c.at((i - task.i) * ldc + j - task.j);
                let mut acc = [[0f32; NR]; MR];
                if !fresh {
                    for (r, row) in acc.iter_mut().enumerate().take(m) {
                        // SAFETY: rows `i + r` and columns `j .. j + n` lie in this task's task.
                        let from = unsafe { std::slice::from_raw_parts(tile.add(r * ldc), n) };
                        row[..n].copy_from_slice(from);
                    }
                }
                micro::<MR, NR>(pa, pb, &mut acc);
                for (r, row) in acc.iter().enumerate().take(m) {
                    // SAFETY: as above, and no other task writes this task.
                    let to = unsafe { std::slice::from_raw_parts_mut(tile.add(r * ldc), n) };
                    to.copy_from_slice(&row[..n]);
                }
            }
        }
        p += kc;
    }
}

/// `acc[r][l] += sum over p of a[p][r] b[p][l]`.
#[inline(always)]
fn micro<const MR: usize, const NR: usize>(pa: &[f32], pb: &[f32], acc: &mut [[f32; NR]; MR]) {
    let mut c = *acc;
    for (a, b) in pa.chunks_exact(MR).zip(pb.chunks_exact(NR)) {
        let b: &[f32; NR] = b.try_into().expect("chunks have the tile's width");
        for r in 0..MR {
            for l in 0..NR {
                c[r][l] = a[r].mul_add(b[l], c[r][l]);
            }
        }
    }
    *acc = c;
}

/// Packs rows `first .. first + rows` and `k` indices `p .. p + kc` as panels of `R` rows, k-major; the last
/// panel is filled up with zeros.
#[inline(always)]
fn pack<const R: usize>(x: Operand<'_>, first: usize, rows: usize, p: usize, kc: usize, out: &mut [f32]) {
    for (t, panel) in out.chunks_exact_mut(R * kc).enumerate().take(rows.div_ceil(R)) {
        let start = first + t * R;
        let live = R.min(first + rows - start);
        match x.data {
            Elements::F32(data) => pack_panel::<R, _>(data, (x.row, x.col), start, live, (p, kc), panel),
            Elements::Bf16(data) => pack_panel::<R, _>(data, (x.row, x.col), start, live, (p, kc), panel),
        }
    }
}

/// One panel: `live` rows from `start` on.
#[inline(always)]
fn pack_panel<const R: usize, T: Float>(
    data: &[T],
    (row, col): (usize, usize),
    start: usize,
    live: usize,
    (p, kc): (usize, usize),
    panel: &mut [f32],
) {
    if row == 1 {
        for (q, line) in panel.chunks_exact_mut(R).enumerate() {
            let from = (p + q) * col + start;
            let (used, rest) = line.split_at_mut(live);
            used.iter_mut().zip(&data[from..from + live]).for_each(|(o, x)| *o = x.wide());
            rest.fill(0.0);
        }
    } else {
        if live < R {
            panel.fill(0.0);
        }
        for r in 0..live {
            let from = (start + r) * row + p;
            for (q, v) in data[from..from + kc].iter().enumerate() {
                panel[q * R + r] = v.wide();
            }
        }
    }
}
