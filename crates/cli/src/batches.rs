//! Which samples a step takes: a function of seed and step alone.

use memwall_data::{DataError, Dataset, IGNORE};
use memwall_engine::MicroBatch;
use std::cell::RefCell;

/// Samples of a run in their order.
pub(crate) struct Batches<'a> {
    data: &'a Dataset,
    global_batch: u64,
    micro_batch: usize,
    /// The first sample that could not be read. The engine takes what it is given, so this is asked for afterwards.
    fault: RefCell<Option<DataError>>,
}

impl<'a> Batches<'a> {
    /// Samples of `data` in steps of `global_batch`, `micro_batch` at a time.
    pub(crate) fn new(data: &'a Dataset, global_batch: usize, micro_batch: usize) -> Self {
        Self { data, global_batch: global_batch as u64, micro_batch, fault: RefCell::new(None) }
    }

    /// Targets that count in the step that begins with sample `first`: read from the index, before any forward.
    pub(crate) fn valid(&self, first: u64) -> u64 {
        (first..first + self.global_batch).map(|sample| self.data.train_valid(sample)).sum()
    }

    /// Fills one micro-batch of the step that begins with sample `first`.
    pub(crate) fn fill(&self, first: u64, micro: usize, b: &mut MicroBatch<'_>) {
        let start = first + (micro * self.micro_batch) as u64;
        self.each(b, start, |sample, tokens, targets, positions| {
            self.data.fill_train(sample, tokens, targets, positions)
        });
    }

    /// Micro-batches of an evaluation, at most `limit`.
    pub(crate) fn evaluation_batches(&self, limit: Option<usize>) -> usize {
        let batches = self.data.validation_samples().div_ceil(self.micro_batch as u64);
        usize::try_from(batches).unwrap_or(usize::MAX).min(limit.unwrap_or(usize::MAX))
    }

    /// Targets that count in an evaluation over `batches` micro-batches.
    pub(crate) fn evaluation_valid(&self, batches: usize) -> u64 {
        (0..(batches * self.micro_batch) as u64).map(|sample| self.data.validation_valid(sample)).sum()
    }

    /// Fills one micro-batch of an evaluation; what lies beyond the data is ignored.
    pub(crate) fn fill_evaluation(&self, micro: usize, b: &mut MicroBatch<'_>) {
        self.each(b, (micro * self.micro_batch) as u64, |sample, tokens, targets, positions| {
            if sample < self.data.validation_samples() {
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
