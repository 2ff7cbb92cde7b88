//! What must not matter to a step, to the bit: threads, instructions, recomputation, order, evaluation.

mod common;

use common::jobs::{CANCELLED, Job, Sizes, cases, change, jobs, largest, param, params, state_bits, trace};
use common::{BUDGET, settings, weight};
use memwall_engine::{AdamWSettings, Keep, Rank, Schedule, Settings};
use memwall_tensor::{Cpu, Description, Family};
use proptest::prelude::*;

/// Sums of the same terms in another order, or rounded once more: some units in the last place of each of up to a
/// few hundred terms, relative to the tensor's largest element.
const REORDERED: f64 = 5e-6;

/// The last step's gradient of every parameter.
fn gradients(rank: &Rank<Cpu>) -> Vec<Vec<f32>> {
    params(rank).map(|p| rank.gradient(p)).collect()
}

/// Every gradient is near its counterpart, relative to the largest of its tensor or of all.
fn assert_near(what: &str, a: &[Vec<f32>], b: &[Vec<f32>]) {
    let all = largest(&b.concat());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let apart: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        let (apart, limit) = (largest(&apart), REORDERED * largest(b) + CANCELLED * all);
        assert!(apart <= limit, "{what}, parameter {i}: {apart:e} apart, over {limit:e}");
    }
}

