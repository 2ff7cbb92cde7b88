//! Vectors of f32, and the tile of a matrix product that is held in them: what GEMM and attention are made of.
//!
//! A lane's arithmetic is the same in every type: one fused multiply-add an element and step. So which of them computes
//! cannot change a bit.

use crate::Float;

/// A register of f32 lanes.
///
/// Methods are unsafe where the machine must have the type's instructions, or memory must be there.
pub(super) trait Simd: Copy {
    /// Number of lanes.
    const LANES: usize;

    /// All lanes `x`.
    ///
    /// # Safety
    /// The machine has the type's instructions; so below.
    unsafe fn splat(x: f32) -> Self;

    /// The lanes from `from` on, which need not be aligned.
    ///
    /// # Safety
    /// `LANES` elements are there.
    unsafe fn load(from: *const f32) -> Self;

    /// Writes the lanes.
    ///
    /// # Safety
    /// `LANES` elements are there.
    unsafe fn store(self, to: *mut f32);

    /// `self + a b`, rounded once.
    ///
    /// # Safety
    /// As [`Simd::splat`].
    unsafe fn fma(self, a: Self, b: Self) -> Self;

    /// Has the cache line of `at` fetched; `at` need not be mapped.
    #[inline(always)]
    fn prefetch(at: *const f32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch touches no memory that the program can see, and every x86-64 has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Writes the `LANES` elements from `from` on as f32.
    ///
    /// # Safety
    /// As [`Simd::splat`]; the elements are there, and room for them.
    #[inline(always)]
    unsafe fn widen<T: Float>(from: *const T, to: *mut f32) {
        for l in 0..Self::LANES {
            // SAFETY: the caller's promise.
            unsafe { *to.add(l) = (*from.add(l)).wide() };
        }
    }

    /// Writes 8 rows of 8 elements, the first at `from`, `row` elements apart, as the columns of 8 rows of f32, the first
    /// at `to`, `line` elements apart.
    ///
    /// # Safety
    /// As [`Simd::splat`]; 8 elements of each row and line are there.
    unsafe fn transpose<T: Float>(from: *const T, row: usize, to: *mut f32, line: usize) {
        for r in 0..8 {
            for q in 0..8 {
                // SAFETY: the caller's promise.
                unsafe { *to.add(q * line + r) = (*from.add(r * row + q)).wide() };
            }
        }
    }
}

impl Simd for [f32; 8] {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; 8]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise; an array of f32 is aligned as an f32 is.
        unsafe { from.cast::<Self>().read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { to.cast::<Self>().write(self) };
    }

