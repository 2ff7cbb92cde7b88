//! Products of attention's tiles, each element one chain of fused multiply-adds, and the packing that they ask for.

use super::sight::Rows;
use super::{P_LINE, padded};
use crate::Float;
use crate::cpu::Family;
use crate::cpu::family::kernel;
use crate::cpu::pack::{Operand, Stretch, pack_b};
use crate::cpu::simd::{Simd, Strip, tile};
use std::ops::Range;

/// Rows and columns of a family's tile in registers.
const AVX512: (usize, usize) = (14, 32);
const AVX2: (usize, usize) = (6, 16);
const PORTABLE: (usize, usize) = (4, 8);
/// The widest of them.
pub(super) const MOST_ROWS: usize = AVX512.0;

/// Rows `0 .. rows`, cut to strips that a tile of the family takes, as equal as can be.
pub(super) fn strips(family: Family, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let most = match family {
        Family::Avx512 => AVX512.0,
        Family::Avx2 => AVX2.0,
        Family::Portable => PORTABLE.0,
    };
    strips_of(most, rows)
}

#[inline(always)]
fn strips_of(most: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let strips = rows.div_ceil(most);
    (0..strips).map(move |s| s * rows / strips..(s + 1) * rows / strips)
}

/// Compiles `$body` for each family, with its vectors and the sizes of its tile, and calls the one for `$family`.
macro_rules! by_family {
    ($family:expr, $body:ident, [$($size:ident),*], ($($arg:ident: $type:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m256, __m512};
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            fn avx512<$(const $size: usize),*>($($arg: $type),*) {
                $body::<__m512, { AVX512.0 }, 2, { AVX512.1 }, $($size),*>($($arg),*);
            }
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$(const $size: usize),*>($($arg: $type),*) {
                $body::<__m256, { AVX2.0 }, 2, { AVX2.1 }, $($size),*>($($arg),*);
            }
            match $family {
                // SAFETY: a device is only made for a family that the machine has.
                Family::Avx512 => return unsafe { avx512::<$($size),*>($($arg),*) },
                // SAFETY: as above.
                Family::Avx2 => return unsafe { avx2::<$($size),*>($($arg),*) },
                Family::Portable => {}
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = $family;
        $body::<[f32; 8], { PORTABLE.0 }, 1, { PORTABLE.1 }, $($size),*>($($arg),*);
    }};
}

/// The right operand of a product, `k` lines.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    /// Rows as many floats apart, a multiple of 16 of them in use.
    Rows(&'a [f32], usize),
    /// As [`pack_columns`] or [`pack_panels`] leave it.
    Panels(Panels<'a>),
}

/// Columns in panels as wide as a family's tile, each `lines` long; a product begins with line `from`.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    pub(super) data: &'a [f32],
    pub(super) lines: usize,
    pub(super) from: usize,
}

/// What is multiplied, and to where: `c[r][l] += sum over p < k of a[r ROW + p STEP] b[p][l]`.
pub(super) struct Product<'a> {
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) a: &'a [f32],
    pub(super) b: Right<'a>,
    /// Which columns; they are widened to the bounds of tiles.
    pub(super) columns: Range<usize>,
    pub(super) c: &'a mut [f32],
    pub(super) line: usize,
    /// Chains begin at zero, not at what is in `c`.
    pub(super) fresh: bool,
}

