//! Matrix products: blocked, packed, and each element one chain of fused multiply-adds over k in order.
//!
//! A step of a product is a block of columns by a stretch of k. All threads pack its part of `b` together; then each takes
//! strips of rows, packs a strip's part of `a`, which stays in the first cache, and runs the tile over the panels of `b`,
//! which come from the second. Packing writes one buffer while laggards still read the other. Partial sums wait between
//! stretches as f32: in the result, or in working space where the result is bf16. So no blocking changes a bit.

use super::family::for_float;
use super::finish::{Finish, finish_row};
use super::pack::{Elements, Operand, Stretch, pack_a, pack_b};
use super::simd::{Simd, Strip, tile};
use super::{Cpu, CpuBuf, Family, M, S, Shared};
use crate::device::{Epilogue, Linear, MatmulDims, MatmulLayout};
use crate::{DType, Float};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a family's tile and caches ask for.
#[derive(Clone, Copy)]
struct Blocks {
    /// Rows of a tile.
    mr: usize,
    /// Columns of a tile: a panel.
    nr: usize,
    /// Longest stretch.
    kc: usize,
    /// Most columns of a block.
    nc: usize,
}

// A strip of `a` and the panel of `b` under way fit the first cache. A block of `b` fits the second with AVX-512; with AVX2
// it may come from the third, since to pack strips for fewer blocks gains more than that costs.
const AVX512: Blocks = Blocks { mr: 14, nr: 32, kc: 384, nc: 768 };
const AVX2: Blocks = Blocks { mr: 6, nr: 16, kc: 256, nc: 1152 };
const PORTABLE: Blocks = Blocks { mr: 4, nr: 8, kc: 256, nc: 256 };

impl Blocks {
    fn of(family: Family) -> Self {
        match family {
            Family::Avx512 => AVX512,
            Family::Avx2 => AVX2,
            Family::Portable => PORTABLE,
        }
    }
}

/// Strips that a thread packs at a time.
const GROUP: usize = 8;
/// Shares that the last strips of a step are cut to.
const SHARES: usize = 4;
/// Floats of a group of strips: lines of 16 have room for the rows of any tile.
const A_FLOATS: usize = GROUP * 16 * AVX512.kc;
/// Floats of a block of `b`.
const B_FLOATS: usize = AVX512.kc * AVX512.nc;
const _: () = assert!(AVX2.kc * AVX2.nc <= B_FLOATS && PORTABLE.kc * PORTABLE.nc <= B_FLOATS);
/// Sums of a bf16 result that are in working space at a time.
const SUMS: usize = 1024 * AVX512.nc;

/// Floats of working space a thread: strips of `a`, and a tile at the edge of the result.
pub(super) const SCRATCH_FLOATS: usize = A_FLOATS + AVX512.mr * AVX512.nr;
/// Floats of working space that threads share: two blocks of `b`, and sums of a bf16 result.
pub(super) const SHARED_FLOATS: usize = 2 * B_FLOATS + SUMS;

/// Multiply-adds below which a second thread would come too late.
const SMALL: usize = 1 << 15;

/// A product under way.
struct Product<'a, C> {
    dims: MatmulDims,
    a: Operand<'a>,
    b: Operand<'a>,
    c: Shared<C>,
    accumulate: bool,
    finish: Finish<'a, C>,
    /// Both blocks of `b`, one behind the other, and behind them sums of a bf16 result.
    shared: Shared<f32>,
}

/// A block of the result by a stretch of the sums.
#[derive(Clone, Copy)]
struct Step {
    rows: Stretch,
    columns: Stretch,
    k: Stretch,
    /// Which of the two blocks of `b`.
    buffer: usize,
}