    #[inline(always)]
    unsafe fn fma(mut self, a: Self, b: Self) -> Self {
        for l in 0..8 {
            self[l] = a[l].mul_add(b[l], self[l]);
        }
        self
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use crate::{DType, Float};
    use std::arch::x86_64::*;

    impl Simd for __m256 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm256_storeu_ps(to, self) };
        }

        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm256_fmadd_ps(a, b, self) }
        }

        #[inline(always)]
        unsafe fn widen<T: Float>(from: *const T, to: *mut f32) {
            // SAFETY: the caller's promise, see the trait.
            unsafe { wide8(from).store(to) };
        }

        #[inline(always)]
        unsafe fn transpose<T: Float>(from: *const T, row: usize, to: *mut f32, line: usize) {
            // SAFETY: the caller's promise, see the trait.
            unsafe { transpose(from, row, to, line) };
        }
    }

    impl Simd for __m512 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm512_storeu_ps(to, self) };
        }

        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller's promise, see the trait.
            unsafe { _mm512_fmadd_ps(a, b, self) }
        }

        #[inline(always)]
        unsafe fn widen<T: Float>(from: *const T, to: *mut f32) {
            // SAFETY: the caller's promise, see the trait.
            unsafe {
                wide8(from).store(to);
                wide8(from.add(8)).store(to.add(8));
            }
        }

        #[inline(always)]
        unsafe fn transpose<T: Float>(from: *const T, row: usize, to: *mut f32, line: usize) {
            // SAFETY: the caller's promise, see the trait.
            unsafe { transpose(from, row, to, line) };
        }
    }

    /// 8 elements, widened.
    #[inline(always)]
    unsafe fn wide8<T: Float>(from: *const T) -> __m256 {
        // SAFETY: the caller's promise, see the trait.
        unsafe {
            if T::DTYPE == DType::BF16 {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
            } else {
                _mm256_loadu_ps(from.cast())
            }
        }
    }

    /// See [`Simd::transpose`]: pairs of rows, then pairs of pairs, then halves.
    #[inline(always)]
    unsafe fn transpose<T: Float>(from: *const T, row: usize, to: *mut f32, line: usize) {
        // SAFETY: the caller's promise, see the trait.
        unsafe {
            let r: [__m256; 8] = std::array::from_fn(|i| wide8(from.add(i * row)));
            let pairs: [__m256; 8] = std::array::from_fn(|i| {
                let (a, b) = (r[i / 2 * 2], r[i / 2 * 2 + 1]);
                if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
            });
            // quads[4 h + q]: of rows 4 h .. 4 h + 4, column q of each half of the register.
            let quads: [__m256; 8] = std::array::from_fn(|i| {
                let (h, q) = (i / 4 * 4, i % 4);
                let (a, b) = (pairs[h + q / 2], pairs[h + 2 + q / 2]);
                if q % 2 == 0 { _mm256_shuffle_ps::<0x44>(a, b) } else { _mm256_shuffle_ps::<0xee>(a, b) }
            });
            for q in 0..4 {
                let (a, b) = (quads[q], quads[4 + q]);
                _mm256_storeu_ps(to.add(q * line), _mm256_permute2f128_ps::<0x20>(a, b));
                _mm256_storeu_ps(to.add((q + 4) * line), _mm256_permute2f128_ps::<0x31>(a, b));
            }
        }
    }
}

/// An operand's tile or strip in memory: element `(i, p)` at `at + i row + p step`.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    pub(super) at: *const f32,
    pub(super) row: usize,
    pub(super) step: usize,
}

/// `c[r][l] += sum over p < k of a[r][p] b[p][l]` for `R` rows and `N` vectors of columns, each element one chain of
/// fused multiply-adds over `p` in order, begun at `c`, or at zero where `fresh`. Lines of `b` are `b_line` apart, rows of
/// `c` `c_row`; `soon` is where the next tile of `c` will be, if there is one.
///
/// # Safety
/// The machine has `V`'s instructions; all that the sizes say is there, and nothing else reads or writes that part of `c`.
#[inline(always)]
pub(super) unsafe fn tile<V: Simd, const R: usize, const N: usize>(
    k: usize,
    a: Strip,
    (b, b_line): (*const f32, usize),
    (c, c_row): (*mut f32, usize),
    fresh: bool,
    soon: Option<*const f32>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; R];
        if !fresh {
            for (r, row) in sums.iter_mut().enumerate() {
                for (v, s) in row.iter_mut().enumerate() {
                    *s = V::load(c.add(r * c_row + v * V::LANES));
                }
            }
        }
        if let Some(soon) = soon {
            for r in 0..R {
                for v in 0..(N * V::LANES).div_ceil(16) {
                    V::prefetch(soon.wrapping_add(r * c_row + v * 16));
                }
            }
        }
        for p in 0..k {
            let line = b.add(p * b_line);
            for v in 0..(N * V::LANES).div_ceil(16) {
                V::prefetch(line.wrapping_add(8 * b_line + v * 16));
            }
            let mut columns = [V::splat(0.0); N];
            for (v, x) in columns.iter_mut().enumerate() {
                *x = V::load(line.add(v * V::LANES));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x = V::splat(*a.at.add(r * a.row + p * a.step));
                for (s, y) in row.iter_mut().zip(columns) {
                    *s = s.fma(x, y);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (v, s) in row.iter().enumerate() {
                s.store(c.add(r * c_row + v * V::LANES));
            }
        }
    }
}
