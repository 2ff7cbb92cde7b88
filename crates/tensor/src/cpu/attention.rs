//! Causal attention in tiles, with grouped heads; memory linear in the sequence.
//!
//! A tile of keys and values is packed once in a thread's working space, and every row of queries that sees it meets it
//! there, in products that run as those of matrices do. Tiles of keys have constant sizes: they decide the order of sums.
//! A query sees a run of keys that ends at its own place; how long it is, its document, its window and causality decide
//! together. Tiles outside of it are skipped; at its ends, sums of a strip of rows take the keys that all of them see, and
//! for others parts of the strip, so that what is not seen is never touched.

mod backward;
mod forward;
mod product;
mod sight;

use super::family::{for_float, kernel};
use super::pack::{Elements, Operand, Stretch};
use super::{Cpu, CpuBuf, M, S, Shared};
use crate::Float;
use crate::device::{Attention, AttentionDims, AttentionInput, AttentionSaved};
use crate::math::dot16;
use backward::{Backward, backward};
use forward::{Forward, forward};
use product::Source;
use sight::{Rows, Sight, Zeros};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Longest head.
const MAX_HEAD: usize = AttentionDims::MAX_HEAD_DIM;

/// Keys of a tile: fewer where heads are long, so that a tile stays in the second cache.
const fn keys_of(head_dim: usize) -> usize {
    if head_dim <= 128 { 128 } else { 64 }
}

/// Floats of a row that products take: whole vectors of any family.
const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Floats from one packed row to the next: an odd number of cache lines, so that rows do not meet in one set of a cache.
const fn line_of(head_dim: usize) -> usize {
    (head_dim.div_ceil(16) | 1) * 16
}

/// From one packed query to the next, whatever the head.
const Q_LINE: usize = line_of(MAX_HEAD);
/// From one row of probabilities to the next.
const P_LINE: usize = line_of(128);
/// Floats of a transposed tile of keys.
const COLUMNS: usize = if 128 * keys_of(128) > MAX_HEAD * keys_of(MAX_HEAD) {
    128 * keys_of(128)
} else {
    MAX_HEAD * keys_of(MAX_HEAD)
};
/// Floats of a tile of keys or values in rows.
const LINES: usize = if keys_of(128) * line_of(128) > keys_of(MAX_HEAD) * Q_LINE {
    keys_of(128) * line_of(128)
} else {
    keys_of(MAX_HEAD) * Q_LINE
};

/// Floats of working space a thread.
pub(super) const SCRATCH_FLOATS: usize = if forward::SCRATCH_FLOATS > backward::SCRATCH_FLOATS {
    forward::SCRATCH_FLOATS
} else {
    backward::SCRATCH_FLOATS
};

/// Cuts the next `len` floats off working space.
fn take<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    part
}

/// Rows of one key/value head, of all sequences.
fn source<'a>(x: S<'a>, d: &AttentionDims, kv: usize) -> Source<'a> {
    let rows = Operand { data: Elements::of(x), row: d.kv_heads * d.head_dim, step: 1 };
    Source { rows, part: Stretch { from: kv * d.head_dim, len: d.head_dim } }
}

