//! The sequences of a step: tokens, targets, positions and sample numbers.

use memwall_engine::{EngineError, MicroBatch, Rank, StepReport};
use memwall_tensor::device::Device;
use memwall_tensor::math;

/// The sequences of a step, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Tokens in each sequence.
    pub length: usize,
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
    pub positions: Vec<i32>,
    /// One number a sequence.
    pub samples: Vec<u64>,
}

impl Batch {
    /// Sequences of one document each.
    pub fn new(length: usize, tokens: &[i32], targets: &[i32]) -> Self {
        let n = tokens.len();
        Self {
            length,
            tokens: tokens.to_vec(),
            targets: targets.to_vec(),
            positions: (0..n).map(|i| (i % length) as i32).collect(),
            samples: (0..(n / length) as u64).collect(),
        }
    }

    /// Random tokens and targets. A share of each sequence that grows with its number is padding, whose targets do
    /// not count, and some others do not count either; each sequence's first target does. When `packed`, documents
    /// begin at random places, and what would come after a document's last token does not count.
    pub fn random(
        sequences: usize,
        length: usize,
        vocabulary: usize,
        packed: bool,
        index: u64,
        seed: u64,
    ) -> Self {
        let key = math::stream_key(seed ^ index, "batch");
        let draw = |i: usize, below: usize| (math::random_u64(key, i as u64) % below as u64) as i32;
        let n = sequences * length;
        let tokens: Vec<i32> = (0..n).map(|i| draw(i, vocabulary)).collect();
        let targets: Vec<i32> = (0..n).map(|i| draw(n + i, vocabulary)).collect();
        let mut batch = Self::new(length, &tokens, &targets);
        batch.samples.iter_mut().for_each(|s| *s = s.wrapping_add(index.wrapping_mul(sequences as u64)));
        for i in 0..n {
            let (row, at) = (i / length, i % length);
            if at == 0 {
                continue;
            }
            if packed {
                let begins = draw(2 * n + i, 8) == 0;
                batch.positions[i] = if begins { 0 } else { batch.positions[i - 1] + 1 };
                if begins && at > 1 {
                    batch.targets[i - 1] = -1;
                }
            }
            let end = length - length * row / (sequences + 1);
            if at >= end || draw(3 * n + i, 10) == 0 {
                batch.targets[i] = -1;
            }
        }
        batch
    }

    /// Targets that count.
    pub fn valid(&self) -> u64 {
        self.targets.iter().filter(|t| **t >= 0).count() as u64
    }

    /// Part `index` of `parts` even ones.
    pub fn part(&self, index: usize, parts: usize) -> Self {
        fn cut<T: Clone>(v: &[T], index: usize, parts: usize) -> Vec<T> {
            let n = v.len() / parts;
            v[index * n..(index + 1) * n].to_vec()
        }
        Self {
            length: self.length,
            tokens: cut(&self.tokens, index, parts),
            targets: cut(&self.targets, index, parts),
            positions: cut(&self.positions, index, parts),
            samples: cut(&self.samples, index, parts),
        }
    }

    /// The parts in another order.
    pub fn permuted(&self, order: &[usize]) -> Self {
        let parts: Vec<_> = order.iter().map(|&i| self.part(i, order.len())).collect();
        Self {
            length: self.length,
            tokens: parts.iter().flat_map(|p| p.tokens.clone()).collect(),
            targets: parts.iter().flat_map(|p| p.targets.clone()).collect(),
            positions: parts.iter().flat_map(|p| p.positions.clone()).collect(),
            samples: parts.iter().flat_map(|p| p.samples.clone()).collect(),
        }
    }

    /// Fills micro-batches one after the other, from number `first` on.
    fn load(&self, first: usize) -> impl FnMut(usize, &mut MicroBatch<'_>) {
        move |micro, b| {
            let micro = first + micro;
            let (n, rows) = (b.tokens.len(), b.samples.len());
            b.tokens.copy_from_slice(&self.tokens[micro * n..(micro + 1) * n]);
            b.targets.copy_from_slice(&self.targets[micro * n..(micro + 1) * n]);
            b.positions.copy_from_slice(&self.positions[micro * n..(micro + 1) * n]);
            b.samples.copy_from_slice(&self.samples[micro * rows..(micro + 1) * rows]);
        }
    }

    /// One step.
    pub fn step<D: Device>(&self, rank: &mut Rank<D>) -> Result<StepReport, EngineError> {
        rank.step(&mut self.load(0), self.valid())
    }

    /// The loss of it, with nothing changed.
    pub fn evaluate<D: Device>(&self, rank: &mut Rank<D>) -> Result<f64, EngineError> {
        let batches = self.tokens.len() / rank.settings().micro_tokens();
        rank.evaluate(batches, &mut self.load(0), self.valid())
    }

    /// This rank's part of a step over all of it.
    pub fn step_of<D: Device>(&self, rank: &mut Rank<D>) -> Result<StepReport, EngineError> {
        let first = rank.groups().data.rank() * rank.settings().micro_batches;
        rank.step(&mut self.load(first), self.valid())
    }

    /// This rank's part of the loss of all of it.
    pub fn evaluate_of<D: Device>(&self, rank: &mut Rank<D>) -> Result<f64, EngineError> {
        let (data, micro) = (rank.groups().data.rank(), rank.settings().micro_batches);
        rank.evaluate(micro, &mut self.load(data * micro), self.valid())
    }
}
