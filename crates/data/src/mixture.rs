//! Which source sample *n* of a run comes from, and which of that source's samples it is: a function of seed and *n*
//! alone.

use crate::{
    DataError,
    holdout::mix,
    order::{Order, permuted},
};

/// Samples that are shared out at a time. In each block a source has its exact share, rounded to whole samples; a
/// share is so off by at most one part in 4096.
const BLOCK: u64 = 4096;

/// Sources that are mixed by weight.
#[derive(Debug, Clone)]
pub(crate) struct Mixture {
    seed: u64,
    /// For each source the first of its places in a block, then the end of the block.
    firsts: Vec<u64>,
    orders: Vec<Order>,
}

/// A sample of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Number of the source, from 0.
    pub source: usize,
    /// Which of the source's samples it is.
    pub sample: u64,
    /// How often all of the source's samples were taken before.
    pub epoch: u64,
}

impl Mixture {
    /// Mixes sources of so many samples (at least 1) with these weights (above 0, finite).
    ///
    /// # Errors
    ///
    /// [`DataError::Weight`] for a weight so small that the source would never be taken.
    pub(crate) fn new(seed: u64, samples: &[u64], weights: &[f64]) -> Result<Mixture, DataError> {
        let sum: f64 = weights.iter().sum();
        let counts = shares(weights);
        if let Some(source) = counts.iter().position(|&count| count == 0) {
            let weight = weights[source];
            return Err(DataError::Weight { source_number: source, weight, sum, block: BLOCK });
        }
        let mut firsts = vec![0];
        for count in counts {
            firsts.push(firsts[firsts.len() - 1] + count);
        }
        // The first source has the run's own seed, so that one source alone is ordered as if there were no mixture.
        let seed_of = |source: u64| if source == 0 { seed } else { mix(mix(seed) ^ source) };
        let orders = samples.iter().zip(0..).map(|(&samples, source)| Order::new(seed_of(source), samples));
        Ok(Mixture { seed, firsts, orders: orders.collect() })
    }

    /// The sample with this number of the whole run.
    pub(crate) fn pick(&self, number: u64) -> Pick {
        let (source, local) = self.place(number);
        let order = &self.orders[source];
        Pick { source, sample: order.window(local), epoch: order.epoch(local) }
    }

    /// The source of a sample, and its number among the samples of that source.
    fn place(&self, number: u64) -> (usize, u64) {
        if self.orders.len() == 1 {
            return (0, number);
        }
        let (block, place) = (number / BLOCK, number % BLOCK);
        // Another key than that of any order within a source.
        let place = permuted(place, BLOCK, mix(mix(self.seed ^ MIXTURE) ^ block));
        let source = self.firsts.partition_point(|&first| first <= place) - 1;
        let (first, end) = (self.firsts[source], self.firsts[source + 1]);
        (source, block * (end - first) + place - first)
    }
}

/// Sets the order of a mixture apart from that of its sources.
const MIXTURE: u64 = 0x6d69_7874_7572_6573;

/// The places of a block that each weight gets: its share rounded down, and one of what is left to those that lost
/// most by it (largest remainder), the first of equals first.
fn shares(weights: &[f64]) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * BLOCK as f64).collect();
    let mut counts: Vec<u64> = exact.iter().map(|share| share.floor() as u64).collect();
    let mut by_loss: Vec<usize> = (0..weights.len()).collect();
    by_loss.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = BLOCK.saturating_sub(counts.iter().sum());
    for &source in by_loss.iter().cycle().take(left as usize) {
        counts[source] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_source_is_in_its_own_order() {
        let mixture = Mixture::new(42, &[8], &[0.1]).unwrap();
        let order = Order::new(42, 8);
        for number in 0..40 {
            let expected = Pick { source: 0, sample: order.window(number), epoch: number / 8 };
            assert_eq!(mixture.pick(number), expected);
        }
    }

    #[test]
    fn every_block_has_the_shares_of_the_weights() {
        let mixture = Mixture::new(1, &[1000, 10, 77], &[3.0, 1.0, 0.5]).unwrap();
        // By hand: 4096 x (3, 1, 0.5) / 4.5 = 2730.67, 910.22, 455.11; the one that is left goes to the first.
        for block in [0, 1, 12_345] {
            let mut counts = [0; 3];
            for number in block * BLOCK..(block + 1) * BLOCK {
                counts[mixture.pick(number).source] += 1;
            }
            assert_eq!(counts, [2731, 910, 455]);
        }
    }

    #[test]
    fn sources_alternate_within_a_block() {
        let mixture = Mixture::new(7, &[50, 50], &[1.0, 1.0]).unwrap();
        let first: usize = (0..100).map(|number| mixture.pick(number).source).sum();
        // 50 expected with a standard deviation of 5.
        assert!((25..=75).contains(&first), "{first} of 100 from the second source");
    }

    #[test]
    fn a_weight_without_a_sample_is_refused() {
        let error = Mixture::new(0, &[5, 5], &[1.0, 1e-5]).unwrap_err();
        assert!(error.to_string().contains("source 1 of the mixture has the weight 0.00001"), "{error}");
    }

    proptest! {
        #[test]
        fn each_source_runs_through_its_own_epochs(
            seed: u64,
            sources in prop::collection::vec((1_u64..60, 0.05_f64..10.0), 1..5),
        ) {
            let (samples, weights): (Vec<u64>, Vec<f64>) = sources.into_iter().unzip();
            let mixture = Mixture::new(seed, &samples, &weights).unwrap();
            let mut taken: HashMap<(usize, u64), Vec<u64>> = HashMap::new();
            for number in 0..3 * BLOCK {
                let Pick { source, sample, epoch } = mixture.pick(number);
                taken.entry((source, epoch)).or_default().push(sample);
            }
            for ((source, epoch), mut seen) in taken.clone() {
                seen.sort_unstable();
                let whole = taken.contains_key(&(source, epoch + 1));
                let count = seen.len();
                seen.dedup();
                prop_assert_eq!(seen.len(), count, "a sample repeats within an epoch");
                prop_assert!(!whole || count as u64 == samples[source], "an epoch lacks a sample");
            }
        }

        #[test]
        fn shares_are_exact_to_one_sample(weights in prop::collection::vec(0.001_f64..1000.0, 1..9)) {
            let counts = shares(&weights);
            let sum: f64 = weights.iter().sum();
            prop_assert_eq!(counts.iter().sum::<u64>(), BLOCK);
            for (weight, count) in weights.iter().zip(counts) {
                prop_assert!((count as f64 - weight / sum * BLOCK as f64).abs() <= 1.0);
            }
        }
    }
}