impl Linear for Cpu {
    fn matmul(
        &self,
        layout: MatmulLayout,
        dims: MatmulDims,
        a: S<'_>,
        b: S<'_>,
        c: M<'_>,
        epilogue: Epilogue<'_, CpuBuf>,
    ) {
        let MatmulDims { m, n, k } = dims;
        assert!(a.len() == m * k && b.len() == n * k && c.len() == m * n, "operands do not have {dims:?}");
        for_float!(c, C => {
            let Epilogue { accumulate, bias, activation } = epilogue;
            let finish = Finish::<C>::new(dims, bias, activation);
            let c = c.get::<C>();
            if m == 1 && k > 0 {
                return self.one_row(layout, a, b, c, accumulate, &finish);
            }
            // Element (i, p) of a and (j, p) of b, whatever the layout.
            let (a, b) = (Elements::of(a), Elements::of(b));
            let (a, b) = match layout {
                MatmulLayout::Nt => (Operand { data: a, row: k, step: 1 }, Operand { data: b, row: k, step: 1 }),
                MatmulLayout::Nn => (Operand { data: a, row: k, step: 1 }, Operand { data: b, row: 1, step: n }),
                MatmulLayout::Tn => (Operand { data: a, row: 1, step: m }, Operand { data: b, row: 1, step: n }),
            };
            let shared = self.shared_scratch();
            self.product(&Product { dims, a, b, c: Shared::of(c), accumulate, finish, shared });
        });
    }
}

impl Cpu {
    /// Step by step, all threads together.
    fn product<C: Float>(&self, product: &Product<'_, C>) {
        let MatmulDims { m, n, k } = product.dims;
        if m == 0 || n == 0 {
            return;
        }
        let Blocks { mr, nr, kc, nc } = Blocks::of(self.family);
        let row_blocks = if C::DTYPE == DType::F32 { 1 } else { m.div_ceil(SUMS / nc / mr * mr) };
        let (columns, stretches) = (n.div_ceil(nc), k.div_ceil(kc).max(1));
        // Equal parts; an end of a part within a panel would only leave lanes idle.
        let part = |of: usize, parts: usize, grain: usize, i: usize| {
            let size = of.div_ceil(parts).next_multiple_of(grain);
            let from = (i * size).min(of);
            Stretch { from, len: size.min(of - from) }
        };
        let steps = row_blocks * columns * stretches;
        let step = |s: usize| Step {
            rows: part(m, row_blocks, mr, s / stretches / columns),
            columns: part(n, columns, nr, s / stretches % columns),
            k: part(k, stretches, 8, s % stretches),
            buffer: s % 2,
        };
        let taken = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let (family, alone) = (self.family, m * n * k <= SMALL);
        let threads = if alone { 1 } else { self.pool.threads() };
        let work = |thread: usize| {
            for s in 0..steps {
                let step = step(s);
                let panels = step.columns.len.div_ceil(nr);
                let (from, to) = (thread * panels / threads, (thread + 1) * panels / threads);
                pack_panels(family, product, step, from..to);
                if !alone {
                    self.pool.barrier();
                }
                let strips = step.rows.len.div_ceil(mr);
                // Strips that share cache lines are packed together. The last ones, all of them where rows are few, are cut
                // to shares of their panels, for threads to end together.
                let most = if product.a.step == 1 { 1 } else { GROUP };
                let shares = (2 * threads).div_ceil(strips).max(SHARES).min(panels);
                let items = strips * shares;
                let whole = |from: usize| ((items - from) / shares / (2 * threads)).min(most);
                let take = |from: usize| (from < items).then(|| from + (whole(from) * shares).max(1));
                let next = &taken[s % 2];
                while let Ok(item) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
                    let (strips, share) = match whole(item) {
                        0 => (1, part(step.columns.len, shares, nr, item % shares)),
                        strips => (strips, Stretch { from: 0, len: step.columns.len }),
                    };
                    let from = item / shares * mr;
                    let rows =
                        Stretch { from: step.rows.from + from, len: (strips * mr).min(step.rows.len - from) };
                    multiply_rows(family, product, step, rows, share, self.scratch_of(thread));
                }
                // All have left the step before: its count serves the step behind this one.
                if thread == 0 {
                    taken[(s + 1) % 2].store(0, Ordering::Relaxed);
                }
            }
        };
        self.together(alone, &work);
    }
}

