//! Which window is sample *i*: a permutation per epoch that needs no memory of earlier samples.

use crate::holdout::mix;

/// Rounds of the Feistel network. Four suffice for wide halves; domains of a few windows have halves of
/// one or two bits, and need more for all orders to be about equally likely.
const ROUNDS: u64 = 12;

/// The order in which windows become samples.
///
/// Sample numbers are global: step *k* of a run takes samples `k * global_batch .. (k + 1) *
/// global_batch`, however many workers share them. The window of a sample depends on the seed, the number
/// of windows and the sample number, and on nothing else; these numbers are part of the format of a
/// checkpoint, so the algorithm must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    seed: u64,
    windows: u64,
}

impl Order {
    /// An order over `windows` windows, at least 1.
    pub(crate) fn new(seed: u64, windows: u64) -> Order {
        debug_assert!(windows > 0);
        Order { seed, windows }
    }

    /// The epoch of a sample: how often every window was used before it.
    pub(crate) fn epoch(&self, sample: u64) -> u64 {
        sample / self.windows
    }

    /// The window, below the number of windows, of the sample with this global number. Within an
    /// epoch no window repeats.
    pub(crate) fn window(&self, sample: u64) -> u64 {
        permuted(sample % self.windows, self.windows, mix(mix(self.seed) ^ self.epoch(sample)))
    }
}

/// Where a permutation of the integers below `count` takes one of them; the key says which permutation.
pub(crate) fn permuted(value: u64, count: u64, key: u64) -> u64 {
    let half_bits = half_bits(count);
    // Cycle walking: the network permutes a power of four that may exceed the count. Following its cycle until it is
    // back below that permutes just the integers below it, and the walk ends since the cycle contains the start. The
    // domain is below 4 * count, so it is short.
    let mut value = value;
    loop {
        value = feistel(value, half_bits, key);
        if value < count {
            return value;
        }
    }
}

/// Bits of each half of the smallest even-width domain that contains `windows` values.
fn half_bits(windows: u64) -> u32 {
    let bits = u64::BITS - (windows - 1).leading_zeros();
    bits.div_ceil(2).max(1)
}

/// A permutation of the integers below `4^half_bits`.
fn feistel(value: u64, half_bits: u32, key: u64) -> u64 {
    let mask = (1 << half_bits) - 1;
    let (mut left, mut right) = (value >> half_bits, value & mask);
    for round in 0..ROUNDS {
        let scrambled = mix(mix(key.wrapping_add(round)) ^ right) & mask;
        (left, right) = (right, left ^ scrambled);
    }
    left << half_bits | right
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn epoch(seed: u64, windows: u64, epoch: u64) -> Vec<u64> {
        let order = Order::new(seed, windows);
        (0..windows).map(|i| order.window(epoch * windows + i)).collect()
    }

    fn assert_permutation(order: &[u64]) {
        let mut seen = vec![false; order.len()];
        for &window in order {
            assert!(!std::mem::replace(&mut seen[window as usize], true), "window {window} repeats");
        }
    }

    #[test]
    fn every_small_number_of_windows_is_permuted() {
        for windows in 1..=130 {
            for number in 0..3 {
                assert_permutation(&epoch(7, windows, number));
            }
        }
    }

    #[test]
    fn powers_of_two_and_their_neighbours_are_permuted() {
        for windows in [255, 256, 257, 1023, 1024, 1025, 65_535, 65_536, 65_537, 300_007] {
            assert_permutation(&epoch(1, windows, 2));
        }
    }

    #[test]
    fn the_largest_domain_does_not_overflow() {
        let order = Order::new(3, u64::MAX);
        assert_ne!(order.window(0), order.window(1));
        assert!(order.window(u64::MAX - 1) < u64::MAX);
        assert_eq!(order.epoch(u64::MAX), 1);
        assert_eq!(Order::new(3, 1).window(u64::MAX), 0);
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let first = epoch(0, 1000, 0);
        for other in [epoch(0, 1000, 1), epoch(1, 1000, 0), (0..1000).collect()] {
            let agreeing = first.iter().zip(&other).filter(|(a, b)| a == b).count();
            // Two unrelated permutations agree in one place on average.
            assert!(agreeing < 10, "{agreeing} places agree");
        }
        assert_ne!(epoch(0, 1000, 1), epoch(1, 1000, 0));
    }

    #[test]
    fn all_orders_of_few_windows_are_about_equally_likely() {
        let (windows, epochs) = (4, 24_000);
        let mut counts = HashMap::new();
        for number in 0..epochs {
            *counts.entry(epoch(11, windows, number)).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        // 1000 expected with a standard deviation of 31.
        assert!(counts.values().all(|count| (850..=1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn each_window_is_about_equally_likely_at_each_place() {
        let (windows, epochs) = (10, 10_000);
        let mut counts = [[0_u32; 10]; 10];
        for number in 0..epochs {
            for (place, window) in epoch(5, windows, number).into_iter().enumerate() {
                counts[place][window as usize] += 1;
            }
        }
        // 1000 expected with a standard deviation of 30.
        assert!(counts.iter().flatten().all(|count| (850..=1150).contains(count)), "{counts:?}");
    }

    /// Resuming needs the order of the version that wrote the checkpoint. The numbers are from an
    /// independent implementation in Python.
    #[test]
    fn the_order_never_changes() {
        assert_eq!(epoch(42, 8, 0), [5, 6, 1, 4, 2, 0, 7, 3]);
        assert_eq!(epoch(42, 8, 1), [4, 6, 7, 2, 3, 5, 0, 1]);
        assert_eq!(Order::new(42, 1_000_003).window(123_456_789), 675_521);
    }

    proptest! {
        #[test]
        fn any_epoch_is_a_permutation(seed: u64, windows in 1_u64..3000, number in 0_u64..1 << 40) {
            assert_permutation(&epoch(seed, windows, number));
        }

        #[test]
        fn large_domains_stay_in_range_without_repeats(seed: u64, windows in 1_u64 << 33.., start: u64) {
            let order = Order::new(seed, windows);
            let start = start % (windows - 1000);
            let mut sampled: Vec<u64> = (start..start + 1000).map(|i| order.window(i)).collect();
            prop_assert!(sampled.iter().all(|&window| window < windows));
            sampled.sort_unstable();
            sampled.dedup();
            prop_assert_eq!(sampled.len(), 1000);
        }
    }
}
