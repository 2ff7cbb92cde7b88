//! What a rank publishes of a collective, for the others to compare and to read.

use super::board::Entry;
use crate::{Call, Collective};
use memwall_tensor::{Cpu, DType, Tensor};
use std::sync::atomic::Ordering;

/// No buffer.
pub(super) const NONE: u64 = u64::MAX;

/// What a rank publishes of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Said {
    /// Operation, type of elements, and root or peer: what all ranks must agree on, with `len`.
    pub(super) kind: u64,
    pub(super) len: u64,
    /// Offset of the whole, or of the only buffer, in the rank's arena.
    pub(super) whole: u64,
    /// Offset of the part.
    pub(super) part: u64,
}

impl Said {
    pub(super) fn of(device: &Cpu, call: &Call<Cpu>) -> Self {
        let (len, dtype) = call.size();
        let offset = |t: &Tensor<Cpu>| device.shared_offset(t.view().slice).unwrap_or(NONE);
        let (whole, part) = match call {
            Call::AllReduce(b) | Call::Broadcast { buffer: b, .. } | Call::Send { buffer: b, .. } => {
                (offset(b), NONE)
            }
            Call::AllGather { whole, part } => (offset(whole), part.as_ref().map_or(NONE, offset)),
            Call::ReduceScatter { whole, .. } => (offset(whole), NONE),
            Call::AllToAll { from, .. } => (offset(from), NONE),
            Call::Receive { .. } | Call::Barrier => (NONE, NONE),
        };
        let peer = match call {
            Call::Broadcast { root, .. } => *root as u64 + 1,
            _ => 0,
        };
        let kind = (call.collective() as u64) << 48 | (dtype as u64) << 40 | peer;
        Self { kind, len: len as u64, whole, part }
    }

    pub(super) fn write(self, entry: &Entry, number: u64) {
        for (word, value) in entry.what.iter().zip([self.kind, self.len, self.whole, self.part]) {
            word.store(value, Ordering::Relaxed);
        }
        entry.published.store(number + 1, Ordering::SeqCst);
    }

    pub(super) fn read(entry: &Entry) -> Self {
        let [kind, len, whole, part] = [0, 1, 2, 3].map(|i| entry.what[i].load(Ordering::Relaxed));
        Self { kind, len, whole, part }
    }

    /// As errors show it.
    pub(super) fn text(self) -> String {
        let collective = Collective::ALL.get((self.kind >> 48) as usize).map_or("nothing", |c| c.name());
        let dtype = [DType::F32, DType::BF16, DType::I32, DType::I64, DType::U8]
            .into_iter()
            .find(|d| *d as u64 == self.kind >> 40 & 0xff);
        let root = match self.kind & 0xffff {
            0 => String::new(),
            root => format!(" from rank {}", root - 1),
        };
        format!("{collective} of {} elements of {:?}{root}", self.len, dtype.unwrap_or(DType::I64))
    }
}
