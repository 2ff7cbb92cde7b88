//! Which samples a step takes: a function of seed and step alone; and which of them a rank takes.

use memwall_data::{DataError, Dataset, IGNORE};
use memwall_engine::MicroBatch;
use std::cell::RefCell;

/// A rank's place among those that share a step's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Its number.
    pub(crate) rank: usize,
    /// How many there are.
    pub(crate) ranks: usize,
}

impl Share {
    /// Of one that shares with nobody.
    pub(crate) const ALL: Share = Share { rank: 0, ranks: 1 };
}

/// Samples of a run in their order, and a rank's share of them.
pub(crate) struct Batches<'a> {
    data: &'a Dataset,
    global_batch: u64,
    micro_batch: usize,
    share: Share,
    /// The first sample that could not be read. The engine takes what it is given, so this is asked for afterwards.
    fault: RefCell<Option<DataError>>,
}

impl<'a> Batches<'a> {
    /// Samples of `data` in steps of `global_batch`, over all ranks, of which each computes `micro_batch` at a time.
    pub(crate) fn new(data: &'a Dataset, global_batch: usize, micro_batch: usize, share: Share) -> Self {
        Self { data, global_batch: global_batch as u64, micro_batch, share, fault: RefCell::new(None) }
    }

    /// Targets that count in the step that begins with sample `first`, over all ranks: read from the index, before any
    /// forward.
    pub(crate) fn valid(&self, first: u64) -> u64 {
        (first..first + self.global_batch).map(|sample| self.data.train_valid(sample)).sum()
    }

    /// Fills the rank's micro-batch number `micro` of the step that begins with sample `first`: ranks take the step's
    /// samples one behind the other.
    pub(crate) fn fill(&self, first: u64, micro: usize, b: &mut MicroBatch<'_>) {
        let own = self.global_batch / self.share.ranks as u64;
        let start = first + self.share.rank as u64 * own + (micro * self.micro_batch) as u64;
        self.each(b, start, |sample, tokens, targets, positions| {
            self.data.fill_train(sample, tokens, targets, positions)
        });
    }

    /// Micro-batches of an evaluation over all ranks, at most `limit`.
    pub(crate) fn evaluation_batches(&self, limit: Option<usize>) -> usize {
        let batches = self.data.validation_samples().div_ceil(self.micro_batch as u64);
        usize::try_from(batches).unwrap_or(usize::MAX).min(limit.unwrap_or(usize::MAX))
    }

    /// Micro-batches that each rank computes for an evaluation of `batches`: all as many, so that some of the last may have
    /// nothing that counts.
    pub(crate) fn evaluation_share(&self, batches: usize) -> usize {
        batches.div_ceil(self.share.ranks)
    }

    /// Targets that count in an evaluation over `batches` micro-batches, over all ranks.
    pub(crate) fn evaluation_valid(&self, batches: usize) -> u64 {
        (0..(batches * self.micro_batch) as u64).map(|sample| self.data.validation_valid(sample)).sum()
    }

    /// Fills the rank's micro-batch number `micro` of an evaluation of `batches`; what lies beyond these or beyond the data is
    /// ignored.
    pub(crate) fn fill_evaluation(&self, batches: usize, micro: usize, b: &mut MicroBatch<'_>) {
        let number = micro * self.share.ranks + self.share.rank;
        self.each(b, (number * self.micro_batch) as u64, |sample, tokens, targets, positions| {
            if number < batches && sample < self.data.validation_samples() {
                self.data.fill_validation(sample, tokens, targets, positions)
            } else {
                ignored(tokens, targets, positions);
                Ok(())
            }
        });
    }

    /// Fills the sequences of a micro-batch with the samples from `start` on.
    fn each(
        &self,
        b: &mut MicroBatch<'_>,
        start: u64,
        fill: impl Fn(u64, &mut [i32], &mut [i32], &mut [i32]) -> Result<(), DataError>,
    ) {
        let t = self.data.sequence_length();
        let sequences = b.tokens.chunks_mut(t).zip(b.targets.chunks_mut(t)).zip(b.positions.chunks_mut(t));
        for (((tokens, targets), positions), (sample, number)) in
            sequences.zip((start..).zip(b.samples.iter_mut()))
        {
            *number = sample;
            if let Err(e) = fill(sample, tokens, targets, positions) {
                ignored(tokens, targets, positions);
                self.fault.borrow_mut().get_or_insert(e);
            }
        }
    }

