//! The arena's bookkeeping: which offset an allocation gets. Pure code that all devices share, so that the
//! bytes a run reserves, holes included, are predicted by running the same code without memory.

use std::collections::BTreeMap;

/// Offsets in one region of `capacity` bytes. First fit by address: the lowest hole that is large enough.
#[derive(Debug, Clone)]
pub struct Arena {
    capacity: u64,
    high_water: u64,
    /// Offset to length of each hole; neighbours are always merged.
    holes: BTreeMap<u64, u64>,
}

impl Arena {
    /// Every block starts on, and fills, whole cache lines.
    pub const ALIGN: u64 = 64;

    /// An empty region.
    pub fn new(capacity: u64) -> Self {
        let capacity = capacity / Self::ALIGN * Self::ALIGN;
        Self { capacity, high_water: 0, holes: BTreeMap::from([(0, capacity)]) }
    }

    /// Bytes that a request takes: whole cache lines, at least one.
    pub fn rounded(bytes: u64) -> u64 {
        bytes.max(1).div_ceil(Self::ALIGN).saturating_mul(Self::ALIGN)
    }

    /// Takes `bytes` (rounded up), or `None` when no hole is large enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let need = Self::rounded(bytes);
        let (&offset, &len) = self.holes.iter().find(|&(_, &len)| len >= need)?;
        self.holes.remove(&offset);
        if len > need {
            self.holes.insert(offset + need, len - need);
        }
        self.high_water = self.high_water.max(offset + need);
        Some(offset)
    }

    /// Gives a block back. `bytes` is what was asked of [`Arena::take`].
    pub fn give_back(&mut self, offset: u64, bytes: u64) {
        let (mut start, mut len) = (offset, Self::rounded(bytes));
        if let Some((&before, &before_len)) = self.holes.range(..start).next_back() {
            debug_assert!(before + before_len <= start, "block given back twice");
            if before + before_len == start {
                self.holes.remove(&before);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some(after_len) = self.holes.remove(&(start + len)) {
            len += after_len;
        }
        self.holes.insert(start, len);
    }

    /// Bytes from the start of the region to the end of the highest block that ever lived: what the
    /// region must reserve.
    pub fn high_water(&self) -> u64 {
        self.high_water
    }

    /// Size of the region.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The largest block that would fit now.
    pub fn largest_hole(&self) -> u64 {
        self.holes.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn live_blocks_never_overlap_and_all_holes_come_back(
            steps in prop::collection::vec((any::<bool>(), 0u64..5000, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut arena = Arena::new(1 << 17);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (take, bytes, which) in steps {
                if take || live.is_empty() {
                    if let Some(at) = arena.take(bytes) {
                        let end = at + Arena::rounded(bytes);
                        prop_assert!(at % Arena::ALIGN == 0 && end <= arena.high_water());
                        for &(o, b) in &live {
                            prop_assert!(end <= o || o + Arena::rounded(b) <= at);
                        }
                        live.push((at, bytes));
                    }
                } else {
                    let (o, b) = live.swap_remove(which.index(live.len()));
                    arena.give_back(o, b);
                }
            }
            for (o, b) in live { arena.give_back(o, b); }
            prop_assert_eq!(arena.largest_hole(), arena.capacity());
        }
    }

    #[test]
    fn a_request_that_fits_no_hole_is_refused_without_a_trace() {
        let mut a = Arena::new(256);
        assert_eq!(a.take(300), None);
        assert_eq!(a.take(u64::MAX), None);
        assert_eq!(a.take(256), Some(0));
        assert_eq!(a.take(1), None);
    }
}
