//! Micro-batches change the cost of a step, not its result.

use super::common::{Job, Model, cases, gradients, jobs, near, settings};
use memwall_engine::{Precision, Settings};
use proptest::prelude::*;

/// Largest relative distance of losses that are sums of the same f32 numbers in another order.
const LOSS: f64 = 1e-6;

/// The whole batch's rows, in `micro_batches` parts of `micro_batch`.
fn cut(job: &Job, micro_batch: usize, micro_batches: usize) -> Job {
    job.with(|s| (s.micro_batch, s.micro_batches) = (micro_batch, micro_batches))
}

proptest! {
    #![proptest_config(cases(10))]

    /// Hugging Face pull request 34191, torchtune pull request 1875: the mean of micro-batches' means weighs the
    /// tokens of a micro-batch with much padding more than others. Rows end in padding of different lengths, and
    /// drop out by their sample's number.
    #[test]
    fn hf_pr_34191_four_by_one_equals_one_by_four_under_padding(mut job in jobs()) {
        job.model = job.model.well_conditioned();
        // In bf16 a gradient is rounded once for each micro-batch.
        job = job.with(|s| (s.gradients, s.clip) = (Precision::F32, None));
        let run = |micro_batch, micro_batches| {
            let job = cut(&job, micro_batch, micro_batches);
            let mut rank = job.on_cpu();
            (job.batch(0).step(&mut rank).unwrap(), gradients(&rank))
        };
        let (whole, gradient) = run(4, 1);
        for (micro_batch, micro_batches) in [(2, 2), (1, 4)] {
            let (parts, g) = run(micro_batch, micro_batches);
            prop_assert!((parts.loss - whole.loss).abs() <= LOSS * whole.loss, "{} for {}", parts.loss, whole.loss);
            near(&g, &gradient).map_err(|e| TestCaseError::fail(format!("{micro_batches} micro-batches: {e}")))?;
        }
    }

    /// torchtitan issue 1842: every token weighs the same, whichever micro-batch it is in.
    #[test]
    fn tt_1842_a_step_is_the_sum_of_its_micro_batches_over_one_global_count(mut job in jobs()) {
        job.model = job.model.well_conditioned();
        // Another count is another factor of the gradients, and bf16 rounds what is multiplied by it anew.
        job = job.in_mode((Precision::F32, Precision::F32, job.settings.deterministic));
        job = job.with(|s| (s.clip, s.micro_batches) = (None, 3));
        let (mut rank, batch) = (job.on_cpu(), job.batch(0));
        let whole = batch.step(&mut rank).unwrap().loss;
        let want = gradients(&rank);
        let mut sum: Vec<Vec<f32>> = want.iter().map(|g| vec![0.0; g.len()]).collect();
        let mut loss = 0.0;
        for part in (0..3).map(|i| batch.part(i, 3)) {
            let mut rank = cut(&job, job.settings.micro_batch, 1).on_cpu();
            let share = part.valid() as f64 / batch.valid() as f64;
            loss += share * part.step(&mut rank).unwrap().loss;
            let each = sum.iter_mut().flatten().zip(gradients(&rank).into_iter().flatten());
            each.for_each(|(s, g)| *s += share as f32 * g);
        }
        prop_assert!((loss - whole).abs() <= LOSS * whole, "{loss} for {whole}");
        near(&sum, &want).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn the_mean_of_micro_batches_means_is_told_apart() {
    let job = Job::small(Settings { micro_batch: 1, micro_batches: 4, ..settings() });
    let (mut rank, batch) = (job.on_cpu(), job.batch(0));
    let parts = [0, 1, 2, 3].map(|i| batch.part(i, 4));
    assert!(parts.iter().all(|p| p.valid() > 0) && parts[0].valid() > 2 * parts[3].valid());
    let mean = parts.map(|p| p.evaluate(&mut rank).unwrap()).iter().sum::<f64>() / 4.0;
    let loss = batch.step(&mut rank).unwrap().loss;
    assert!((mean / loss - 1.0).abs() > 50.0 * LOSS, "{mean} and {loss} would pass for each other");
}

#[test]
fn gradients_kept_in_bf16_are_the_rounded_f32_ones() {
    use memwall_tensor::{Float, bf16};
    for precision in [Precision::F32, Precision::Bf16] {
        // One use of each parameter, one micro-batch: nothing is added in bf16.
        let run = |gradients_in| {
            let job = Job::new(Model::SMALL, Settings { precision, gradients: gradients_in, ..settings() });
            let mut rank = job.on_cpu();
            job.batch(0).step(&mut rank).unwrap();
            gradients(&rank)
        };
        let round = |x: f32| bf16::from_f32(x).wide();
        let rounded: Vec<Vec<f32>> =
            run(Precision::F32).into_iter().map(|g| g.into_iter().map(round).collect()).collect();
        assert!(run(Precision::Bf16) == rounded);
    }
}