    /// Fails if a sample could not be read.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        self.fault.take().map_or(Ok(()), Err)
    }
}

/// A sequence in which nothing counts.
fn ignored(tokens: &mut [i32], targets: &mut [i32], positions: &mut [i32]) {
    tokens.fill(0);
    targets.fill(IGNORE);
    positions.iter_mut().zip(0..).for_each(|(position, number)| *position = number);
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwall_data::{Cut, Packing, Source, Tokenizer};
    use std::sync::Arc;

    const LENGTH: usize = 8;
    const MICRO_BATCH: usize = 2;

    fn dataset(folder: &std::path::Path) -> Dataset {
        std::fs::write(folder.join("text.txt"), "some text that is long enough to be cut. ".repeat(30))
            .unwrap();
        let source = Source { globs: vec!["*.txt".into()], base: folder.into(), field: "text".into() };
        let tokenizer = Tokenizer::load("bytes").unwrap();
        let prepared = source.prepare(&tokenizer, &folder.join("cache"), &mut |_| {}).unwrap();
        let cut = Cut { sequence_length: LENGTH, packing: Packing::Packed, validation: 0.2, seed: 3 };
        Dataset::new(vec![(Arc::new(prepared), 1.0)], None, cut).unwrap()
    }

    /// What `fill` writes to a micro-batch: sample numbers, tokens and targets.
    fn filled(fill: impl Fn(&mut MicroBatch<'_>)) -> (Vec<u64>, Vec<i32>, Vec<i32>) {
        let new = || vec![0; MICRO_BATCH * LENGTH];
        let (mut tokens, mut targets, mut positions, mut samples) =
            (new(), new(), new(), vec![0; MICRO_BATCH]);
        fill(&mut MicroBatch {
            tokens: &mut tokens,
            targets: &mut targets,
            positions: &mut positions,
            samples: &mut samples,
        });
        (samples, tokens, targets)
    }

    #[test]
    fn ranks_take_the_samples_of_one_device_once_each_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let data = dataset(folder.path());
        let (global, first) = (24, 48);
        let alone = Batches::new(&data, global, MICRO_BATCH, Share::ALL);
        let want: Vec<_> = (0..global / MICRO_BATCH).map(|m| filled(|b| alone.fill(first, m, b))).collect();
        for ranks in [1, 2, 3, 4, 6] {
            let micro_batches = global / MICRO_BATCH / ranks;
            let got: Vec<_> = (0..ranks)
                .flat_map(|rank| (0..micro_batches).map(move |m| (rank, m)))
                .map(|(rank, m)| {
                    let batches = Batches::new(&data, global, MICRO_BATCH, Share { rank, ranks });
                    assert_eq!(batches.valid(first), alone.valid(first));
                    filled(|b| batches.fill(first, m, b))
                })
                .collect();
            assert_eq!(got, want, "{ranks} ranks");
        }
    }

    #[test]
    fn an_evaluation_counts_the_same_targets_on_any_number_of_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let data = dataset(folder.path());
        let alone = Batches::new(&data, MICRO_BATCH, MICRO_BATCH, Share::ALL);
        for limit in [None, Some(5)] {
            let n = alone.evaluation_batches(limit);
            assert!(n > 4 && limit.is_none_or(|limit| n == limit), "{n}");
            for ranks in [1, 2, 3, 4, 7] {
                let mut counted: Vec<(u64, Vec<i32>)> = Vec::new();
                for rank in 0..ranks {
                    let batches =
                        Batches::new(&data, ranks * MICRO_BATCH, MICRO_BATCH, Share { rank, ranks });
                    assert_eq!(batches.evaluation_batches(limit), n);
                    for m in 0..batches.evaluation_share(n) {
                        let (samples, _, targets) = filled(|b| batches.fill_evaluation(n, m, b));
                        let rows = targets.chunks(LENGTH).map(<[i32]>::to_vec);
                        counted.extend(samples.into_iter().zip(rows));
                    }
                }
                counted.retain(|(_, targets)| targets.iter().any(|t| *t != IGNORE));
                counted.sort();
                let valid = counted.iter().flat_map(|(_, t)| t).filter(|t| **t != IGNORE).count() as u64;
                assert_eq!(valid, alone.evaluation_valid(n), "{ranks} ranks");
                assert!(counted.windows(2).all(|w| w[0].0 < w[1].0), "a sample is counted twice");
            }
        }
    }
}
