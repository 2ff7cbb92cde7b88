//! Attention's forward: a block of queries of heads that share keys and values, against one tile of keys after another.

use super::product::{
    Lanes, MOST_ROWS, Panels, Product, Right, Source, multiply, pack_columns, pack_panels, pack_rows, strips,
    sum_lanes,
};
use super::sight::{Rows, Sight, Zeros};
use super::{COLUMNS, P_LINE, Q_LINE, keys_of, line_of, padded, take};
use crate::Float;
use crate::cpu::family::kernel;
use crate::cpu::{Family, Shared};
use crate::device::AttentionDims;
use crate::math::{exp_below, ln, sum16};
use std::ops::Range;

/// Most rows of a task: queries of one head, and behind them those of the next.
pub(super) const ROWS: usize = 192;

/// Rows, in generation, that values are not packed for.
const FEW: usize = 4;

/// Floats of working space.
pub(super) const SCRATCH_FLOATS: usize = 2 * ROWS * Q_LINE + 2 * COLUMNS + MOST_ROWS * P_LINE;

/// Queries of a task, and in how many parts the heads that share keys are cut. As rows do not depend on each other, nor do
/// bits on this; more parts than ask the rows there is room for are for threads that had nothing to do.
pub(super) fn blocks(d: &AttentionDims, threads: usize) -> (usize, usize) {
    let group = d.heads / d.kv_heads;
    let queries = d.queries.min(if group == 1 { 128 } else { 64 });
    let tasks = d.batch * d.kv_heads * d.queries.div_ceil(queries);
    let parts = group.div_ceil(ROWS / queries).max(threads.div_ceil(tasks));
    (queries, parts.min(group))
}

/// Some queries of some heads of one sequence.
pub(super) struct Forward<'a, T> {
    pub(super) d: AttentionDims,
    pub(super) sequence: usize,
    pub(super) q: &'a [T],
    /// Keys and values of all sequences.
    pub(super) k: Source<'a>,
    pub(super) v: Source<'a>,
    /// Values of this sequence's head.
    pub(super) values: Rows<'a, T>,
    pub(super) heads: Range<usize>,
    pub(super) queries: Range<usize>,
    pub(super) sight: Sight<'a>,
    pub(super) out: Shared<T>,
    pub(super) lse: Shared<f32>,
}

/// Running maximum and sum (Dao et al., algorithm 1), a strip of rows at a time.
pub(super) fn forward<T: Float>(
    family: Family,
    t: &Forward<'_, T>,
    zeros: &dyn Fn(usize) -> Option<Zeros>,
    mut scratch: &mut [f32],
) {
    let (d, dim) = (t.d, t.d.head_dim);
    let (first, n) = (t.queries.start, t.queries.len());
    let (rows, keys) = (n * t.heads.len(), keys_of(dim));
    let (width, line) = (padded(dim), line_of(dim));
    let q = take(&mut scratch, ROWS * Q_LINE);
    let acc = take(&mut scratch, ROWS * Q_LINE);
    let kt = take(&mut scratch, COLUMNS);
    let v = take(&mut scratch, COLUMNS);
    let s = take(&mut scratch, MOST_ROWS * P_LINE);
    let scale = 1.0 / (dim as f32).sqrt();
    for (h, q) in t.heads.clone().zip(q.chunks_mut(n * Q_LINE)) {
        let head = Rows::new(t.q, d.heads, dim, t.sequence * d.queries, h);
        pack_rows(family, head, first, n, scale, q, Q_LINE);
    }
    acc[..rows * line].fill(0.0);
    let (mut max, mut sum) = ([f32::NEG_INFINITY; ROWS], [[0f32; 16]; ROWS]);
    let mut lanes = [Lanes::default(); ROWS];
    let seen = t.sight.ahead + t.queries.end;
    let beginnings = t.sight.beginnings(t.queries.clone());
    let mut j = beginnings.first / keys * keys;
    while j < seen {
        let m = keys.min(seen - j);
        pack_columns(family, t.k, t.sequence * d.keys + j, m, kt);
        if rows > FEW {
            pack_panels(family, t.v, t.sequence * d.keys + j, m, v);
        }
        if beginnings.last <= j && j + keys <= t.sight.ahead + first + 1 {
            lanes[..rows].fill(Lanes { start: 0, end: keys });
        } else {
            for (r, lanes) in lanes[..rows].iter_mut().enumerate() {
                *lanes = t.sight.lanes(first + r % n, j, m);
            }
        }
        for strip in strips(family, rows) {
            let (from, lanes) = (strip.start, &lanes[strip.clone()]);
            let any = Lanes::all(lanes);
            if any.is_empty() {
                continue;
            }
            let product = Product {
                rows: lanes.len(),
                k: dim,
                a: &q[from * Q_LINE..],
                b: Right::Panels(Panels { data: kt, lines: dim, from: 0 }),
                columns: any.start..any.end,
                c: s,
                line: P_LINE,
                fresh: true,
            };
            multiply::<Q_LINE, 1>(family, product);
            let acc = &mut acc[from * line..];
            soften(family, s, lanes, &mut max[strip.clone()], &mut sum[strip.clone()], acc, line);
            for (r, (row, lanes)) in strip.zip(s.chunks_mut(P_LINE).zip(lanes)) {
                if let Some(zeros) = zeros(t.heads.start + r / n) {
                    for (l, p) in row.iter_mut().enumerate().take(lanes.end).skip(lanes.start) {
                        *p *= zeros.factor(first + r % n, j + l);
                    }
                }
            }
            if rows > FEW {
                sum_lanes(family, lanes, any, s, Panels { data: v, lines: m, from: 0 }, acc, (width, line));
            } else {
                for (lanes, (s, acc)) in lanes.iter().zip(s.chunks(P_LINE).zip(acc.chunks_mut(line))) {
                    sum_in_place(family, &s[lanes.start..lanes.end], t.values, j + lanes.start, acc);
                }
            }
        }
        j += keys;
    }
    for r in 0..rows {
        let row = (t.sequence * d.queries + first + r % n) * d.heads + t.heads.start + r / n;
        let sum = sum16(16, |l| sum[r][l]);
        // SAFETY: this task alone writes these rows of these heads.
        let (out, lse) = unsafe { (t.out.part(row * dim, dim), t.lse.part(row, 1)) };
        divide(family, &acc[r * line..], 1.0 / sum, out);
        lse[0] = (f64::from(max[r]) + ln(f64::from(sum))) as f32;
    }
}

