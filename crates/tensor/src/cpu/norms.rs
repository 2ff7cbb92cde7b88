//! RMSNorm and LayerNorm.

use super::family::{for_float, kernel};
use super::{Cpu, CpuBuf, M, S, Shared};
use crate::Float;
use crate::device::{LayerNorm, Norms, RowStats};
use crate::math::{dot16, sum16};

/// Columns that one task sums over all rows.
pub(super) const COLUMNS: usize = 64;

impl Norms for Cpu {
    fn rms_norm(&self, x: S<'_>, w: S<'_>, eps: f32, y: M<'_>, rstd: M<'_>) {
        for_float!(x, T => {
            let (x, w, y, rstd) = (x.get::<T>(), w.get::<T>(), y.get::<T>(), rstd.get::<f32>());
            let (dim, total) = (w.len(), rstd.len());
            assert!(x.len() == total * dim && y.len() == x.len(), "rows of a norm");
            let (y, r) = (Shared::of(y), Shared::of(rstd));
            self.by_rows(total, |first, n| {
                // SAFETY: this task takes its own rows.
                let (y, r) = unsafe { (y.part(first * dim, n * dim), r.part(first, n)) };
                rms_norm(self.family, &x[first * dim..(first + n) * dim], w, eps, y, r);
            });
        });
    }

    fn rms_norm_input_gradient(&self, x: S<'_>, w: S<'_>, rstd: S<'_>, dy: S<'_>, dx: M<'_>) {
        for_float!(x, T => {
            let (x, w, rstd) = (x.get::<T>(), w.get::<T>(), rstd.get::<f32>());
            let (dy, dx) = (dy.get::<T>(), dx.get::<T>());
            let dim = w.len();
            assert!([x.len(), dy.len(), dx.len()] == [rstd.len() * dim; 3], "rows of a norm");
            let dx = Shared::of(dx);
            self.by_rows(rstd.len(), |first, n| {
                let part = first * dim..(first + n) * dim;
                // SAFETY: this task takes its own rows.
                let dx = unsafe { dx.part(part.start, part.len()) };
                rms_norm_dx(self.family, &x[part.clone()], w, &rstd[first..first + n], &dy[part], dx);
            });
        });
    }

    fn rms_norm_weight_gradient(&self, x: S<'_>, rstd: S<'_>, dy: S<'_>, dw: M<'_>, accumulate: bool) {
        for_float!(x, T => {
            let (x, rstd, dy) = (x.get::<T>(), rstd.get::<f32>(), dy.get::<T>());
            self.by_columns(dw.get::<f32>(), accumulate, |first, dim, dw| {
                rms_norm_dw(self.family, x, rstd, dy, dim, first, dw);
            });
        });
    }

    fn layer_norm(&self, x: S<'_>, parameters: LayerNorm<'_, CpuBuf>, y: M<'_>, mean: M<'_>, rstd: M<'_>) {
        for_float!(x, T => {
            let (x, y, mean, rstd) = (x.get::<T>(), y.get::<T>(), mean.get::<f32>(), rstd.get::<f32>());
            let (w, b) = (parameters.w.get::<T>(), parameters.b.get::<T>());
            let (dim, total) = (w.len(), rstd.len());
            let fits = x.len() == total * dim && y.len() == x.len() && mean.len() == total && b.len() == dim;
            assert!(fits, "rows of a norm");
            let (y, m, r) = (Shared::of(y), Shared::of(mean), Shared::of(rstd));
            self.by_rows(total, |first, n| {
                // SAFETY: this task takes its own rows.
                let (y, m, r) = unsafe { (y.part(first * dim, n * dim), m.part(first, n), r.part(first, n)) };
                layer_norm(self.family, &x[first * dim..(first + n) * dim], w, b, parameters.eps, y, m, r);
            });
        });
    }

    fn layer_norm_input_gradient(
        &self,
        x: S<'_>,
        w: S<'_>,
        rows: RowStats<'_, CpuBuf>,
        dy: S<'_>,
        dx: M<'_>,
    ) {
        for_float!(x, T => {
            let (x, w, dy, dx) = (x.get::<T>(), w.get::<T>(), dy.get::<T>(), dx.get::<T>());
            let (mean, rstd) = (rows.mean.get::<f32>(), rows.rstd.get::<f32>());
            let dim = w.len();
            assert!([x.len(), dy.len(), dx.len()] == [rstd.len() * dim; 3], "rows of a norm");
            let dx = Shared::of(dx);
            self.by_rows(rstd.len(), |first, n| {
                let (part, rows) = (first * dim..(first + n) * dim, first..first + n);
                // SAFETY: this task takes its own rows.
                let dx = unsafe { dx.part(part.start, part.len()) };
                layer_norm_dx(self.family, &x[part.clone()], w, &mean[rows.clone()], &rstd[rows], &dy[part], dx);
            });
        });
    }

    fn layer_norm_weight_gradient(
        &self,
        x: S<'_>,
        rows: RowStats<'_, CpuBuf>,
        dy: S<'_>,
        dw: M<'_>,
        accumulate: bool,
    ) {
        for_float!(x, T => {
            let (x, dy) = (x.get::<T>(), dy.get::<T>());
            let (mean, rstd) = (rows.mean.get::<f32>(), rows.rstd.get::<f32>());
            self.by_columns(dw.get::<f32>(), accumulate, |first, dim, dw| {
                layer_norm_dw(self.family, x, mean, rstd, dy, dim, first, dw);
            });
        });
    }
}

