//! Lookups, the rotary embedding, sums and dropout; elementwise operations are carried out part by part.

use super::activations::{gelu_backward, gelus, swiglu, swiglu_backward};
use super::family::{for_float, kernel};
use super::norms::COLUMNS;
use super::{Cpu, CpuBuf, M, S, Shared};
use crate::Float;
use crate::device::{Columns, Dropout, Pointwise, RopeDims};
use crate::math::{mix, survives};

impl Pointwise for Cpu {
    fn embedding(&self, ids: S<'_>, table: S<'_>, dim: usize, out: M<'_>, accumulate: bool) {
        for_float!(table, T => {
            let (ids, table, out) = (ids.get::<i32>(), table.get::<T>(), out.get::<T>());
            assert_eq!(out.len(), ids.len() * dim, "rows of a lookup");
            let out = Shared::of(out);
            self.by_rows(ids.len(), |first, n| {
                // SAFETY: this task takes its own rows.
                let rows = unsafe { out.part(first * dim, n * dim) }.chunks_exact_mut(dim);
                for (id, row) in ids[first..first + n].iter().zip(rows) {
                    let at = *id as usize * dim;
                    let found = &table[at..at + dim];
                    if accumulate {
                        add(self.family, row, found);
                    } else {
                        row.copy_from_slice(found);
                    }
                }
            });
        });
    }

    fn embedding_gradient(&self, ids: S<'_>, dy: S<'_>, dim: usize, dtable: M<'_>, accumulate: bool) {
        for_float!(dy, T => {
            let (ids, dy, dtable) = (ids.get::<i32>(), dy.get::<T>(), dtable.get::<f32>());
            let rows = dtable.len().checked_div(dim).unwrap_or(0);
            assert!(ids.iter().all(|id| (*id as usize) < rows), "an id outside a table of {rows} rows");
            if !accumulate {
                dtable.fill(0.0);
            }
            let dtable = Shared::of(dtable);
            self.parallel(dim.div_ceil(COLUMNS), |t| {
                let (first, n) = (t * COLUMNS, COLUMNS.min(dim - t * COLUMNS));
                for (row, id) in ids.iter().enumerate() {
                    // SAFETY: task `t` takes its own columns.
                    let d = unsafe { dtable.part(*id as usize * dim + first, n) };
                    for (d, g) in d.iter_mut().zip(&dy[row * dim + first..]) {
                        *d += g.wide();
                    }
                }
            });
        });
    }

    fn rope(&self, d: RopeDims, x: M<'_>, positions: S<'_>, table: S<'_>, inverse: bool) {
        for_float!(x, T => {
            let (x, positions, table) = (x.get::<T>(), positions.get::<i32>(), table.get::<f32>());
            let width = d.heads * d.head_dim;
            assert!(x.len() == d.rows * width && positions.len() == d.rows, "rows of a rotary embedding");
            let x = Shared::of(x);
            self.by_rows(d.rows, |first, n| {
                // SAFETY: this task takes its own rows.
                let x = unsafe { x.part(first * width, n * width) };
                rope(self.family, d, x, &positions[first..first + n], table, inverse);
            });
        });
    }

    fn swiglu(&self, gate: S<'_>, up: S<'_>, out: M<'_>) {
        for_float!(gate, T => {
            let (gate, up, out) = (gate.get::<T>(), up.get::<T>(), out.get::<T>());
            let (len, out) = (out.len(), Shared::of(out));
            self.by_elements(len, |part| {
                // SAFETY: this task takes its own part.
                let out = unsafe { out.part(part.start, part.len()) };
                swiglu(self.family, &gate[part.clone()], &up[part], out);
            });
        });
    }

    fn swiglu_backward(&self, gate: M<'_>, up: M<'_>, dout: S<'_>) {
        for_float!(gate, T => {
            let (gate, up, dout) = (gate.get::<T>(), up.get::<T>(), dout.get::<T>());
            assert!([gate.len(), up.len()] == [dout.len(); 2], "gate, up and their gradient");
            let (gate, up) = (Shared::of(gate), Shared::of(up));
            self.by_elements(dout.len(), |part| {
                // SAFETY: this task takes its own part.
                let (gate, up) = unsafe { (gate.part(part.start, part.len()), up.part(part.start, part.len())) };
                swiglu_backward(self.family, gate, up, &dout[part]);
            });
        });
    }

    fn gelu(&self, x: S<'_>, out: M<'_>) {
        for_float!(x, T => {
            let (x, out) = (x.get::<T>(), out.get::<T>());
            let (len, out) = (out.len(), Shared::of(out));
            self.by_elements(len, |part| {
                // SAFETY: this task takes its own part.
                let out = unsafe { out.part(part.start, part.len()) };
                gelus(self.family, &x[part], out);
            });
        });
    }

    fn gelu_backward(&self, x: M<'_>, dout: S<'_>) {
        for_float!(x, T => self.update(x.get::<T>(), dout.get::<T>(), gelu_backward));
    }