kernel! {
    /// Turns scores to probabilities before division, with each row's maximum up to here; sums are 16 a row, strided.
    fn soften(
        s: &mut [f32], lanes: &[Lanes], max: &mut [f32], sum: &mut [[f32; 16]], acc: &mut [f32], line: usize,
    ) {
        let rows = s.chunks_exact_mut(P_LINE).zip(acc.chunks_mut(line)).zip(lanes);
        for (((row, acc), lanes), (max, sum)) in rows.zip(max.iter_mut().zip(sum)) {
            if lanes.is_empty() {
                continue;
            }
            let (from, to) = (lanes.start / 16 * 16, lanes.end.next_multiple_of(16));
            row[from..lanes.start].fill(f32::NEG_INFINITY);
            row[lanes.end..to].fill(f32::NEG_INFINITY);
            let row = &mut row[from..to];
            let mut tops = [*max; 16];
            for x in row.chunks_exact(16) {
                for l in 0..16 {
                    tops[l] = if x[l] > tops[l] { x[l] } else { tops[l] };
                }
            }
            let top = tops.iter().fold(*max, |m, x| if *x > m { *x } else { m });
            if top != *max {
                let shrink = exp_below(*max - top);
                acc.iter_mut().for_each(|x| *x *= shrink);
                sum.iter_mut().for_each(|x| *x *= shrink);
                *max = top;
            }
            for x in row.iter_mut() {
                *x = exp_below(*x - top);
            }
            for x in row.chunks_exact(16) {
                for l in 0..16 {
                    sum[l] += x[l];
                }
            }
        }
    }
}

kernel! {
    /// `to += sum over l of p[l] x[first + l]`, each element one chain, as in [`sum_lanes`].
    fn sum_in_place<T: Float>(p: &[f32], x: Rows<'_, T>, first: usize, to: &mut [f32]) {
        const BLOCK: usize = 64;
        for (b, to) in to[..x.head_dim].chunks_mut(BLOCK).enumerate() {
            let from = b * BLOCK;
            if let Ok(to) = <&mut [f32; BLOCK]>::try_from(&mut *to) {
                // In registers: what is summed in memory waits for itself.
                let mut sums = *to;
                for (l, p) in p.iter().enumerate() {
                    let row = &x.row(first + l)[from..from + BLOCK];
                    for e in 0..BLOCK {
                        sums[e] = p.mul_add(row[e].wide(), sums[e]);
                    }
                }
                *to = sums;
            } else {
                for (l, p) in p.iter().enumerate() {
                    for (to, x) in to.iter_mut().zip(&x.row(first + l)[from..]) {
                        *to = p.mul_add(x.wide(), *to);
                    }
                }
            }
        }
    }
}

kernel! {
    fn divide<T: Float>(acc: &[f32], inverse: f32, out: &mut [T]) {
        for (o, a) in out.iter_mut().zip(acc) {
            *o = T::narrow(a * inverse);
        }
    }
}
