//! Causal attention in tiles, with grouped heads; memory linear in the sequence.
//!
//! A tile of keys is transposed once in this thread's scratch, and every query row that sees it meets it there.
//! Tile sizes are constants: they decide the order of sums. A query sees a run of keys that ends at its own place;
//! how long it is, its document, its window and causality decide together, and tiles outside of it are skipped.

use super::family::{for_float, kernel};
use super::pointwise::dropout_key;
use super::{Cpu, CpuBuf, M, S, Shared};
use crate::Float;
use crate::device::{Attention, AttentionDims, AttentionInput, AttentionSaved};
use crate::math::{dot16, exp, ln, survives};
use std::ops::Range;

/// Keys of a tile.
const KEYS: usize = 64;
/// Queries of a task.
const QUERIES: usize = 64;
/// Longest head.
const MAX_HEAD: usize = AttentionDims::MAX_HEAD_DIM;

/// Backward: keys and values transposed, and their gradients.
pub(super) const SCRATCH_FLOATS: usize = 4 * KEYS * MAX_HEAD;

/// Where the rows of a head lie.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    data: &'a [T],
    stride: usize,
    start: usize,
    head_dim: usize,
}

impl<'a, T> Rows<'a, T> {
    fn new(data: &'a [T], heads: usize, head_dim: usize, first_row: usize, head: usize) -> Self {
        let stride = heads * head_dim;
        Self { data, stride, start: first_row * stride + head * head_dim, head_dim }
    }

    #[inline(always)]
    fn row(&self, i: usize) -> &'a [T] {
        let at = self.start + i * self.stride;
        &self.data[at..at + self.head_dim]
    }
}

/// Which keys the queries of one sequence see.
#[derive(Clone, Copy)]
struct Sight<'a> {
    positions: &'a [i32],
    /// Keys before the first query's place.
    ahead: usize,
    window: usize,
}

impl<'a> Sight<'a> {
    fn new(d: &AttentionDims, positions: &'a [i32], sequence: usize) -> Self {
        let positions = &positions[sequence * d.queries..(sequence + 1) * d.queries];
        Self { positions, ahead: d.keys - d.queries, window: d.window.unwrap_or(usize::MAX) }
    }

    /// The keys that query `i` sees.
    #[inline(always)]
    fn keys(&self, i: usize) -> Range<usize> {
        let place = self.ahead + i;
        let before = (self.positions[i].max(0) as usize).min(self.window - 1).min(place);
        place - before..place + 1
    }

    /// Those of them in the tile of `n` keys from `j` on, as lanes.
    #[inline(always)]
    fn lanes(&self, i: usize, j: usize, n: usize) -> Range<usize> {
        let keys = self.keys(i);
        keys.start.max(j) - j..keys.end.min(j + n).max(j) - j
    }
}

/// Zeros among the probabilities of one head of one sequence.
#[derive(Clone, Copy)]
struct Zeros {
    key: u64,
    rate: f32,
}

impl Zeros {
    fn new(input: &AttentionInput<'_, CpuBuf>, sequence: usize, head: usize) -> Option<Self> {
        let d = input.dropout?;
        let key = dropout_key(d.keys.get::<i64>()[sequence], d.salt.wrapping_add((head as u64) << 32));
        Some(Self { key, rate: d.rate })
    }

    /// What query `i`'s probability of key `j` is multiplied by.
    #[inline(always)]
    fn factor(&self, i: usize, j: usize) -> f32 {
        if survives(self.key, (i as u64) << 32 | j as u64, self.rate) { 1.0 / (1.0 - self.rate) } else { 0.0 }
    }
}

