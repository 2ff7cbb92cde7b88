//! Which samples a step takes: a function of seed and step alone.

use memwall_data::{Dataset, IGNORE, Order};
use memwall_engine::MicroBatch;

/// Samples of a run in their order.
pub(crate) struct Batches<'a> {
    data: &'a Dataset,
    order: Order,
    global_batch: u64,
    micro_batch: usize,
}

impl<'a> Batches<'a> {
    /// Samples of `data` in the order that `seed` gives.
    pub(crate) fn new(data: &'a Dataset, seed: u64, global_batch: usize, micro_batch: usize) -> Self {
        Self { data, order: data.order(seed), global_batch: global_batch as u64, micro_batch }
    }

    /// The window of sample `sample` of the whole run.
    fn window(&self, sample: u64) -> usize {
        self.order.window(sample) as usize
    }

    /// Targets that count in the step that begins with sample `first`: read from the index, before any forward.
    pub(crate) fn valid(&self, first: u64) -> u64 {
        (first..first + self.global_batch).map(|s| self.data.train_valid_targets(self.window(s)) as u64).sum()
    }

    /// Fills one micro-batch of the step that begins with sample `first`.
    pub(crate) fn fill(&self, first: u64, micro: usize, b: &mut MicroBatch<'_>) {
        let start = first + (micro * self.micro_batch) as u64;
        let t = self.data.sequence_length();
        for (i, (tokens, targets)) in b.tokens.chunks_mut(t).zip(b.targets.chunks_mut(t)).enumerate() {
            b.samples[i] = start + i as u64;
            self.data.fill_train(self.window(start + i as u64), tokens, targets);
        }
    }

    /// Micro-batches of an evaluation, at most `limit`.
    pub(crate) fn evaluation_batches(&self, limit: Option<usize>) -> usize {
        self.data.validation_windows().div_ceil(self.micro_batch).min(limit.unwrap_or(usize::MAX))
    }

    /// Targets that count in an evaluation over `batches` micro-batches.
    pub(crate) fn evaluation_valid(&self, batches: usize) -> u64 {
        let windows = (batches * self.micro_batch).min(self.data.validation_windows());
        (0..windows).map(|w| self.data.validation_valid_targets(w) as u64).sum()
    }

    /// Fills one micro-batch of an evaluation; what lies beyond the data is ignored.
    pub(crate) fn fill_evaluation(&self, micro: usize, b: &mut MicroBatch<'_>) {
        let t = self.data.sequence_length();
        for (i, (tokens, targets)) in b.tokens.chunks_mut(t).zip(b.targets.chunks_mut(t)).enumerate() {
            let window = micro * self.micro_batch + i;
            if window < self.data.validation_windows() {
                self.data.fill_validation(window, tokens, targets);
            } else {
                tokens.fill(0);
                targets.fill(IGNORE);
            }
        }
    }
}
