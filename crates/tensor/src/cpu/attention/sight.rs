//! Which keys a query sees, where rows of heads lie, and which probabilities a dropout sets to zero.

use super::product::Lanes;
use crate::cpu::CpuBuf;
use crate::cpu::pointwise::dropout_key;
use crate::device::{AttentionDims, AttentionInput};
use crate::math::survives;
use std::ops::Range;

/// Where the rows of a head lie.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    data: &'a [T],
    pub(super) stride: usize,
    pub(super) start: usize,
    pub(super) head_dim: usize,
}

impl<'a, T> Rows<'a, T> {
    pub(super) fn new(data: &'a [T], heads: usize, head_dim: usize, first_row: usize, head: usize) -> Self {
        let stride = heads * head_dim;
        Self { data, stride, start: first_row * stride + head * head_dim, head_dim }
    }

    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [T] {
        let at = self.start + i * self.stride;
        &self.data[at..at + self.head_dim]
    }
}

/// Which keys the queries of one sequence see: each a run that ends at its own place.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    positions: &'a [i32],
    /// Keys before the first query's place.
    pub(super) ahead: usize,
    window: usize,
}

/// Where the runs of some queries begin: the first and the last of these places.
pub(super) struct Beginnings {
    pub(super) first: usize,
    pub(super) last: usize,
}

impl<'a> Sight<'a> {
    pub(super) fn new(d: &AttentionDims, positions: &'a [i32], sequence: usize) -> Self {
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

    /// Those of them in the tile of `n` keys from `j` on.
    #[inline(always)]
    pub(super) fn lanes(&self, i: usize, j: usize, n: usize) -> Lanes {
        let keys = self.keys(i);
        let end = keys.end.min(j + n).max(j) - j;
        Lanes { start: (keys.start.max(j) - j).min(end), end }
    }

    pub(super) fn beginnings(&self, queries: Range<usize>) -> Beginnings {
        queries.fold(Beginnings { first: usize::MAX, last: 0 }, |b, i| {
            let start = self.keys(i).start;
            Beginnings { first: b.first.min(start), last: b.last.max(start) }
        })
    }

    /// Queries `from ..` of `queries` that may see a key of `j .. end`: none before, none a window and more behind.
    pub(super) fn queries_of(&self, j: usize, end: usize, queries: usize) -> Range<usize> {
        let last = end.saturating_add(self.window - 1).saturating_sub(self.ahead).min(queries);
        j.saturating_sub(self.ahead).min(last)..last
    }
}

/// Zeros among the probabilities of one head of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Zeros {
    key: u64,
    rate: f32,
}

impl Zeros {
    pub(super) fn new(input: &AttentionInput<'_, CpuBuf>, sequence: usize, head: usize) -> Option<Self> {
        let d = input.dropout?;
        let key = dropout_key(d.keys.get::<i64>()[sequence], d.salt.wrapping_add((head as u64) << 32));
        Some(Self { key, rate: d.rate })
    }

    /// What query `i`'s probability of key `j` is multiplied by.
    #[inline(always)]
    pub(super) fn factor(&self, i: usize, j: usize) -> f32 {
        if survives(self.key, (i as u64) << 32 | j as u64, self.rate) { 1.0 / (1.0 - self.rate) } else { 0.0 }
    }
}
