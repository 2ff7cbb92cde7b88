//! Attention's backward: one tile of keys and values against all queries that see it.
//!
//! Gradients of keys and values are summed in working space. Those of queries are summed in place, over tiles of keys in
//! order: tasks of one key/value head wait for each other there, one tile of queries behind the other.

use super::product::{
    Lanes, Panels, Product, Right, Source, multiply, pack_columns, pack_panels, pack_rows, strips, sum_lanes,
};
use super::sight::{Rows, Sight, Zeros};
use super::{COLUMNS, LINES, P_LINE, Q_LINE, keys_of, line_of, padded, take};
use crate::Float;
use crate::cpu::family::kernel;
use crate::cpu::{Family, Shared};
use crate::device::AttentionDims;
use crate::math::exp_below;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Queries of a tile.
pub(super) const QUERIES: usize = 64;

/// Floats of working space.
pub(super) const SCRATCH_FLOATS: usize =
    3 * COLUMNS + 2 * LINES + 3 * QUERIES * Q_LINE + 2 * QUERIES * P_LINE;

/// One tile of keys of one head of one sequence.
pub(super) struct Backward<'a, T> {
    pub(super) d: AttentionDims,
    pub(super) sequence: usize,
    pub(super) kv: usize,
    /// The tile's number.
    pub(super) tile: usize,
    pub(super) q: &'a [T],
    pub(super) dout: &'a [T],
    pub(super) lse: &'a [f32],
    pub(super) delta: &'a [f32],
    /// Keys and values of all sequences.
    pub(super) k: Source<'a>,
    pub(super) v: Source<'a>,
    pub(super) sight: Sight<'a>,
    pub(super) dq: Shared<f32>,
    pub(super) dk: Shared<T>,
    pub(super) dv: Shared<T>,
    /// How far the task of each tile of keys of this head is.
    pub(super) progress: &'a [AtomicU32],
}

impl<T> Backward<'_, T> {
    /// Waits until the tile of keys before this one has added all it will to the first `count` tiles of queries.
    fn wait(&self, count: u32) {
        let Some(before) = self.tile.checked_sub(1) else { return };
        let mut turns = 0u32;
        while self.progress[before].load(Ordering::Acquire) < count {
            std::hint::spin_loop();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1024) {
                std::thread::yield_now();
            }
        }
    }

    /// Says that this one has.
    fn done(&self, count: u32) {
        self.progress[self.tile].store(count, Ordering::Release);
    }
}

