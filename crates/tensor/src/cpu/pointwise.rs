//! Norms, lookups, rotary embedding, SwiGLU.

use super::family::kernel;
use super::{Cpu, M, S, Shared};
use crate::device::{Norms, Pointwise, RopeDims};
use crate::math::{dot16, sigmoid, sum16};

/// Columns that one task sums over all rows.
const COLUMNS: usize = 64;

impl Norms for Cpu {
    fn rms_norm(&self, x: S<'_>, w: S<'_>, eps: f32, y: M<'_>, rstd: M<'_>) {
        let (x, w, y, rstd) = (x.get::<f32>(), w.get::<f32>(), y.get::<f32>(), rstd.get::<f32>());
        let dim = w.len();
        assert!(x.len() == rstd.len() * dim && y.len() == x.len(), "rows of a norm");
        let (tasks, rows) = self.parts(rstd.len(), 1);
        let (total, y, r) = (rstd.len(), Shared::of(y), Shared::of(rstd));
        self.parallel(tasks, |t| {
            let (first, n) = (t * rows, rows.min(total - t * rows));
            // SAFETY: task `t` takes its own rows.
            let (y, r) = unsafe { (y.part(first * dim, n * dim), r.part(first, n)) };
            rms_norm(self.family, &x[first * dim..(first + n) * dim], w, eps, y, r);
        });
    }

    fn rms_norm_input_gradient(&self, x: S<'_>, w: S<'_>, rstd: S<'_>, dy: S<'_>, dx: M<'_>) {
        let (x, w, rstd) = (x.get::<f32>(), w.get::<f32>(), rstd.get::<f32>());
        let (dy, dx) = (dy.get::<f32>(), dx.get::<f32>());
        let dim = w.len();
        assert!([x.len(), dy.len(), dx.len()] == [rstd.len() * dim; 3], "rows of a norm");
        let dx = Shared::of(dx);
        let (tasks, rows) = self.parts(rstd.len(), 1);
        self.parallel(tasks, |t| {
            let (first, n) = (t * rows, rows.min(rstd.len() - t * rows));
            let part = first * dim..(first + n) * dim;
            // SAFETY: task `t` takes its own rows.
            let dx = unsafe { dx.part(part.start, part.len()) };
            rms_norm_dx(self.family, &x[part.clone()], w, &rstd[first..first + n], &dy[part], dx);
        });
    }

    fn rms_norm_weight_gradient(&self, x: S<'_>, rstd: S<'_>, dy: S<'_>, dw: M<'_>, accumulate: bool) {
        let (x, rstd, dy, dw) = (x.get::<f32>(), rstd.get::<f32>(), dy.get::<f32>(), dw.get::<f32>());
        let (dim, dw) = (dw.len(), Shared::of(dw));
        self.parallel(dim.div_ceil(COLUMNS), |t| {
            let first = t * COLUMNS;
            // SAFETY: task `t` takes its own columns.
            let dw = unsafe { dw.part(first, COLUMNS.min(dim - first)) };
            if !accumulate {
                dw.fill(0.0);
            }
            rms_norm_dw(self.family, x, rstd, dy, dim, first, dw);
        });
    }
}

kernel! {
    fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32], rstd: &mut [f32]) {
        let dim = w.len();
        for ((x, y), r) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).zip(rstd) {
            *r = 1.0 / (dot16(x, x) / dim as f32 + eps).sqrt();
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * *r * w;
            }
        }
    }
}

kernel! {
    fn rms_norm_dx(x: &[f32], w: &[f32], rstd: &[f32], dy: &[f32], dx: &mut [f32]) {
        let dim = w.len();
        let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim));
        for (((x, dy), dx), r) in rows.zip(rstd) {
            let projection = sum16(dim, |i| w[i] * dy[i] * x[i]) * (r * r) / dim as f32;
            for i in 0..dim {
                dx[i] += r * (w[i] * dy[i] - x[i] * projection);
            }
        }
    }
}

kernel! {
    fn rms_norm_dw(x: &[f32], rstd: &[f32], dy: &[f32], dim: usize, first: usize, dw: &mut [f32]) {
        for (row, r) in rstd.iter().enumerate() {
            let at = row * dim + first;
            let (x, dy) = (&x[at..at + dw.len()], &dy[at..at + dw.len()]);
            for ((d, x), dy) in dw.iter_mut().zip(x).zip(dy) {
                *d = (x * r).mul_add(*dy, *d);
            }
        }
    }
}