/// Multiplies; rows of `a` are `ROW` apart, and steps along the sums `STEP`.
pub(super) fn multiply<const ROW: usize, const STEP: usize>(family: Family, product: Product<'_>) {
    #[inline(always)]
    fn body<
        V: Simd,
        const MR: usize,
        const NV: usize,
        const NR: usize,
        const ROW: usize,
        const STEP: usize,
    >(
        p: Product<'_>,
    ) {
        let Product { rows, k, a, b, columns, c, line, fresh } = p;
        if rows == 0 || k == 0 || columns.is_empty() {
            return;
        }
        let (start, end) = (columns.start / NR * NR, columns.end.next_multiple_of(16));
        // Where a panel begins, and how far the last line reaches.
        let (b, b_line, panel, last) = match b {
            Right::Rows(b, line) => (b, line, NR, (k - 1) * line + end),
            Right::Panels(b) => {
                let last = (end - 1) / NR * NR * b.lines + (k - 1) * NR + (end - 1) % NR + 1;
                (&b.data[b.from * NR..], NR, b.lines * NR, last)
            }
        };
        let fits = a.len() > (rows - 1) * ROW + (k - 1) * STEP;
        assert!(fits && b.len() >= last && c.len() >= (rows - 1) * line + end, "operands of {rows} by {k}");
        for strip in strips_of(MR, rows) {
            let a = a[strip.start * ROW..].as_ptr();
            let mut j = start;
            while j < end {
                let b = b[j / NR * panel + j % NR..].as_ptr();
                let c = c[strip.start * line + j..].as_mut_ptr();
                // SAFETY: a device is only made for a family that the machine has; all is there, as was asserted; `c` is
                // borrowed for this product alone.
                unsafe {
                    if j + NR <= end {
                        rows_of::<V, MR, NV, ROW, STEP>(strip.len(), k, a, (b, b_line), (c, line), fresh);
                        j += NR;
                    } else {
                        rows_of::<V, MR, 1, ROW, STEP>(strip.len(), k, a, (b, b_line), (c, line), fresh);
                        j += V::LANES;
                    }
                }
            }
        }
    }
    by_family!(family, body, [ROW, STEP], (product: Product<'_>))
}

/// [`tile`] with as many rows as there are, `MR` at most.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn rows_of<V: Simd, const MR: usize, const N: usize, const ROW: usize, const STEP: usize>(
    rows: usize,
    k: usize,
    at: *const f32,
    b: (*const f32, usize),
    c: (*mut f32, usize),
    fresh: bool,
) {
    // Strides that the compiler knows become displacements of the loads.
    let a = Strip { at, row: ROW, step: STEP };
    macro_rules! rows {
        ($($r:literal)*) => {
            match rows {
                // SAFETY: the caller's promise.
                $($r if $r <= MR => unsafe { tile::<V, $r, N>(k, a, b, c, fresh, None) },)*
                _ => unreachable!("a strip has at most {MR} rows"),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// A part of rows of a matrix, whatever their type.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) rows: Operand<'a>,
    pub(super) part: Stretch,
}

/// Copies rows `first .. first + n` as columns in panels of a tile's width; where rows end within a panel, the rest is zero.
pub(super) fn pack_columns(family: Family, x: Source<'_>, first: usize, n: usize, out: &mut [f32]) {
    #[inline(always)]
    fn body<V: Simd, const MR: usize, const NV: usize, const NR: usize>(
        x: Source<'_>,
        first: usize,
        n: usize,
        out: &mut [f32],
    ) {
        pack_b::<V, NR>(x.rows, first, n, x.part, out, NR * x.part.len);
    }
    by_family!(family, body, [], (x: Source<'_>, first: usize, n: usize, out: &mut [f32]))
}

/// Copies rows `first .. first + n` to panels of a tile's width; where rows end within a panel, the rest is zero.
pub(super) fn pack_panels(family: Family, x: Source<'_>, first: usize, n: usize, out: &mut [f32]) {
    #[inline(always)]
    fn body<V: Simd, const MR: usize, const NV: usize, const NR: usize>(
        x: Source<'_>,
        first: usize,
        n: usize,
        out: &mut [f32],
    ) {
        let rows = Operand { data: x.rows.data, row: 1, step: x.rows.row };
        pack_b::<V, NR>(rows, x.part.from, x.part.len, Stretch { from: first, len: n }, out, NR * n);
    }
    by_family!(family, body, [], (x: Source<'_>, first: usize, n: usize, out: &mut [f32]))
}

kernel! {
    /// Copies rows `first .. first + n`, times `scale`, to lines `line` floats apart; each is filled up with zeros to the
    /// width of vectors.
    pub(super) fn pack_rows<T: Float>(
        x: Rows<'_, T>, first: usize, n: usize, scale: f32, out: &mut [f32], line: usize,
    ) {
        let width = padded(x.head_dim);
        for (i, out) in out.chunks_mut(line).enumerate().take(n) {
            let row = x.row(first + i);
            for (o, x) in out.iter_mut().zip(row) {
                *o = x.wide() * scale;
            }
            out[row.len()..width].fill(0.0);
        }
    }
}

/// Lanes of one query of a tile: the keys, counted from the tile's first, that it sees.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lanes {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Lanes {
    pub(super) fn is_empty(self) -> bool {
        self.start >= self.end
    }

    fn and(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// Smallest run that holds all of them.
    pub(super) fn all(lanes: &[Self]) -> Self {
        lanes.iter().filter(|x| !x.is_empty()).fold(Self { start: usize::MAX, end: 0 }, |a, x| Self {
            start: a.start.min(x.start),
            end: a.end.max(x.end),
        })
    }
}

/// `c[r] += sum over r's lanes l within `within` of a[r][l] b[l]`, for rows of a strip, those of `c` `line` apart. A row's
/// sum meets its lanes in order, and no other: what it does not see may be anything.
pub(super) fn sum_lanes(
    family: Family,
    lanes: &[Lanes],
    within: Lanes,
    a: &[f32],
    b: Panels<'_>,
    c: &mut [f32],
    (width, line): (usize, usize),
) {
    let common = lanes.iter().fold(within, |x, y| x.and(*y));
    let any = Lanes::all(lanes).and(within);
    if any.is_empty() {
        return;
    }
    let halves = |within: Lanes, c: &mut [f32]| {
        let (low, high) = lanes.split_at(lanes.len() / 2);
        sum_lanes(family, low, within, a, b, c, (width, line));
        let (a, c) = (&a[low.len() * P_LINE..], &mut c[low.len() * line..]);
        sum_lanes(family, high, within, a, b, c, (width, line));
    };
    if common.is_empty() {
        return halves(within, c);
    }
    if any.start < common.start {
        halves(Lanes { start: within.start, end: common.start }, c);
    }
    let (a, k) = (&a[common.start..], common.end - common.start);
    let b = Right::Panels(Panels { from: common.start, ..b });
    let product = Product { rows: lanes.len(), k, a, b, columns: 0..width, c, line, fresh: false };
    multiply::<P_LINE, 1>(family, product);
    if any.end > common.end {
        halves(Lanes { start: common.end, end: within.end }, c);
    }
}