    fn add(&self, x: M<'_>, y: S<'_>) {
        for_float!(x, T => self.update(x.get::<T>(), y.get::<T>(), add));
    }

    fn sum_rows(&self, x: S<'_>, out: M<'_>, accumulate: bool) {
        for_float!(x, T => {
            let x = x.get::<T>();
            self.by_columns(out.get::<f32>(), accumulate, |first, dim, out| sum_rows(self.family, x, dim, first, out));
        });
    }

    fn copy_columns(&self, src: S<'_>, from: Columns, dst: M<'_>, to: Columns, cols: usize) {
        for_float!(src, T => {
            let (src, dst) = (src.get::<T>(), dst.get::<T>());
            let rows = src.len() / from.of;
            assert_eq!(rows, dst.len() / to.of, "rows to copy columns of");
            let dst = Shared::of(dst);
            self.by_rows(rows, |first, n| {
                // SAFETY: this task takes its own rows.
                let dst = unsafe { dst.part(first * to.of, n * to.of) }.chunks_exact_mut(to.of);
                for (src, dst) in src[first * from.of..].chunks_exact(from.of).zip(dst) {
                    dst[to.start..to.start + cols].copy_from_slice(&src[from.start..from.start + cols]);
                }
            });
        });
    }

    fn dropout(&self, x: M<'_>, dropout: Dropout<'_, CpuBuf>) {
        for_float!(x, T => {
            let (x, keys) = (x.get::<T>(), dropout.keys.get::<i64>());
            let each = x.len() / keys.len();
            assert_eq!(each * keys.len(), x.len(), "elements of each sequence");
            if each == 0 {
                return;
            }
            for (x, key) in x.chunks_exact_mut(each).zip(keys) {
                let key = dropout_key(*key, dropout.salt);
                let x = Shared::of(x);
                self.by_elements(each, |part| {
                    // SAFETY: this task takes its own part.
                    let x = unsafe { x.part(part.start, part.len()) };
                    drop_out(self.family, x, key, part.start, dropout.rate);
                });
            }
        });
    }
}

/// The key of one dropout in one sequence.
#[inline(always)]
pub(super) fn dropout_key(sequence: i64, salt: u64) -> u64 {
    mix(sequence as u64 ^ mix(salt))
}

impl Cpu {
    /// Carries out `task` on parts of `len` elements.
    pub(super) fn by_elements(&self, len: usize, task: impl Fn(std::ops::Range<usize>) + Sync) {
        let (tasks, size) = self.parts(len, 64);
        self.parallel(tasks, |t| task(t * size..((t + 1) * size).min(len)));
    }

    /// Carries out a kernel that changes `x` by `y`, element by element.
    fn update<T: Float>(&self, x: &mut [T], y: &[T], kernel: fn(super::Family, &mut [T], &[T])) {
        assert_eq!(x.len(), y.len(), "elements of two operands");
        let x = Shared::of(x);
        self.by_elements(y.len(), |part| {
            // SAFETY: this task takes its own part.
            let x = unsafe { x.part(part.start, part.len()) };
            kernel(self.family, x, &y[part]);
        });
    }
}

kernel! {
    fn add<T: Float>(x: &mut [T], y: &[T]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x = T::narrow(x.wide() + y.wide());
        }
    }
}

kernel! {
    fn sum_rows<T: Float>(x: &[T], dim: usize, first: usize, out: &mut [f32]) {
        for row in x.chunks_exact(dim) {
            for (o, x) in out.iter_mut().zip(&row[first..]) {
                *o += x.wide();
            }
        }
    }
}

kernel! {
    fn drop_out<T: Float>(x: &mut [T], key: u64, first: usize, rate: f32) {
        let grow = 1.0 / (1.0 - rate);
        for (i, x) in x.iter_mut().enumerate() {
            let kept = survives(key, (first + i) as u64, rate);
            *x = T::narrow(if kept { x.wide() * grow } else { 0.0 });
        }
    }
}

kernel! {
    fn rope<T: Float>(d: RopeDims, x: &mut [T], positions: &[i32], table: &[f32], inverse: bool) {
        let half = d.head_dim / 2;
        for (row, p) in x.chunks_exact_mut(d.heads * d.head_dim).zip(positions) {
            let angles = &table[*p as usize * d.head_dim..][..d.head_dim];
            let (cos, sin) = angles.split_at(half);
            for head in row.chunks_exact_mut(d.head_dim) {
                let (a, b) = head.split_at_mut(half);
                for i in 0..half {
                    let (x, y) = (a[i].wide(), b[i].wide());
                    let s = if inverse { -sin[i] } else { sin[i] };
                    a[i] = T::narrow(x.mul_add(cos[i], -(y * s)));
                    b[i] = T::narrow(y.mul_add(cos[i], x * s));
                }
            }
        }
    }
}