/// Compiles `$name` for each family, with its vectors and blocks, and calls the one for `$family`.
macro_rules! by_family {
    ($family:expr, $body:ident, ($($arg:ident: $type:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m256, __m512};
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            fn avx512<C: Float>($($arg: $type),*) {
                $body::<C, __m512, { AVX512.mr }, 2, { AVX512.nr }, { AVX512.kc }, 16>($($arg),*);
            }
            #[target_feature(enable = "avx2,fma")]
            fn avx2<C: Float>($($arg: $type),*) {
                $body::<C, __m256, { AVX2.mr }, 2, { AVX2.nr }, { AVX2.kc }, 8>($($arg),*);
            }
            match $family {
                // SAFETY: a device is only made for a family that the machine has.
                Family::Avx512 => return unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                Family::Avx2 => return unsafe { avx2($($arg),*) },
                Family::Portable => {}
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = $family;
        $body::<C, [f32; 8], { PORTABLE.mr }, 1, { PORTABLE.nr }, { PORTABLE.kc }, 8>($($arg),*);
    }};
}

/// Packs some panels of a step's block of `b`.
fn pack_panels<C: Float>(family: Family, product: &Product<'_, C>, step: Step, panels: Range<usize>) {
    #[inline(always)]
    fn body<
        C: Float,
        V: Simd,
        const MR: usize,
        const NV: usize,
        const NR: usize,
        const KC: usize,
        const LINE: usize,
    >(
        product: &Product<'_, C>,
        step: Step,
        panels: Range<usize>,
    ) {
        let from = panels.start * NR;
        let columns = (panels.len() * NR).min(step.columns.len - from);
        // Without gaps: the end of a panel fetches the beginning of the next ahead.
        let panel = NR * step.k.len;
        let at = step.buffer * B_FLOATS + panels.start * panel;
        // SAFETY: one thread packs a panel, and nothing reads this buffer before the barrier.
        let out = unsafe { product.shared.part(at, panels.len() * panel) };
        pack_b::<V, NR>(product.b, step.columns.from + from, columns, step.k, out, panel);
    }
    by_family!(family, body, (product: &Product<'_, C>, step: Step, panels: Range<usize>))
}

/// Multiplies a group of strips, some of a step's rows, by a share of its columns, and finishes the elements if these are
/// their last sums.
fn multiply_rows<C: Float>(
    family: Family,
    product: &Product<'_, C>,
    step: Step,
    rows: Stretch,
    share: Stretch,
    scratch: &mut [f32],
) {
    #[inline(always)]
    fn body<
        C: Float,
        V: Simd,
        const MR: usize,
        const NV: usize,
        const NR: usize,
        const KC: usize,
        const LINE: usize,
    >(
        product: &Product<'_, C>,
        step: Step,
        rows: Stretch,
        share: Stretch,
        scratch: &mut [f32],
    ) {
        let (strips, edge) = scratch.split_at_mut(A_FLOATS);
        pack_a::<V, MR, LINE, KC>(product.a, rows.from, rows.len, step.k, strips);
        for (s, strip) in strips.chunks_exact(LINE * KC).enumerate().take(rows.len.div_ceil(MR)) {
            let rows = Stretch { from: rows.from + s * MR, len: MR.min(rows.len - s * MR) };
            multiply_strip::<C, V, MR, NV, NR, KC, LINE>(product, step, rows, share, strip, edge);
        }
    }
    by_family!(family, body, (product: &Product<'_, C>, step: Step, rows: Stretch, share: Stretch, scratch: &mut [f32]))
}

/// Multiplies one strip, packed, by a share of a step's columns.
#[inline(always)]
fn multiply_strip<
    C: Float,
    V: Simd,
    const MR: usize,
    const NV: usize,
    const NR: usize,
    const KC: usize,
    const LINE: usize,
>(
    product: &Product<'_, C>,
    step: Step,
    Stretch { from: first, len: rows }: Stretch,
    share: Stretch,
    strip: &[f32],
    edge: &mut [f32],
) {
    let (dims, k) = (product.dims, step.k);
    let from = step.columns.from + share.from;
    let (begins, ends) = (k.from == 0, k.from + k.len == dims.k);
    // Sums are where the result is, or behind the blocks of `b`.
    let (sums, ld) = if C::DTYPE == DType::F32 {
        (product.c.at(first * dims.n + from).cast::<f32>(), dims.n)
    } else {
        let line = step.columns.len;
        let at = (first - step.rows.from) * line + share.from;
        let sums = product.shared.at(2 * B_FLOATS + at);
        if begins && product.accumulate {
            for r in 0..rows {
                for j in 0..share.len {
                    // SAFETY: this strip and share are this thread's until the next barrier.
                    unsafe {
                        *sums.add(r * line + j) = (*product.c.at((first + r) * dims.n + from + j)).wide()
                    };
                }
            }
        }
        (sums, line)
    };
    let fresh = begins && !product.accumulate;
    let blocks = product.shared.at(step.buffer * B_FLOATS);
    let a = strip.as_ptr();
    for j in (0..share.len).step_by(NR) {
        let b = blocks.wrapping_add((share.from + j) * k.len).cast_const();
        let (to, columns) = (sums.wrapping_add(j), NR.min(share.len - j));
        if columns == NR {
            let soon = (j + 2 * NR <= share.len).then(|| to.wrapping_add(NR).cast_const());
            // SAFETY: `a` and `b` were packed for this stretch, and the strip of sums is this thread's.
            unsafe {
                strip_tile::<V, MR, NV, NR, KC, LINE>(product.a, rows, k.len, a, b, (to, ld), fresh, soon)
            };
        } else {
            let edge = &mut edge[..MR * NR];
            // SAFETY: as above; the columns that there are are copied, the others belong to nobody.
            unsafe {
                if !fresh {
                    for r in 0..rows {
                        to.wrapping_add(r * ld).copy_to(edge.as_mut_ptr().add(r * NR), columns);
                    }
                }
                let c = (edge.as_mut_ptr(), NR);
                strip_tile::<V, MR, NV, NR, KC, LINE>(product.a, rows, k.len, a, b, c, fresh, None);
                for r in 0..rows {
                    to.wrapping_add(r * ld).copy_from(edge.as_ptr().add(r * NR), columns);
                }
            }
        }
    }
    if ends && product.finish.needed() {
        for r in 0..rows {
            let (sums, row) = (sums.wrapping_add(r * ld).cast_const(), first + r);
            let c = product.c.at(row * dims.n + from);
            // SAFETY: as above.
            unsafe { finish_row(&product.finish, sums, c, share.len, row, from) };
        }
    }
}

/// [`tile`] with as many rows as there are, `MR` at most, and `a` as [`pack_a`] left it.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel's operands and their strides")]
unsafe fn strip_tile<
    V: Simd,
    const MR: usize,
    const NV: usize,
    const NR: usize,
    const KC: usize,
    const LINE: usize,
>(
    a: Operand<'_>,
    rows: usize,
    k: usize,
    at: *const f32,
    b: *const f32,
    c: (*mut f32, usize),
    fresh: bool,
    soon: Option<*const f32>,
) {
    // Strides that the compiler knows become displacements of the loads.
    let (along, across) = (Strip { at, row: KC, step: 1 }, Strip { at, row: 1, step: LINE });
    macro_rules! rows {
        ($($r:literal)*) => {
            match (rows, a.step == 1) {
                $(
                    // SAFETY: the caller's promise.
                    ($r, true) if $r <= MR => unsafe { tile::<V, $r, NV>(k, along, (b, NR), c, fresh, soon) },
                    // SAFETY: as above.
                    ($r, false) if $r <= MR => unsafe { tile::<V, $r, NV>(k, across, (b, NR), c, fresh, soon) },
                )*
                _ => unreachable!("a strip has at most {MR} rows"),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}