/// Five products a pair of tiles (Dao et al., algorithm 2).
pub(super) fn backward<T: Float>(
    family: Family,
    t: &Backward<'_, T>,
    zeros: &dyn Fn(usize) -> Option<Zeros>,
    mut scratch: &mut [f32],
) {
    let (d, dim) = (t.d, t.d.head_dim);
    let (width, line, keys) = (padded(dim), line_of(dim), keys_of(dim));
    let kt = take(&mut scratch, COLUMNS);
    let vt = take(&mut scratch, COLUMNS);
    let k = take(&mut scratch, COLUMNS);
    let dk = take(&mut scratch, LINES);
    let dv = take(&mut scratch, LINES);
    let q = take(&mut scratch, QUERIES * Q_LINE);
    let g = take(&mut scratch, QUERIES * Q_LINE);
    let dq = take(&mut scratch, QUERIES * Q_LINE);
    let p = take(&mut scratch, QUERIES * P_LINE);
    let ds = take(&mut scratch, QUERIES * P_LINE);
    // Queries are scaled for scores and for the gradient of keys, keys for that of queries.
    let scale = 1.0 / (dim as f32).sqrt();
    let j = t.tile * keys;
    let m = keys.min(d.keys - j);
    let row = t.sequence * d.keys + j;
    pack_columns(family, t.k, row, m, kt);
    pack_columns(family, t.v, row, m, vt);
    pack_panels(family, t.k, row, m, k);
    // Whole panels of any family; what lies behind is no operand.
    scale_all(family, &mut k[..m * dim.next_multiple_of(32)], scale);
    dk[..m * line].fill(0.0);
    dv[..m * line].fill(0.0);
    let group = d.heads / d.kv_heads;
    let tiles = d.queries.div_ceil(QUERIES);
    let reach = t.sight.queries_of(j, j + m, d.queries);
    let (mut lanes, mut lse, mut delta) = ([Lanes::default(); QUERIES], [0f32; QUERIES], [0f32; QUERIES]);
    for (turn, h) in (t.kv * group..(t.kv + 1) * group).enumerate() {
        let q_rows = Rows::new(t.q, d.heads, dim, t.sequence * d.queries, h);
        let g_rows = Rows::new(t.dout, d.heads, dim, t.sequence * d.queries, h);
        for tile in reach.start / QUERIES..reach.end.div_ceil(QUERIES) {
            let first = tile * QUERIES;
            let n = QUERIES.min(d.queries - first);
            let beginnings = t.sight.beginnings(first..first + n);
            if beginnings.first >= j + m {
                continue;
            }
            let whole = beginnings.last <= j && j + m <= t.sight.ahead + first + 1;
            for (r, lanes) in lanes[..n].iter_mut().enumerate() {
                *lanes = if whole { Lanes { start: 0, end: m } } else { t.sight.lanes(first + r, j, m) };
                let at = (t.sequence * d.queries + first + r) * d.heads + h;
                (lse[r], delta[r]) = (t.lse[at], t.delta[at]);
            }
            let lanes = &lanes[..n];
            pack_rows(family, q_rows, first, n, scale, q, Q_LINE);
            pack_rows(family, g_rows, first, n, 1.0, g, Q_LINE);
            for strip in strips(family, n) {
                let any = Lanes::all(&lanes[strip.clone()]);
                if any.is_empty() {
                    continue;
                }
                for (a, b, c) in [(&*q, &*kt, &mut *p), (&*g, &*vt, &mut *ds)] {
                    let product = Product {
                        rows: strip.len(),
                        k: dim,
                        a: &a[strip.start * Q_LINE..],
                        b: Right::Panels(Panels { data: b, lines: dim, from: 0 }),
                        columns: any.start..any.end,
                        c: &mut c[strip.start * P_LINE..],
                        line: P_LINE,
                        fresh: true,
                    };
                    multiply::<Q_LINE, 1>(family, product);
                }
                let (p, ds) = (&mut p[strip.start * P_LINE..], &mut ds[strip.start * P_LINE..]);
                let (lse, delta) = (&lse[strip.clone()], &delta[strip.clone()]);
                let zeros = zeros(h).map(|zeros| (zeros, first + strip.start, j));
                differentiate(family, p, ds, &lanes[strip.clone()], lse, delta, zeros);
            }
            for (a, b, c) in [(&*p, &*g, &mut *dv), (&*ds, &*q, &mut *dk)] {
                if whole {
                    sum_queries(family, m, 0..n, a, b, c, (width, line));
                } else {
                    for strip in strips(family, m) {
                        sum_sighted(family, strip, 0..n, lanes, a, b, c, (width, line));
                    }
                }
            }
            let count = (turn * tiles + tile + 1) as u32;
            t.wait(count);
            let from = q_rows.start + first * q_rows.stride;
            // Which tile of keys is the first that these queries see, all of them know.
            if beginnings.first / keys == t.tile {
                dq[..n * line].fill(0.0);
            } else {
                for (i, to) in dq.chunks_mut(line).enumerate().take(n) {
                    // SAFETY: the task of the tile before has left these rows, and that of the next one waits.
                    to[..dim].copy_from_slice(unsafe { t.dq.part(from + i * q_rows.stride, dim) });
                    to[dim..width].fill(0.0);
                }
            }
            for strip in strips(family, n) {
                let (from, lanes) = (strip.start, &lanes[strip]);
                let to = &mut dq[from * line..];
                let k = Panels { data: k, lines: m, from: 0 };
                sum_lanes(family, lanes, Lanes::all(lanes), &ds[from * P_LINE..], k, to, (width, line));
            }
            for (i, row) in dq.chunks(line).enumerate().take(n) {
                // SAFETY: as above.
                unsafe { t.dq.part(from + i * q_rows.stride, dim) }.copy_from_slice(&row[..dim]);
            }
            t.done(count);
        }
    }
    t.done(u32::MAX);
    for l in 0..m {
        let at = ((row + l) * d.kv_heads + t.kv) * dim;
        // SAFETY: this task alone writes its keys and values.
        let (to_k, to_v) = unsafe { (t.dk.part(at, dim), t.dv.part(at, dim)) };
        narrow(family, &dk[l * line..], to_k);
        narrow(family, &dv[l * line..], to_v);
    }
}

