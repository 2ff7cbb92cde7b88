//! Products of one row: a token being generated. To pack the weight would cost more than the product.

use super::family::{for_float, kernel};
use super::finish::{Finish, finish_row};
use super::{Cpu, S, Shared};
use crate::Float;
use crate::device::MatmulLayout;
use crate::math::dot16;

/// Columns of the row that are summed at a time: so far a row of the weight is read before the next one is.
const COLUMNS: usize = 2048;

/// Some columns of the row, from one on.
struct Columns<'a, A, B, C> {
    a: &'a [A],
    /// `[n, k]` where `transposed`, else `[k, n]`.
    b: &'a [B],
    transposed: bool,
    n: usize,
    from: usize,
    to: &'a mut [C],
    accumulate: bool,
    finish: &'a Finish<'a, C>,
}

impl Cpu {
    /// `c (+)= a b`, with `a` one row.
    pub(super) fn one_row<C: Float>(
        &self,
        layout: MatmulLayout,
        a: S<'_>,
        b: S<'_>,
        c: &mut [C],
        accumulate: bool,
        finish: &Finish<'_, C>,
    ) {
        let (n, transposed) = (c.len(), layout == MatmulLayout::Nt);
        let c = Shared::of(c);
        for_float!(a, A => for_float!(b, B => {
            let (a, b) = (a.get::<A>(), b.get::<B>());
            self.by_elements(n, |part| {
                for from in part.clone().step_by(COLUMNS) {
                    // SAFETY: this task takes its own part.
                    let to = unsafe { c.part(from, COLUMNS.min(part.end - from)) };
                    columns(self.family, Columns { a, b, transposed, n, from, to, accumulate, finish });
                }
            });
        }));
    }
}

kernel! {
    fn columns<A: Float, B: Float, C: Float>(t: Columns<'_, A, B, C>) {
        let Columns { a, b, transposed, n, from, to, accumulate, finish } = t;
        let (k, len) = (a.len(), to.len());
        let mut sums = [0f32; COLUMNS];
        if accumulate {
            sums.iter_mut().zip(&*to).for_each(|(s, c)| *s = c.wide());
        }
        let sums = &mut sums[..len];
        if transposed {
            for (s, row) in sums.iter_mut().zip(b[from * k..].chunks_exact(k)) {
                *s += dot16(a, row);
            }
        } else {
            for (x, line) in a.iter().zip(b.chunks_exact(n)) {
                let x = x.wide();
                for (s, y) in sums.iter_mut().zip(&line[from..from + len]) {
                    *s = x.mul_add(y.wide(), *s);
                }
            }
        }
        // SAFETY: both are slices of this length that are borrowed here.
        unsafe { finish_row(finish, sums.as_ptr(), to.as_mut_ptr(), len, 0, from) };
    }
}