impl Attention for Cpu {
    fn attention(&self, d: AttentionDims, input: AttentionInput<'_, CpuBuf>, out: M<'_>, lse: M<'_>) {
        for_float!(input.q, T => {
            let (q, k, v) = (input.q.get::<T>(), input.k.get::<T>(), input.v.get::<T>());
            let (positions, out, lse) = (input.positions.get::<i32>(), out.get::<T>(), lse.get::<f32>());
            check(&d, [q.len(), out.len()], [k.len(), v.len()], lse.len(), positions.len());
            let (out, lse) = (Shared::of(out), Shared::of(lse));
            let tiles = d.queries.div_ceil(QUERIES);
            self.parallel_scratch(d.batch * d.heads * tiles, |t, scratch| {
                // Late tiles see most keys: begin with them, so that threads end together.
                let (tile, h, b) = (tiles - 1 - t % tiles, t / tiles % d.heads, t / tiles / d.heads);
                let kv = h / (d.heads / d.kv_heads);
                let task = Forward {
                    q: Rows::new(q, d.heads, d.head_dim, b * d.queries, h),
                    k: Rows::new(k, d.kv_heads, d.head_dim, b * d.keys, kv),
                    v: Rows::new(v, d.kv_heads, d.head_dim, b * d.keys, kv),
                    sight: Sight::new(&d, positions, b),
                    zeros: Zeros::new(&input, b, h),
                    first: tile * QUERIES,
                    end: ((tile + 1) * QUERIES).min(d.queries),
                    out,
                    lse,
                    lse_at: b * d.queries * d.heads + h,
                    heads: d.heads,
                };
                forward(self.family, task, &mut scratch[..2 * KEYS * MAX_HEAD]);
            });
        });
    }

    fn attention_backward(
        &self,
        d: AttentionDims,
        input: AttentionInput<'_, CpuBuf>,
        saved: AttentionSaved<'_, CpuBuf>,
        dout: S<'_>,
        delta: M<'_>,
        dq: M<'_>,
        dk: M<'_>,
        dv: M<'_>,
    ) {
        for_float!(input.q, T => {
            let (q, k, v) = (input.q.get::<T>(), input.k.get::<T>(), input.v.get::<T>());
            let positions = input.positions.get::<i32>();
            let (out, lse, dout) = (saved.out.get::<T>(), saved.lse.get::<f32>(), dout.get::<T>());
            let delta = delta.get::<f32>();
            deltas(self.family, out, dout, d.head_dim, delta);
            let delta: &[f32] = delta;
            let (dq, dk, dv) = (dq.get::<f32>(), dk.get::<T>(), dv.get::<T>());
            check(&d, [q.len(), dq.len()], [k.len(), v.len()], lse.len(), positions.len());
            check(&d, [out.len(), dout.len()], [dk.len(), dv.len()], delta.len(), positions.len());
            dq.fill(0.0);
            let (dq, dk, dv) = (Shared::of(dq), Shared::of(dk), Shared::of(dv));
            self.parallel_scratch(d.batch * d.kv_heads, |t, scratch| {
                let (kv, b) = (t % d.kv_heads, t / d.kv_heads);
                let sight = Sight::new(&d, positions, b);
                let task = Backward { d, q, k, v, lse, delta, dout, dq, dk, dv, b, kv, sight };
                backward(self.family, task, &|head| Zeros::new(&input, b, head), &mut scratch[..SCRATCH_FLOATS]);
            });
        });
    }
}

/// Tasks write through shared pointers: no buffer may be shorter than the sizes say.
fn check(d: &AttentionDims, like_q: [usize; 2], like_k: [usize; 2], like_lse: usize, positions: usize) {
    let (rows, q, k) = (d.batch * d.queries, d.heads * d.head_dim, d.kv_heads * d.head_dim);
    let fits = like_q == [rows * q; 2] && like_k == [d.batch * d.keys * k; 2] && like_lse == rows * d.heads;
    assert!(fits && positions == rows && d.head_dim <= MAX_HEAD, "operands do not have {d:?}");
}

#[derive(Clone, Copy)]
struct Forward<'a, T> {
    q: Rows<'a, T>,
    k: Rows<'a, T>,
    v: Rows<'a, T>,
    sight: Sight<'a>,
    zeros: Option<Zeros>,
    first: usize,
    end: usize,
    out: Shared<T>,
    lse: Shared<f32>,
    lse_at: usize,
    heads: usize,
}