/// `c[l] += sum over queries i of a[i][l] b[i]`, for `l` below `rows`; lines of `c` are `line` apart.
fn sum_queries(
    family: Family,
    rows: usize,
    queries: Range<usize>,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    (width, line): (usize, usize),
) {
    let (a, b) = (&a[queries.start * P_LINE..], Right::Rows(&b[queries.start * Q_LINE..], Q_LINE));
    let product = Product { rows, k: queries.len(), a, b, columns: 0..width, c, line, fresh: false };
    multiply::<1, P_LINE>(family, product);
}

/// The same for a strip of keys, each summed over the queries that see it, in order, and no other.
fn sum_sighted(
    family: Family,
    keys: Range<usize>,
    queries: Range<usize>,
    lanes: &[Lanes],
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    size: (usize, usize),
) {
    let sees_all = |i: usize| lanes[i].start <= keys.start && keys.end <= lanes[i].end;
    let sees_some = |i: usize| lanes[i].start < keys.end && keys.start < lanes[i].end;
    let mut i = queries.start;
    while i < queries.end {
        let (all, some) = (sees_all(i), sees_some(i));
        let run = i..(i + 1..queries.end)
            .find(|i| (sees_all(*i), sees_some(*i)) != (all, some))
            .unwrap_or(queries.end);
        i = run.end;
        if all {
            sum_queries(family, keys.len(), run, &a[keys.start..], b, &mut c[keys.start * size.1..], size);
        } else if some {
            let middle = keys.start + keys.len() / 2;
            sum_sighted(family, keys.start..middle, run.clone(), lanes, a, b, c, size);
            sum_sighted(family, middle..keys.end, run, lanes, a, b, c, size);
        }
    }
}

kernel! {
    /// Turns scores to probabilities `p`, and the gradients `ds` of what they weigh to the scores'. Lanes that a row does not
    /// see come out as anything.
    fn differentiate(
        p: &mut [f32], ds: &mut [f32], lanes: &[Lanes], lse: &[f32], delta: &[f32],
        zeros: Option<(Zeros, usize, usize)>,
    ) {
        let rows = p.chunks_exact_mut(P_LINE).zip(ds.chunks_exact_mut(P_LINE)).zip(lanes);
        for (r, (((p, ds), lanes), (lse, delta))) in rows.zip(lse.iter().zip(delta)).enumerate() {
            if lanes.is_empty() {
                continue;
            }
            let span = lanes.start / 16 * 16..lanes.end.next_multiple_of(16);
            let (p, ds) = (&mut p[span.clone()], &mut ds[span.clone()]);
            for p in p.iter_mut() {
                *p = exp_below(*p - lse);
            }
            if let Some((zeros, first, j)) = zeros {
                for (l, (p, ds)) in span.zip(p.iter_mut().zip(ds)) {
                    let factor = zeros.factor(first + r, j + l);
                    *ds = *p * (*ds * factor - delta);
                    *p *= factor;
                }
            } else {
                for (p, ds) in p.iter().zip(ds) {
                    *ds = p * (*ds - delta);
                }
            }
        }
    }
}

kernel! {
    fn narrow<T: Float>(from: &[f32], to: &mut [T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = T::narrow(*from);
        }
    }
}

kernel! {
    fn scale_all(x: &mut [f32], by: f32) {
        x.iter_mut().for_each(|x| *x *= by);
    }
}
