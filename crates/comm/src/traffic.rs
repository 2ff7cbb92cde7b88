//! Bytes that cross between one rank's memory and another's.

use crate::{Call, Collective};
use memwall_tensor::device::Memory;
use std::ops::{Add, Sub};

/// What one rank has moved between its memory and others', and how often it took part, for each collective in the order of
/// [`Collective::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Collectives.
    pub calls: [u64; 8],
    /// Payload bytes that it read from, or wrote into, other ranks' memory.
    pub bytes: [u64; 8],
}

impl Traffic {
    /// Payload bytes over all collectives.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// One more collective.
    pub fn count(&mut self, collective: Collective, bytes: u64) {
        self.calls[collective as usize] += 1;
        self.bytes[collective as usize] += bytes;
    }

    /// This many times over.
    #[must_use]
    pub fn times(self, n: u64) -> Self {
        Self { calls: self.calls.map(|c| c * n), bytes: self.bytes.map(|b| b * n) }
    }
}

impl Add for Traffic {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let sum = |a: [u64; 8], b: [u64; 8]| std::array::from_fn(|i| a[i] + b[i]);
        Self { calls: sum(self.calls, other.calls), bytes: sum(self.bytes, other.bytes) }
    }
}

impl Sub for Traffic {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        let rest = |a: [u64; 8], b: [u64; 8]| std::array::from_fn(|i| a[i] - b[i]);
        Self { calls: rest(self.calls, other.calls), bytes: rest(self.bytes, other.bytes) }
    }
}

/// Elements of `len` that rank `rank` of `size` sums in an all-reduce: equal parts of whole cache lines of `bytes` an element,
/// the last ones shorter or empty.
pub fn share(len: usize, bytes: usize, rank: usize, size: usize) -> std::ops::Range<usize> {
    let line = (64 / bytes).max(1);
    let part = len.div_ceil(size).next_multiple_of(line);
    (rank * part).min(len)..((rank + 1) * part).min(len)
}

/// Payload bytes that a rank moves between its memory and others' in a collective, by the algorithm that all transports of
/// one machine use: each rank reads what it needs where it lies. In an all-reduce it reads its [`share`] of every other
/// buffer, and writes the sum into each: over all ranks `2 (n - 1)` buffers, as in a ring (Patarasuk and Yuan, 2009).
pub fn bytes_moved<D: Memory>(call: &Call<D>, rank: usize, size: usize) -> u64 {
    let (len, dtype) = call.size();
    let others = size - 1;
    let elements = match call {
        Call::AllReduce(_) => 2 * others * share(len, dtype.bytes(), rank, size).len(),
        Call::AllGather { .. } | Call::ReduceScatter { .. } | Call::AllToAll { .. } => len / size * others,
        Call::Broadcast { root, .. } => {
            if *root == rank {
                0
            } else {
                len
            }
        }
        Call::Receive { .. } => len,
        Call::Send { .. } | Call::Barrier => 0,
    };
    (elements * dtype.bytes()) as u64
}