kernel! {
    /// One tile of queries of one head: running maximum and sum (Dao et al., algorithm 1).
    fn forward<T: Float>(t: Forward<'_, T>, scratch: &mut [f32]) {
        let dim = t.q.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let (keys, acc) = scratch.split_at_mut(KEYS * MAX_HEAD);
        let rows = t.end - t.first;
        acc[..rows * dim].fill(0.0);
        let (mut max, mut sum) = ([f32::NEG_INFINITY; QUERIES], [0f32; QUERIES]);
        let seen = t.sight.ahead + t.end;
        let start = (t.first..t.end).map(|i| t.sight.keys(i).start).min().unwrap_or(0);
        let mut j = start / KEYS * KEYS;
        while j < seen {
            let n = KEYS.min(seen - j);
            transpose(t.k, j, n, keys);
            for i in t.first..t.end {
                let lanes = t.sight.lanes(i, j, n);
                if lanes.is_empty() {
                    continue;
                }
                let r = i - t.first;
                let mut s = scores(t.q.row(i), keys);
                let mut top = max[r];
                for x in &mut s[lanes.clone()] {
                    *x *= scale;
                    top = top.max(*x);
                }
                let shrink = exp(max[r] - top);
                for (l, x) in s.iter_mut().enumerate() {
                    *x = if l >= lanes.start && l < lanes.end { exp(*x - top) } else { 0.0 };
                }
                sum[r] = sum[r].mul_add(shrink, crate::math::sum16(KEYS, |l| s[l]));
                max[r] = top;
                let o = &mut acc[r * dim..(r + 1) * dim];
                for x in o.iter_mut() {
                    *x *= shrink;
                }
                if let Some(zeros) = t.zeros {
                    for l in lanes.clone() {
                        s[l] *= zeros.factor(i, j + l);
                    }
                }
                for l in lanes {
                    axpy(s[l], t.v.row(j + l), o);
                }
            }
            j += n;
        }
        for i in t.first..t.end {
            let r = i - t.first;
            // SAFETY: this task alone writes rows `first .. end` of this head.
            let (o, lse) = unsafe {
                (t.out.part(t.q.start + i * t.q.stride, dim), t.lse.part(t.lse_at + i * t.heads, 1))
            };
            let inverse = 1.0 / sum[r];
            for (o, a) in o.iter_mut().zip(&acc[r * dim..]) {
                *o = T::narrow(a * inverse);
            }
            lse[0] = (f64::from(max[r]) + ln(f64::from(sum[r]))) as f32;
        }
    }
}

/// Keys `first .. first + n` as `[head_dim, KEYS]`; the rest of the tile is zero.
#[inline(always)]
fn transpose<T: Float>(x: Rows<'_, T>, first: usize, n: usize, out: &mut [f32]) {
    if n < KEYS {
        out[..x.head_dim * KEYS].fill(0.0);
    }
    for l in 0..n {
        for (e, v) in x.row(first + l).iter().enumerate() {
            out[e * KEYS + l] = v.wide();
        }
    }
}

/// `x . y_l` for each of a transposed tile's rows.
#[inline(always)]
fn scores<T: Float>(x: &[T], tile: &[f32]) -> [f32; KEYS] {
    let mut s = [0f32; KEYS];
    for (x, line) in x.iter().zip(tile.chunks_exact(KEYS)) {
        let x = x.wide();
        for l in 0..KEYS {
            s[l] = x.mul_add(line[l], s[l]);
        }
    }
    s
}

/// `y += a x`.
#[inline(always)]
fn axpy<T: Float>(a: f32, x: &[T], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = a.mul_add(x.wide(), *y);
    }
}

kernel! {
    /// `delta = rowsum(out * dout)` a head.
    fn deltas<T: Float>(out: &[T], dout: &[T], head_dim: usize, delta: &mut [f32]) {
        let rows = out.chunks_exact(head_dim).zip(dout.chunks_exact(head_dim));
        for (d, (o, g)) in delta.iter_mut().zip(rows) {
            *d = dot16(o, g);
        }
    }
}

