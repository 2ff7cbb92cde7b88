//! The arena's bookkeeping: which offset an allocation gets. Pure code that all devices share, so that the
//! bytes a run reserves, holes included, are predicted by running the same code without memory.

/// Offsets in one region of `capacity` bytes. First fit by address: the lowest hole that is large enough.
#[derive(Debug, Clone)]
pub struct Arena {
    capacity: u64,
    high_water: u64,
    /// Offset and length of each hole, ascending; neighbours are always merged. Holes are few: a dozen in a step of any
    /// model, so that a list beats a tree.
    holes: Vec<(u64, u64)>,
}

impl Arena {
    /// Every block starts on, and fills, whole cache lines.
    pub const ALIGN: u64 = 64;

    /// An empty region.
    pub fn new(capacity: u64) -> Self {
        let capacity = capacity / Self::ALIGN * Self::ALIGN;
        Self { capacity, high_water: 0, holes: vec![(0, capacity)] }
    }

    /// Bytes that a request takes: whole cache lines, at least one.
    pub fn rounded(bytes: u64) -> u64 {
        bytes.max(1).div_ceil(Self::ALIGN).saturating_mul(Self::ALIGN)
    }

    /// Takes `bytes` (rounded up), or `None` when no hole is large enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let need = Self::rounded(bytes);
        let at = self.holes.iter().position(|&(_, len)| len >= need)?;
        let (offset, len) = self.holes[at];
        if len > need {
            self.holes[at] = (offset + need, len - need);
        } else {
            self.holes.remove(at);
        }
        self.high_water = self.high_water.max(offset + need);
        Some(offset)
    }

    /// Gives a block back. `bytes` is what was asked of [`Arena::take`].
    pub fn give_back(&mut self, offset: u64, bytes: u64) {
        let (end, len) = (offset + Self::rounded(bytes), Self::rounded(bytes));
        // The first hole behind the block.
        let at = self.holes.partition_point(|&(hole, _)| hole < offset);
        let touches_before = at > 0 && {
            let (hole, len) = self.holes[at - 1];
            debug_assert!(hole + len <= offset, "block given back twice");
            hole + len == offset
        };
        let touches_after = self.holes.get(at).is_some_and(|&(hole, _)| hole == end);
        match (touches_before, touches_after) {
            (false, false) => self.holes.insert(at, (offset, len)),
            (true, false) => self.holes[at - 1].1 += len,
            (false, true) => self.holes[at] = (offset, len + self.holes[at].1),
            (true, true) => self.holes[at - 1].1 += len + self.holes.remove(at).1,
        }
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
        self.holes.iter().map(|&(_, len)| len).max().unwrap_or(0)
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
