//! Matrix products: blocked, packed, and each element one chain of fused multiply-adds over k in order.
//!
//! A task owns a block of the result. For each block of k it packs its parts of both operands in this
//! thread's scratch and runs the micro-kernel over them; partial sums wait in the result between blocks of
//! k, so no blocking changes a bit.

use super::family::kernel;
use super::{Cpu, Family, M, S, Shared};
use crate::device::{Linear, MatmulDims, MatmulLayout, Memory};
use crate::math::dot16;

/// Rows of a task's block; a multiple of every family's tile.
const MC: usize = 168;
/// Columns of a task's task.
const NC: usize = 256;
/// Length of a packed stretch of k.
const KC: usize = 256;

pub(super) const SCRATCH_FLOATS: usize = (MC + NC) * KC;

/// A matrix operand: element `(i, p)` at `i * row + p * col`.
#[derive(Clone, Copy)]
struct Operand<'a> {
    data: &'a [f32],
    row: usize,
    col: usize,
}

/// One task: a block of the result, and what it is computed from.
#[derive(Clone, Copy)]
struct Task<'a> {
    a: Operand<'a>,
    b: Operand<'a>,
    c: Shared<f32>,
    /// Length of the sums.
    k: usize,
    /// Columns of the whole result.
    ldc: usize,
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
        let (a, b, c) = (a.get::<f32>(), b.get::<f32>(), c.get::<f32>());
        assert!(a.len() == m * k && b.len() == n * k && c.len() == m * n, "operands do not have {dims:?}");
        if k == 0 {
            if !accumulate {
                c.fill(0.0);
            }
            return;
        }
        let shared = Shared::of(c);
        if m == 1 && layout == MatmulLayout::Nt {
            // One token: packing the weight would cost more than the product.
            let (tasks, size) = self.parts(n, 16);
            return self.parallel(tasks, |t| {
                let start = t * size;
                // SAFETY: task `t` takes the `t`-th part of the row.
                let out = unsafe { shared.part(start, size.min(n - start)) };
                gemv(self.family, a, &b[start * k..], out, accumulate);
            });
        }
        // Element (i, p) of a and (j, p) of b, whatever the layout.
        let (a, b) = match layout {
            MatmulLayout::Nt => (Operand { data: a, row: k, col: 1 }, Operand { data: b, row: k, col: 1 }),
            MatmulLayout::Nn => (Operand { data: a, row: k, col: 1 }, Operand { data: b, row: 1, col: n }),
            MatmulLayout::Tn => (Operand { data: a, row: 1, col: m }, Operand { data: b, row: 1, col: n }),
        };
        let (mc, nc) = block_size(m, n, self.description().threads);
        let (rows, cols) = (m.div_ceil(mc), n.div_ceil(nc));
        self.parallel(rows * cols, |t| {
            let (i, j) = (t % rows * mc, t / rows * nc);
            let (m, n_block) = (mc.min(m - i), nc.min(n - j));
            let task = Task { a, b, c: shared, k, ldc: n, accumulate, i, m, j, n: n_block };
            // SAFETY: the scratch is this thread's, and long enough for both packed operands.
            let (pa, pb) =
                unsafe { (self.scratch().part(0, MC * KC), self.scratch().part(MC * KC, NC * KC)) };
            multiply_block(self.family, task, pa, pb);
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
                let tile = c.at(i * ldc + j);
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
        if x.row == 1 {
            for (q, line) in panel.chunks_exact_mut(R).enumerate() {
                let from = (p + q) * x.col + start;
                line[..live].copy_from_slice(&x.data[from..from + live]);
                line[live..].fill(0.0);
            }
        } else {
            if live < R {
                panel.fill(0.0);
            }
            for r in 0..live {
                let from = (start + r) * x.row + p;
                for (q, v) in x.data[from..from + kc].iter().enumerate() {
                    panel[q * R + r] = *v;
                }
            }
        }
    }
}