proptest! {
    #![proptest_config(cases(10))]

    #[test]
    fn results_do_not_depend_on_the_number_of_threads(job in jobs()) {
        let batches = [0, 1, 2].map(|k| job.batch(k));
        let run = |threads| trace(&mut job.rank(common::cpu(threads)), &batches);
        let one = run(1);
        for threads in [2, 3, 4] {
            prop_assert!(run(threads) == one, "{threads} threads");
        }
    }

    #[test]
    fn results_do_not_depend_on_the_instructions(job in jobs()) {
        let batches = [job.batch(0), job.batch(1)];
        let run = |family| {
            let device = Cpu::with_family(Description { threads: 2 }, BUDGET, family).unwrap();
            trace(&mut job.rank(device), &batches)
        };
        let portable = run(Family::Portable);
        for family in Family::ALL.into_iter().filter(|f| f.available()) {
            prop_assert!(run(family) == portable, "{family:?}");
        }
    }

    #[test]
    fn recompute_changes_no_bit(job in jobs(), kept: [bool; 4]) {
        let batches = [0, 1, 2].map(|k| job.batch(k));
        let run = |keep| {
            let settings = Settings { keep, ..job.settings };
            trace(&mut Job { settings, ..job.clone() }.on_cpu(), &batches)
        };
        let [projections, attention, middle, gate_up] = kept;
        let all = run(Keep::ALL);
        prop_assert!(run(Keep::INPUT) == all);
        let some = Keep { input: true, projections, attention, middle, gate_up };
        prop_assert!(run(some) == all);
    }

    #[test]
    fn deterministic_mode_does_not_depend_on_the_order_of_micro_batches(
        job in jobs(), order in Just([0, 1, 2, 3]).prop_shuffle(),
    ) {
        let job = Job { settings: Settings { deterministic: true, micro_batches: 4, ..job.settings }, ..job };
        let batches = [job.batch(0), job.batch(1)];
        let permuted = batches.clone().map(|b| b.permuted(&order));
        prop_assert!(trace(&mut job.on_cpu(), &batches) == trace(&mut job.on_cpu(), &permuted));
    }

    #[test]
    fn evaluation_changes_nothing(job in jobs()) {
        let batches = [job.batch(0), job.batch(1)];
        let mut without = job.on_cpu();
        let want = trace(&mut without, &batches);
        let mut with = job.on_cpu();
        let held_out = job.batch(7);
        held_out.evaluate(&mut with).unwrap();
        let first = trace(&mut with, &batches[..1]);
        let gradient = gradients(&with);
        let loss = held_out.evaluate(&mut with).unwrap();
        prop_assert_eq!(held_out.evaluate(&mut with).unwrap().to_bits(), loss.to_bits());
        prop_assert!(state_bits(&with) == first.state);
        prop_assert!(gradients(&with) == gradient, "the step's gradients can still be read");
        prop_assert_eq!(with.steps_done(), 1);
        let second = trace(&mut with, &batches[1..]);
        prop_assert_eq!([first.steps, second.steps].concat(), want.steps);
        prop_assert!(second.state == want.state);
    }

    #[test]
    fn evaluation_loss_equals_step_loss(job in jobs()) {
        let mut rank = job.on_cpu();
        for k in 0..2 {
            let batch = job.batch(k);
            let before = batch.evaluate(&mut rank).unwrap();
            prop_assert_eq!(before.to_bits(), batch.step(&mut rank).unwrap().loss.to_bits());
        }
    }

    /// Hugging Face pull request 34191, Tenstorrent issue 1842: the mean of micro-batches' means weighs the tokens
    /// of a micro-batch with much padding more than others.
    #[test]
    fn hf_34191_accumulation_equals_one_big_batch_under_padding(mut job in jobs(), deterministic: bool) {
        job.sizes.well_conditioned();
        let run = |micro_batch, micro_batches| {
            let settings = Settings { micro_batch, micro_batches, deterministic, clip: None, ..job.settings };
            let job = Job { settings, ..job.clone() };
            let mut rank = job.on_cpu();
            (job.batch(0).step(&mut rank).unwrap(), gradients(&rank))
        };
        let (whole, gradient) = run(4, 1);
        for (micro_batch, micro_batches) in [(2, 2), (1, 4)] {
            let (parts, g) = run(micro_batch, micro_batches);
            prop_assert!((parts.loss - whole.loss).abs() <= 1e-6 * whole.loss, "{} for {}", parts.loss, whole.loss);
            assert_near(&format!("{micro_batches} micro-batches"), &g, &gradient);
        }
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
    assert!((mean / loss - 1.0).abs() > 1e-3, "{mean} and {loss} would pass for each other");
}

#[test]
fn initial_values_depend_on_seed_name_and_index_alone() {
    let job = |sizes, seed| Job { sizes, settings: Settings { seed, ..settings() } };
    let small = job(Sizes::SMALL, 5).on_cpu();
    let wide = Sizes { hidden: 40, intermediate: 50, vocabulary: 90, layers: 3, ..Sizes::SMALL };
    let wide = job(wide, 5).rank(common::cpu(3));
    let other = job(Sizes::SMALL, 6).on_cpu();
    let mut seen = std::collections::HashSet::new();
    for p in params(&small) {
        let spec = small.spec().param(p);
        let values = weight(&small, p.0);
        assert_eq!(values, weight(&wide, param(wide.spec(), &spec.name).0)[..values.len()], "{}", spec.name);
        if spec.shape.len() == 2 {
            assert_ne!(values, weight(&other, p.0), "{}", spec.name);
            assert!(seen.insert(values[0].to_bits()), "{} has another's values", spec.name);
        }
    }
}

#[test]
fn a_tied_gradient_is_the_sum_of_both_uses() {
    for deterministic in [false, true] {
        let run = |tied| {
            let settings = Settings { micro_batches: 2, deterministic, ..settings() };
            let job = Job { sizes: Sizes::SMALL.tied(tied), settings };
            let mut rank = job.on_cpu();
            let table = weight(&rank, 0);
            if !tied {
                let head = param(rank.spec(), "lm_head.weight");
                change(&mut rank, head, |i, _| table[i]);
            }
            job.batch(0).step(&mut rank).unwrap();
            gradients(&rank)
        };
        let (tied, mut untied) = (run(true), run(false));
        let head = untied.pop().unwrap();
        untied[0].iter_mut().zip(head).for_each(|(e, h)| *e += h);
        assert_eq!(tied.len(), untied.len());
        assert_near("tied", &tied, &untied);
    }
}

/// verl issue 5070.
#[test]
fn verl_5070_weight_decay_never_reaches_norms() {
    let run = |weight_decay| {
        let optimizer = AdamWSettings { weight_decay, ..settings().optimizer };
        let job = Job::small(Settings { optimizer, ..settings() });
        let mut rank = job.on_cpu();
        // Norms that differ from one, where some rules begin to decay them.
        params(&rank).for_each(|p| change(&mut rank, p, |_, x| 1.5 * x));
        job.batch(0).step(&mut rank).unwrap();
        rank
    };
    let (without, with) = (run(0.0), run(0.5));
    for p in params(&without) {
        let norm = without.spec().param(p).shape.len() == 1;
        assert_eq!(weight(&without, p.0) == weight(&with, p.0), norm, "{}", without.spec().param(p).name);
    }
}

#[test]
fn a_step_takes_the_rate_of_its_own_number() {
    let schedule = Schedule { warmup: 4, ..settings().schedule };
    let job = Job::small(Settings { schedule, ..settings() });
    let mut rank = job.on_cpu();
    for k in 1..=5 {
        let report = job.batch(k).step(&mut rank).unwrap();
        assert_eq!((report.step, report.learning_rate), (k, schedule.at(k)));
    }
    // Going on from a number of steps done is as if they had been done here.
    let mut resumed = job.on_cpu();
    resumed.set_steps_done(3);
    assert_eq!(job.batch(4).step(&mut resumed).unwrap().learning_rate, schedule.at(4));
}
