//! Causal attention in tiles, with grouped heads; memory linear in the sequence.
//!
//! A tile of keys is transposed once in this thread's scratch, and every query row that sees it meets it there.
//! Tile sizes are constants: they decide the order of sums.

use super::family::kernel;
use super::{Cpu, M, S, Shared};
use crate::device::{Attention, AttentionDims, AttentionSaved};
use crate::math::{dot16, exp, ln};

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
struct Rows<'a> {
    data: &'a [f32],
    stride: usize,
    start: usize,
    head_dim: usize,
}

impl<'a> Rows<'a> {
    fn new(data: &'a [f32], heads: usize, head_dim: usize, first_row: usize, head: usize) -> Self {
        let stride = heads * head_dim;
        Self { data, stride, start: first_row * stride + head * head_dim, head_dim }
    }

    #[inline(always)]
    fn row(&self, i: usize) -> &'a [f32] {
        let at = self.start + i * self.stride;
        &self.data[at..at + self.head_dim]
    }
}

impl Attention for Cpu {
    fn attention(&self, d: AttentionDims, q: S<'_>, k: S<'_>, v: S<'_>, out: M<'_>, lse: M<'_>) {
        let (q, k, v) = (q.get::<f32>(), k.get::<f32>(), v.get::<f32>());
        let (out, lse) = (out.get::<f32>(), lse.get::<f32>());
        check(&d, [q.len(), out.len()], [k.len(), v.len()], lse.len());
        let (out, lse) = (Shared::of(out), Shared::of(lse));
        let tiles = d.queries.div_ceil(QUERIES);
        self.parallel(d.batch * d.heads * tiles, |t| {
            // Late tiles see most keys: begin with them, so that threads end together.
            let (tile, h, b) = (tiles - 1 - t % tiles, t / tiles % d.heads, t / tiles / d.heads);
            let kv = h / (d.heads / d.kv_heads);
            let task = Forward {
                q: Rows::new(q, d.heads, d.head_dim, b * d.queries, h),
                k: Rows::new(k, d.kv_heads, d.head_dim, b * d.keys, kv),
                v: Rows::new(v, d.kv_heads, d.head_dim, b * d.keys, kv),
                first: tile * QUERIES,
                end: ((tile + 1) * QUERIES).min(d.queries),
                ahead: d.keys - d.queries,
                out,
                lse,
                lse_at: b * d.queries * d.heads + h,
                heads: d.heads,
            };
            // SAFETY: the scratch is this thread's.
            let scratch = unsafe { self.scratch().part(0, 2 * KEYS * MAX_HEAD) };
            forward(self.family, task, scratch);
        });
    }

    fn attention_backward(
        &self,
        d: AttentionDims,
        saved: AttentionSaved<'_, super::CpuBuf>,
        dout: S<'_>,
        delta: M<'_>,
        dq: M<'_>,
        dk: M<'_>,
        dv: M<'_>,
    ) {
        let (q, k, v) = (saved.q.get::<f32>(), saved.k.get::<f32>(), saved.v.get::<f32>());
        let (out, lse, dout) = (saved.out.get::<f32>(), saved.lse.get::<f32>(), dout.get::<f32>());
        let delta = delta.get::<f32>();
        deltas(self.family, out, dout, d.head_dim, delta);
        let delta: &[f32] = delta;
        let (dq, dk, dv) = (dq.get::<f32>(), dk.get::<f32>(), dv.get::<f32>());
        check(&d, [q.len(), dq.len()], [k.len(), v.len()], lse.len());
        check(&d, [out.len(), dout.len()], [dk.len(), dv.len()], delta.len());
        dq.fill(0.0);
        let (dq, dk, dv) = (Shared::of(dq), Shared::of(dk), Shared::of(dv));
        self.parallel(d.batch * d.kv_heads, |t| {
            let (kv, b) = (t % d.kv_heads, t / d.kv_heads);
            // SAFETY: the scratch is this thread's.
            let scratch = unsafe { self.scratch().part(0, SCRATCH_FLOATS) };
            backward(self.family, Backward { d, q, k, v, lse, delta, dout, dq, dk, dv, b, kv }, scratch);
        });
    }
}

/// Tasks write through shared pointers: no buffer may be shorter than the sizes say.
fn check(d: &AttentionDims, like_q: [usize; 2], like_k: [usize; 2], like_lse: usize) {
    let (rows, q, k) = (d.batch * d.queries, d.heads * d.head_dim, d.kv_heads * d.head_dim);
    let fits = like_q == [rows * q; 2] && like_k == [d.batch * d.keys * k; 2] && like_lse == rows * d.heads;
    assert!(fits && d.head_dim <= MAX_HEAD, "operands do not have {d:?}");
}

#[derive(Clone, Copy)]
struct Forward<'a> {
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    first: usize,
    end: usize,
    ahead: usize,
    out: Shared<f32>,
    lse: Shared<f32>,
    lse_at: usize,
    heads: usize,
}