impl Cpu {
    /// Carries out `task(first row, rows)` on parts of `total` rows.
    pub(super) fn by_rows(&self, total: usize, task: impl Fn(usize, usize) + Sync) {
        let (tasks, rows) = self.parts(total, 1);
        self.parallel(tasks, |t| task(t * rows, rows.min(total - t * rows)));
    }

    /// Carries out `task(first column, columns in all, its columns of out)`, which adds to `out`; zeroed first unless
    /// `accumulate`.
    pub(super) fn by_columns(
        &self,
        out: &mut [f32],
        accumulate: bool,
        task: impl Fn(usize, usize, &mut [f32]) + Sync + Send,
    ) {
        let (dim, out) = (out.len(), Shared::of(out));
        self.parallel(dim.div_ceil(COLUMNS), |t| {
            let first = t * COLUMNS;
            // SAFETY: task `t` takes its own columns.
            let out = unsafe { out.part(first, COLUMNS.min(dim - first)) };
            if !accumulate {
                out.fill(0.0);
            }
            task(first, dim, out);
        });
    }
}

kernel! {
    fn rms_norm<T: Float>(x: &[T], w: &[T], eps: f32, y: &mut [T], rstd: &mut [f32]) {
        let dim = w.len();
        for ((x, y), r) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).zip(rstd) {
            *r = 1.0 / (dot16(x, x) / dim as f32 + eps).sqrt();
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = T::narrow(x.wide() * *r * w.wide());
            }
        }
    }
}

kernel! {
    fn rms_norm_dx<T: Float>(x: &[T], w: &[T], rstd: &[f32], dy: &[T], dx: &mut [T]) {
        let dim = w.len();
        let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim));
        for (((x, dy), dx), r) in rows.zip(rstd) {
            let projection =
                sum16(dim, |i| w[i].wide() * dy[i].wide() * x[i].wide()) * (r * r) / dim as f32;
            for i in 0..dim {
                let d = r * (w[i].wide() * dy[i].wide() - x[i].wide() * projection);
                dx[i] = T::narrow(dx[i].wide() + d);
            }
        }
    }
}

kernel! {
    fn rms_norm_dw<T: Float>(x: &[T], rstd: &[f32], dy: &[T], dim: usize, first: usize, dw: &mut [f32]) {
        for (row, r) in rstd.iter().enumerate() {
            let at = row * dim + first;
            let (x, dy) = (&x[at..at + dw.len()], &dy[at..at + dw.len()]);
            for ((d, x), dy) in dw.iter_mut().zip(x).zip(dy) {
                *d = (x.wide() * r).mul_add(dy.wide(), *d);
            }
        }
    }
}

kernel! {
    fn layer_norm<T: Float>(
        x: &[T],
        w: &[T],
        b: &[T],
        eps: f32,
        y: &mut [T],
        mean: &mut [f32],
        rstd: &mut [f32],
    ) {
        let dim = w.len();
        let rows = x.chunks_exact(dim).zip(y.chunks_exact_mut(dim));
        for (((x, y), m), r) in rows.zip(mean).zip(rstd) {
            *m = sum16(dim, |i| x[i].wide()) / dim as f32;
            // The mean first: a sum of squares less the mean's square would cancel.
            let variance = sum16(dim, |i| (x[i].wide() - *m) * (x[i].wide() - *m)) / dim as f32;
            *r = 1.0 / (variance + eps).sqrt();
            for i in 0..dim {
                y[i] = T::narrow(((x[i].wide() - *m) * *r).mul_add(w[i].wide(), b[i].wide()));
            }
        }
    }
}

kernel! {
    fn layer_norm_dx<T: Float>(x: &[T], w: &[T], mean: &[f32], rstd: &[f32], dy: &[T], dx: &mut [T]) {
        let dim = w.len();
        let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim));
        for ((((x, dy), dx), m), r) in rows.zip(mean).zip(rstd) {
            let n = |i: usize| (x[i].wide() - m) * r;
            let g = |i: usize| w[i].wide() * dy[i].wide();
            let along_ones = sum16(dim, g) / dim as f32;
            let along_n = sum16(dim, |i| g(i) * n(i)) / dim as f32;
            for (i, dx) in dx.iter_mut().enumerate() {
                let d = r * (g(i) - along_ones - n(i) * along_n);
                *dx = T::narrow(dx.wide() + d);
            }
        }
    }
}

kernel! {
    fn layer_norm_dw<T: Float>(
        x: &[T],
        mean: &[f32],
        rstd: &[f32],
        dy: &[T],
        dim: usize,
        first: usize,
        dw: &mut [f32],
    ) {
        for (row, (m, r)) in mean.iter().zip(rstd).enumerate() {
            let at = row * dim + first;
            let (x, dy) = (&x[at..at + dw.len()], &dy[at..at + dw.len()]);
            for ((d, x), dy) in dw.iter_mut().zip(x).zip(dy) {
                *d = ((x.wide() - m) * r).mul_add(dy.wide(), *d);
            }
        }
    }
}
