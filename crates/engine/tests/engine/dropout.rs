//! Which elements drop out depends on the seed and the sample, and in training alone.

use super::common::{Batch, Job, Model, cases, copy_weights, families, gradients, jobs, settings};
use memwall_engine::{Precision, Settings};
use memwall_model::Family;
use proptest::prelude::*;

/// A job that drops out wherever its family does.
fn dropping(model: Model, precision: Precision) -> Job {
    Job::new(model.dropping([0.1, 0.2, 0.3]), Settings { precision, ..settings() })
}

/// The loss of a step from the weights of `of`, by a rank of `job`.
fn loss(job: &Job, of: &Job, batch: &Batch) -> u64 {
    let mut rank = job.on_cpu();
    copy_weights(&of.on_cpu(), &mut rank);
    batch.step(&mut rank).unwrap().loss.to_bits()
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn evaluation_drops_nothing(job in jobs()) {
        let whole = Job { model: job.model.dropping([0.0; 3]), ..job };
        let (mut rank, batch) = (job.on_cpu(), job.batch(0));
        let want = batch.evaluate(&mut whole.on_cpu()).unwrap();
        prop_assert_eq!(batch.evaluate(&mut rank).unwrap().to_bits(), want.to_bits());
        // Neither after a step that did.
        batch.step(&mut rank).unwrap();
        let mut after = whole.on_cpu();
        copy_weights(&rank, &mut after);
        let want = batch.evaluate(&mut after).unwrap();
        prop_assert_eq!(batch.evaluate(&mut rank).unwrap().to_bits(), want.to_bits());
    }
}

#[test]
fn masks_change_with_the_seed_and_with_the_sample_and_with_nothing_else() {
    for model in families() {
        for precision in [Precision::F32, Precision::Bf16] {
            let job = dropping(model, precision);
            let batch = job.batch(0);
            let want = loss(&job, &job, &batch);
            assert_eq!(loss(&job, &job, &batch), want);
            assert_ne!(loss(&job.with(|s| s.seed += 1), &job, &batch), want, "the seed, in {job:?}");
            let mut other = batch.clone();
            other.samples[0] += 1000;
            assert_ne!(loss(&job, &job, &other), want, "the sample, in {job:?}");
            let still = Job { model: job.model.dropping([0.0; 3]), ..job };
            assert_eq!(loss(&still, &job, &other), loss(&still.with(|s| s.seed += 1), &job, &batch));
        }
    }
}

#[test]
fn each_rate_matters_by_itself() {
    for model in families() {
        let job = Job::new(model, settings());
        let batch = job.batch(0);
        let want = loss(&job, &job, &batch);
        for site in 0..3 {
            let mut rates = [0.0; 3];
            rates[site] = 0.2;
            let one = Job { model: model.dropping(rates), ..job };
            let drops = site == 1 || model.family == Family::Gpt2;
            assert_eq!(loss(&one, &job, &batch) != want, drops, "rate {site} of {model:?}");
        }
    }
}

#[test]
fn a_step_draws_other_masks_than_the_step_before() {
    for model in families() {
        let job = dropping(model, Precision::F32);
        let first = job.batch(0);
        // The same tokens as another step's samples.
        let second = Batch { samples: job.batch(1).samples, ..first.clone() };
        let run = |batch: &Batch| {
            let mut rank = job.on_cpu();
            batch.step(&mut rank).unwrap();
            gradients(&rank)
        };
        assert!(run(&first) != run(&second), "{model:?}");
    }
}

#[test]
fn the_same_sample_in_another_row_has_the_same_mask() {
    for model in families() {
        let job = dropping(model, Precision::Bf16).with(|s| s.deterministic = true);
        let job = job.with(|s| (s.micro_batch, s.micro_batches) = (1, 3));
        let batch = job.batch(0);
        assert_eq!(loss(&job, &job, &batch.permuted(&[2, 0, 1])), loss(&job, &job, &batch), "{model:?}");
        // In one micro-batch the loss is a sum of the same numbers in another order.
        let whole = job.with(|s| (s.micro_batch, s.micro_batches) = (3, 1));
        let near = f64::from_bits(loss(&whole, &job, &batch)) / f64::from_bits(loss(&job, &job, &batch));
        assert!((near - 1.0).abs() < 1e-6, "{near} in {model:?}");
    }
}