#[derive(Clone, Copy)]
struct Backward<'a, T> {
    d: AttentionDims,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    lse: &'a [f32],
    delta: &'a [f32],
    dout: &'a [T],
    dq: Shared<f32>,
    dk: Shared<T>,
    dv: Shared<T>,
    b: usize,
    kv: usize,
    sight: Sight<'a>,
}

kernel! {
    /// All queries of the heads that share one key/value head (Dao et al., algorithm 2).
    fn backward<T: Float>(t: Backward<'_, T>, zeros: &dyn Fn(usize) -> Option<Zeros>, scratch: &mut [f32]) {
        let d = t.d;
        let dim = d.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let group = d.heads / d.kv_heads;
        let k = Rows::new(t.k, d.kv_heads, dim, t.b * d.keys, t.kv);
        let v = Rows::new(t.v, d.kv_heads, dim, t.b * d.keys, t.kv);
        let (kt, rest) = scratch.split_at_mut(KEYS * MAX_HEAD);
        let (vt, rest) = rest.split_at_mut(KEYS * MAX_HEAD);
        let (dk, dv) = rest.split_at_mut(KEYS * MAX_HEAD);
        let ahead = t.sight.ahead;
        let mut j = 0;
        while j < d.keys {
            let n = KEYS.min(d.keys - j);
            transpose(k, j, n, kt);
            transpose(v, j, n, vt);
            dk[..KEYS * dim].fill(0.0);
            dv[..KEYS * dim].fill(0.0);
            // Queries before the tile, or a window and more behind it, see none of it.
            let end = (j + n).saturating_add(t.sight.window - 1).saturating_sub(ahead).min(d.queries);
            for h in t.kv * group..(t.kv + 1) * group {
                let q = Rows::new(t.q, d.heads, dim, t.b * d.queries, h);
                let g = Rows::new(t.dout, d.heads, dim, t.b * d.queries, h);
                let zeros = zeros(h);
                for i in j.saturating_sub(ahead)..end {
                    let lanes = t.sight.lanes(i, j, n);
                    if lanes.is_empty() {
                        continue;
                    }
                    let at = (t.b * d.queries + i) * d.heads + h;
                    let (lse, delta) = (t.lse[at], t.delta[at]);
                    let s = scores(q.row(i), kt);
                    let mut dp = scores(g.row(i), vt);
                    let (mut p, mut ds) = ([0f32; KEYS], [0f32; KEYS]);
                    for l in 0..KEYS {
                        let e = exp(s[l].mul_add(scale, -lse));
                        p[l] = if l >= lanes.start && l < lanes.end { e } else { 0.0 };
                    }
                    let mut kept = p;
                    if let Some(zeros) = zeros {
                        for l in lanes.clone() {
                            let factor = zeros.factor(i, j + l);
                            kept[l] *= factor;
                            dp[l] *= factor;
                        }
                    }
                    for l in 0..KEYS {
                        ds[l] = p[l] * (dp[l] - delta) * scale;
                    }
                    // SAFETY: this task alone writes the queries of its heads.
                    let dq = unsafe { t.dq.part(q.start + i * q.stride, dim) };
                    for l in lanes {
                        axpy(ds[l], k.row(j + l), dq);
                        axpy(ds[l], q.row(i), &mut dk[l * dim..(l + 1) * dim]);
                        axpy(kept[l], g.row(i), &mut dv[l * dim..(l + 1) * dim]);
                    }
                }
            }
            for l in 0..n {
                let at = k.start + (j + l) * k.stride;
                // SAFETY: this task alone writes the keys and values of its head.
                let (to_k, to_v) = unsafe { (t.dk.part(at, dim), t.dv.part(at, dim)) };
                to_k.iter_mut().zip(&dk[l * dim..]).for_each(|(o, x)| *o = T::narrow(*x));
                to_v.iter_mut().zip(&dv[l * dim..]).for_each(|(o, x)| *o = T::narrow(*x));
            }
            j += n;
        }
    }
}