kernel! {
    /// One tile of queries of one head: running maximum and sum (Dao et al., algorithm 1).
    fn forward(t: Forward<'_>, scratch: &mut [f32]) {
        let dim = t.q.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let (keys, acc) = scratch.split_at_mut(KEYS * MAX_HEAD);
        let rows = t.end - t.first;
        acc[..rows * dim].fill(0.0);
        let (mut max, mut sum) = ([f32::NEG_INFINITY; QUERIES], [0f32; QUERIES]);
        let seen = t.ahead + t.end;
        let mut j = 0;
        while j < seen {
            let n = KEYS.min(seen - j);
            transpose(t.k, j, n, keys);
            for i in t.first..t.end {
                let visible = (t.ahead + i + 1).saturating_sub(j).min(n);
                if visible == 0 {
                    continue;
                }
                let r = i - t.first;
                let mut s = scores(t.q.row(i), keys);
                let mut top = max[r];
                for x in &mut s[..visible] {
                    *x *= scale;
                    top = top.max(*x);
                }
                let shrink = exp(max[r] - top);
                for (l, x) in s.iter_mut().enumerate() {
                    *x = if l < visible { exp(*x - top) } else { 0.0 };
                }
                sum[r] = sum[r].mul_add(shrink, crate::math::sum16(KEYS, |l| s[l]));
                max[r] = top;
                let o = &mut acc[r * dim..(r + 1) * dim];
                for x in o.iter_mut() {
                    *x *= shrink;
                }
                for (l, p) in s[..visible].iter().enumerate() {
                    axpy(*p, t.v.row(j + l), o);
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
                *o = a * inverse;
            }
            lse[0] = (f64::from(max[r]) + ln(f64::from(sum[r]))) as f32;
        }
    }
}

/// Keys `first .. first + n` as `[head_dim, KEYS]`; the rest of the tile is zero.
#[inline(always)]
fn transpose(x: Rows<'_>, first: usize, n: usize, out: &mut [f32]) {
    if n < KEYS {
        out[..x.head_dim * KEYS].fill(0.0);
    }
    for l in 0..n {
        for (e, v) in x.row(first + l).iter().enumerate() {
            out[e * KEYS + l] = *v;
        }
    }
}

/// `x . y_l` for each of a transposed tile's rows.
#[inline(always)]
fn scores(x: &[f32], tile: &[f32]) -> [f32; KEYS] {
    let mut s = [0f32; KEYS];
    for (x, line) in x.iter().zip(tile.chunks_exact(KEYS)) {
        for l in 0..KEYS {
            s[l] = x.mul_add(line[l], s[l]);
        }
    }
    s
}

/// `y += a x`.
#[inline(always)]
fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = a.mul_add(*x, *y);
    }
}

kernel! {
    /// `delta = rowsum(out * dout)` a head.
    fn deltas(out: &[f32], dout: &[f32], head_dim: usize, delta: &mut [f32]) {
        let rows = out.chunks_exact(head_dim).zip(dout.chunks_exact(head_dim));
        for (d, (o, g)) in delta.iter_mut().zip(rows) {
            *d = dot16(o, g);
        }
    }
}

#[derive(Clone, Copy)]
struct Backward<'a> {
    d: AttentionDims,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    lse: &'a [f32],
    delta: &'a [f32],
    dout: &'a [f32],
    dq: Shared<f32>,
    dk: Shared<f32>,
    dv: Shared<f32>,
    b: usize,
    kv: usize,
}

kernel! {
    /// All queries of the heads that share one key/value head (Dao et al., algorithm 2).
    fn backward(t: Backward<'_>, scratch: &mut [f32]) {
        let d = t.d;
        let dim = d.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let group = d.heads / d.kv_heads;
        let k = Rows::new(t.k, d.kv_heads, dim, t.b * d.keys, t.kv);
        let v = Rows::new(t.v, d.kv_heads, dim, t.b * d.keys, t.kv);
        let (kt, rest) = scratch.split_at_mut(KEYS * MAX_HEAD);
        let (vt, rest) = rest.split_at_mut(KEYS * MAX_HEAD);
        let (dk, dv) = rest.split_at_mut(KEYS * MAX_HEAD);
        let ahead = d.keys - d.queries;
        let mut j = 0;
        while j < d.keys {
            let n = KEYS.min(d.keys - j);
            transpose(k, j, n, kt);
            transpose(v, j, n, vt);
            dk[..KEYS * dim].fill(0.0);
            dv[..KEYS * dim].fill(0.0);
            for h in t.kv * group..(t.kv + 1) * group {
                let q = Rows::new(t.q, d.heads, dim, t.b * d.queries, h);
                let g = Rows::new(t.dout, d.heads, dim, t.b * d.queries, h);
                for i in j.saturating_sub(ahead)..d.queries {
                    let visible = (ahead + i + 1 - j).min(n);
                    let at = (t.b * d.queries + i) * d.heads + h;
                    let (lse, delta) = (t.lse[at], t.delta[at]);
                    let s = scores(q.row(i), kt);
                    let dp = scores(g.row(i), vt);
                    let (mut p, mut ds) = ([0f32; KEYS], [0f32; KEYS]);
                    for l in 0..KEYS {
                        let e = exp(s[l].mul_add(scale, -lse));
                        p[l] = if l < visible { e } else { 0.0 };
                        ds[l] = p[l] * (dp[l] - delta) * scale;
                    }
                    // SAFETY: this task alone writes the queries of its heads.
                    let dq = unsafe { t.dq.part(q.start + i * q.stride, dim) };
                    for l in 0..visible {
                        axpy(ds[l], k.row(j + l), dq);
                        axpy(ds[l], q.row(i), &mut dk[l * dim..(l + 1) * dim]);
                        axpy(p[l], g.row(i), &mut dv[l * dim..(l + 1) * dim]);
                    }
                }
            }
            for l in 0..n {
                let at = k.start + (j + l) * k.stride;
                // SAFETY: this task alone writes the keys and values of its head.
                unsafe {
                    t.dk.part(at, dim).copy_from_slice(&dk[l * dim..(l + 1) * dim]);
                    t.dv.part(at, dim).copy_from_slice(&dv[l * dim..(l + 1) * dim]);
                }
            }
            j += n;
        }
    }
}
