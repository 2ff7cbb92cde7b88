//! Documents packed in one sequence do not see each other.

use super::common::{Batch, Job, cases, families, gradients, near, settings};
use memwall_engine::{MicroBatch, Precision, Settings};
use memwall_tensor::math;
use proptest::prelude::*;

/// Documents of these lengths in one sequence, and each by itself in a sequence of the same length behind which only
/// padding follows.
fn packed_and_separate(lengths: &[usize], vocabulary: usize, seed: u64) -> (Batch, Batch) {
    let total: usize = lengths.iter().sum();
    let key = math::stream_key(seed, "documents");
    let draw = |i: usize| (math::random_u64(key, i as u64) % vocabulary as u64) as i32;
    let (tokens, targets): (Vec<i32>, Vec<i32>) = (0..total).map(|i| (draw(i), draw(total + i))).unzip();
    let mut packed = Batch::new(total, &tokens, &targets);
    let (mut apart, mut apart_targets) = (Vec::new(), Vec::new());
    let mut start = 0;
    for (document, &n) in lengths.iter().enumerate() {
        (0..n).for_each(|i| packed.positions[start + i] = i as i32);
        let padding = (n..total).map(|i| draw(2 * total + document * total + i));
        apart.extend(tokens[start..start + n].iter().copied().chain(padding));
        apart_targets.extend(targets[start..start + n].iter().copied().chain((n..total).map(|_| -1)));
        start += n;
    }
    (packed, Batch::new(total, &apart, &apart_targets))
}

/// Loss and gradients of a step over one micro-batch of all sequences.
fn step(job: &Job, batch: &Batch) -> (f64, Vec<Vec<f32>>) {
    let mut rank = job
        .with(|s| (s.micro_batch, s.micro_batches, s.sequence) = (batch.samples.len(), 1, batch.length))
        .uneven_on_cpu();
    let loss = batch.step(&mut rank).unwrap().loss;
    (loss, gradients(&rank))
}

proptest! {
    #![proptest_config(cases(6))]

    /// functionary issue 265: documents saw each other. Borders fall on, before and after those of a tile of attention
    /// (64 keys, 64 queries).
    #[test]
    fn functionary_265_packed_loss_and_gradients_are_the_sums_of_the_separate_ones(
        (model, deterministic) in (prop::sample::select(families()), any::<bool>()),
        first in prop_oneof![1usize..40, 62usize..=66],
        others in prop::collection::vec(prop_oneof![1usize..40, 60usize..70], 1..4),
        seed: u64,
    ) {
        let lengths = [vec![first], others].concat();
        let job = Job::new(model, Settings { deterministic, ..settings() });
        let job = Job { model: super::common::Model { positions: 300, ..job.model }, ..job };
        let (packed, separate) = packed_and_separate(&lengths, job.model.vocabulary, seed);
        let ((loss, g), (want, separate)) = (step(&job, &packed), step(&job, &separate));
        prop_assert!((loss / want - 1.0).abs() < 1e-6, "{loss} for {want} in {lengths:?}");
        near(&g, &separate).map_err(|e| TestCaseError::fail(format!("{e} in {lengths:?}")))?;
    }
}

#[test]
fn one_document_in_place_of_several_is_told_apart() {
    for model in families() {
        for precision in [Precision::F32, Precision::Bf16] {
            let job = Job::new(model, Settings { precision, ..settings() });
            let (packed, _) = packed_and_separate(&[7, 9], job.model.vocabulary, 3);
            let whole = Batch::new(16, &packed.tokens, &packed.targets);
            let (a, b) = (step(&job, &packed).0, step(&job, &whole).0);
            assert!((a / b - 1.0).abs() > 1e-3, "{a} and {b} would pass for each other in {model:?}");
        }
    }
}

#[test]
fn a_later_document_changes_no_bit_of_what_comes_before_it() {
    for model in families() {
        let job = Job::new(model, Settings { precision: Precision::Bf16, ..settings() });
        let (mut packed, _) = packed_and_separate(&[65, 70], job.model.vocabulary, 3);
        // Targets of the first document alone: the second must not matter, nor get a gradient.
        packed.targets[65..].fill(-1);
        let want = step(&job, &packed);
        packed.tokens[65..].iter_mut().for_each(|t| *t = (*t + 1) % job.model.vocabulary as i32);
        assert!(step(&job, &packed) == want, "{model:?}");
        packed.targets[..65].fill(-1);
        packed.targets[65..].fill(1);
        let want = step(&job, &packed);
        packed.tokens[..65].iter_mut().for_each(|t| *t = (*t + 1) % job.model.vocabulary as i32);
        assert!(step(&job, &packed) == want, "an earlier document matters in {model:?}");
    }
}

#[test]
fn positions_that_a_loader_leaves_alone_are_those_of_one_document() {
    let job = Job::new(families()[0], Settings { micro_batch: 1, micro_batches: 2, ..settings() });
    let (packed, _) = packed_and_separate(&[7, 9], job.model.vocabulary, 3);
    let whole = Batch::new(16, &packed.tokens, &packed.targets);
    let mut load = |micro: usize, b: &mut MicroBatch<'_>| {
        b.tokens.copy_from_slice(&packed.tokens);
        b.targets.copy_from_slice(&packed.targets);
        if micro == 0 {
            b.positions.copy_from_slice(&packed.positions);
        }
    };
    let loss = job.on_cpu().step(&mut load, 2 * packed.valid()).unwrap().loss;
    let job = job.with(|s| s.micro_batches = 1);
    let mean = [packed, whole].map(|b| b.evaluate(&mut job.on_cpu()).unwrap() / 2.0).iter().sum::<f64>();
    assert!((loss / mean - 1.0).abs() < 1e-6, "{loss} for {mean}");
}