impl Pointwise for Cpu {
    fn embedding(&self, ids: S<'_>, table: S<'_>, dim: usize, out: M<'_>) {
        let (ids, table, out) = (ids.get::<i32>(), table.get::<f32>(), out.get::<f32>());
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(dim)) {
            let at = *id as usize * dim;
            row.copy_from_slice(&table[at..at + dim]);
        }
    }

    fn embedding_gradient(&self, ids: S<'_>, dy: S<'_>, dim: usize, dtable: M<'_>, accumulate: bool) {
        let (ids, dy, dtable) = (ids.get::<i32>(), dy.get::<f32>(), dtable.get::<f32>());
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
                    *d += g;
                }
            }
        });
    }

    fn rope(&self, d: RopeDims, x: M<'_>, positions: S<'_>, table: S<'_>, inverse: bool) {
        let (x, positions, table) = (x.get::<f32>(), positions.get::<i32>(), table.get::<f32>());
        let width = d.heads * d.head_dim;
        assert!(x.len() == d.rows * width && positions.len() == d.rows, "rows of a rotary embedding");
        let (tasks, rows) = self.parts(d.rows, 1);
        let x = Shared::of(x);
        self.parallel(tasks, |t| {
            let (first, n) = (t * rows, rows.min(d.rows - t * rows));
            // SAFETY: task `t` takes its own rows.
            let x = unsafe { x.part(first * width, n * width) };
            rope(self.family, d, x, &positions[first..first + n], table, inverse);
        });
    }

    fn swiglu(&self, gate: S<'_>, up: S<'_>, out: M<'_>) {
        let (gate, up, out) = (gate.get::<f32>(), up.get::<f32>(), out.get::<f32>());
        let (tasks, size) = self.parts(out.len(), 64);
        let (len, out) = (out.len(), Shared::of(out));
        self.parallel(tasks, |t| {
            let part = t * size..((t + 1) * size).min(len);
            // SAFETY: task `t` takes its own part.
            let out = unsafe { out.part(part.start, part.len()) };
            swiglu(self.family, &gate[part.clone()], &up[part], out);
        });
    }

    fn swiglu_backward(&self, gate: M<'_>, up: M<'_>, dout: S<'_>) {
        let (gate, up, dout) = (gate.get::<f32>(), up.get::<f32>(), dout.get::<f32>());
        assert!([gate.len(), up.len()] == [dout.len(); 2], "gate, up and their gradient");
        let (tasks, size) = self.parts(dout.len(), 64);
        let (gate, up) = (Shared::of(gate), Shared::of(up));
        self.parallel(tasks, |t| {
            let part = t * size..((t + 1) * size).min(dout.len());
            // SAFETY: task `t` takes its own part.
            let (gate, up) = unsafe { (gate.part(part.start, part.len()), up.part(part.start, part.len())) };
            swiglu_backward(self.family, gate, up, &dout[part]);
        });
    }
}

kernel! {
    fn rope(d: RopeDims, x: &mut [f32], positions: &[i32], table: &[f32], inverse: bool) {
        let half = d.head_dim / 2;
        for (row, p) in x.chunks_exact_mut(d.heads * d.head_dim).zip(positions) {
            let angles = &table[*p as usize * d.head_dim..][..d.head_dim];
            let (cos, sin) = angles.split_at(half);
            for head in row.chunks_exact_mut(d.head_dim) {
                let (a, b) = head.split_at_mut(half);
                for i in 0..half {
                    let (x, y) = (a[i], b[i]);
                    let s = if inverse { -sin[i] } else { sin[i] };
                    a[i] = x.mul_add(cos[i], -(y * s));
                    b[i] = y.mul_add(cos[i], x * s);
                }
            }
        }
    }
}

kernel! {
    fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            *o = g * sigmoid(*g) * u;
        }
    }
}

kernel! {
    fn swiglu_backward(gate: &mut [f32], up: &mut [f32], dout: &[f32]) {
        for ((g, u), d) in gate.iter_mut().zip(up).zip(dout) {
            let s = sigmoid(*g);
            let silu = *g * s;
            let slope = s * (1.0 + *g * (1.0 - s));
            (*g, *u) = (d * *u * slope, d * silu);
        }
    }
}