impl Attention for Cpu {
    fn attention(&self, d: AttentionDims, input: AttentionInput<'_, CpuBuf>, out: M<'_>, lse: M<'_>) {
        for_float!(input.q, T => {
            let (q, k, v) = (input.q.get::<T>(), input.k.get::<T>(), input.v.get::<T>());
            let (positions, out, lse) = (input.positions.get::<i32>(), out.get::<T>(), lse.get::<f32>());
            check(&d, [q.len(), out.len()], [k.len(), v.len()], lse.len(), positions.len());
            let (out, lse) = (Shared::of(out), Shared::of(lse));
            let (queries, parts) = forward::blocks(&d, self.pool.threads());
            let (tiles, group) = (d.queries.div_ceil(queries), d.heads / d.kv_heads);
            let chains = d.batch * d.kv_heads * parts;
            self.parallel_scratch(chains * tiles, |t, scratch| {
                // Late tiles see most keys: begin with them, so that threads end together.
                let (tile, chain) = (tiles - 1 - t / chains, t % chains);
                let (part, kv, b) = (chain % parts, chain / parts % d.kv_heads, chain / parts / d.kv_heads);
                let heads = kv * group + part * group / parts..kv * group + (part + 1) * group / parts;
                let task = Forward {
                    d,
                    sequence: b,
                    q,
                    k: source(input.k, &d, kv),
                    v: source(input.v, &d, kv),
                    values: Rows::new(v, d.kv_heads, d.head_dim, b * d.keys, kv),
                    heads,
                    queries: tile * queries..((tile + 1) * queries).min(d.queries),
                    sight: Sight::new(&d, positions, b),
                    out,
                    lse,
                };
                forward(self.family, &task, &|head| Zeros::new(&input, b, head), scratch);
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
            let (delta, dq) = (delta.get::<f32>(), dq.get::<f32>());
            let (dk, dv) = (dk.get::<T>(), dv.get::<T>());
            check(&d, [q.len(), dq.len()], [k.len(), v.len()], lse.len(), positions.len());
            check(&d, [out.len(), dout.len()], [dk.len(), dv.len()], delta.len(), positions.len());
            self.deltas(out, dout, d.head_dim, delta);
            let delta: &[f32] = delta;
            let (dq, dk, dv) = (Shared::of(dq), Shared::of(dk), Shared::of(dv));
            let tiles = d.keys.div_ceil(keys_of(d.head_dim));
            // A head's tasks tell each other how far they are in working space that threads share.
            let most = (super::SHARED_FLOATS / tiles).max(1);
            let chains = d.batch * d.kv_heads;
            for from in (0..chains).step_by(most) {
                self.in_order(tiles, most.min(chains - from), |tile, chain, progress, scratch| {
                    let (kv, b) = ((from + chain) % d.kv_heads, (from + chain) / d.kv_heads);
                    let task = Backward {
                        d,
                        sequence: b,
                        kv,
                        tile,
                        q,
                        dout,
                        lse,
                        delta,
                        k: source(input.k, &d, kv),
                        v: source(input.v, &d, kv),
                        sight: Sight::new(&d, positions, b),
                        dq,
                        dk,
                        dv,
                        progress,
                    };
                    backward(self.family, &task, &|head| Zeros::new(&input, b, head), scratch);
                });
            }
        });
    }
}

impl Cpu {
    /// Carries out tasks `(tile, chain)`, begun tile by tile: a task may wait for the one before in its chain, which has then
    /// been begun. A task must not panic while another waits for it.
    fn in_order(
        &self,
        tiles: usize,
        chains: usize,
        task: impl Fn(usize, usize, &[AtomicU32], &mut [f32]) + Sync,
    ) {
        let (next, shared) = (AtomicUsize::new(0), self.shared_scratch());
        self.together(false, &|thread| {
            // SAFETY: this working space belongs to the operation under way, there are so many floats of it (see the caller),
            // and any bits are a number; it is only read and written as atomics here.
            let progress =
                unsafe { std::slice::from_raw_parts(shared.at(0).cast::<AtomicU32>(), tiles * chains) };
            if thread == 0 {
                progress.iter().for_each(|x| x.store(0, Ordering::Relaxed));
            }
            self.pool.barrier();
            loop {
                let t = next.fetch_add(1, Ordering::Relaxed);
                if t >= tiles * chains {
                    return;
                }
                let (tile, chain) = (t / chains, t % chains);
                task(tile, chain, &progress[chain * tiles..(chain + 1) * tiles], self.scratch_of(thread));
            }
        });
    }

    /// `delta = rowsum(out * dout)` a head.
    fn deltas<T: Float>(&self, out: &[T], dout: &[T], head_dim: usize, delta: &mut [f32]) {
        let (rows, delta) = (delta.len(), Shared::of(delta));
        self.by_elements(rows, |part| {
            let elements = part.start * head_dim..part.end * head_dim;
            // SAFETY: this task takes its own part.
            let delta = unsafe { delta.part(part.start, part.len()) };
            row_dots(self.family, &out[elements.clone()], &dout[elements], head_dim, delta);
        });
    }
}

/// Tasks write through shared pointers: no buffer may be shorter than the sizes say.
fn check(d: &AttentionDims, like_q: [usize; 2], like_k: [usize; 2], like_lse: usize, positions: usize) {
    let (rows, q, k) = (d.batch * d.queries, d.heads * d.head_dim, d.kv_heads * d.head_dim);
    let fits = like_q == [rows * q; 2] && like_k == [d.batch * d.keys * k; 2] && like_lse == rows * d.heads;
    assert!(fits && positions == rows && d.head_dim <= MAX_HEAD, "operands do not have {d:?}");
}

kernel! {
    fn row_dots<T: Float>(a: &[T], b: &[T], len: usize, to: &mut [f32]) {
        for (to, (a, b)) in to.iter_mut().zip(a.chunks_exact(len).zip(b.chunks_exact(len))) {
            *to = dot16(a, b);
        }
    }
}
