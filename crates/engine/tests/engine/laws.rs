//! What must not matter to a step, to the bit: threads, instructions, recomputation, order, evaluation.

use super::common::{
    BUDGET, Job, MODES, Model, cases, change, cpu, families, gradients, jobs, near, param, params, settings,
    state_bits, trace, weight,
};
use memwall_engine::{AdamWSettings, Keep, Precision, Schedule, Settings};
use memwall_tensor::{Cpu, Description, Family};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(10))]

    #[test]
    fn results_do_not_depend_on_the_number_of_threads(job in jobs()) {
        let batches = [0, 1, 2].map(|k| job.batch(k));
        let run = |threads| trace(&mut job.rank(cpu(threads)), &batches);
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
        let run = |keep| trace(&mut job.with(|s| s.keep = keep).on_cpu(), &batches);
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
        let job = job.with(|s| (s.deterministic, s.micro_batches) = (true, 4));
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
    fn evaluation_loss_equals_step_loss(mut job in jobs()) {
        job.model = job.model.dropping([0.0; 3]);
        let mut rank = job.on_cpu();
        for k in 0..2 {
            let batch = job.batch(k);
            let before = batch.evaluate(&mut rank).unwrap();
            prop_assert_eq!(before.to_bits(), batch.step(&mut rank).unwrap().loss.to_bits());
        }
    }
}

/// OLMo-core pull request 828: recomputation drew new dropout masks.
#[test]
fn olmo_core_pr_828_recompute_changes_no_bit_in_any_family() {
    for model in families() {
        for precision in [Precision::F32, Precision::Bf16] {
            let settings = Settings { precision, micro_batches: 2, ..settings() };
            let job = Job { packed: true, ..Job::new(model.dropping([0.1, 0.2, 0.3]), settings) };
            let batches = [0, 1].map(|k| job.batch(k));
            let run = |keep| trace(&mut job.with(|s| s.keep = keep).on_cpu(), &batches);
            let all = run(Keep::ALL);
            let nothing = Keep::INPUT;
            for keep in [
                nothing,
                Keep { projections: true, ..nothing },
                Keep { attention: true, ..nothing },
                Keep { middle: true, ..nothing },
                Keep { gate_up: true, ..nothing },
            ] {
                assert!(run(keep) == all, "{keep:?} in {job:?}");
            }
        }
    }
}

#[test]
fn initial_values_depend_on_seed_name_and_index_alone() {
    let job = |model, seed| Job::new(model, Settings { seed, ..settings() });
    let small = job(Model::SMALL, 5).on_cpu();
    let wide = Model { hidden: 40, intermediate: 50, vocabulary: 90, layers: 3, ..Model::SMALL };
    let wide = job(wide, 5).rank(cpu(3));
    let other = job(Model::SMALL, 6).on_cpu();
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
    let models = families().into_iter().flat_map(|m| [(m, false), (m, true)]);
    for (model, deterministic) in models {
        let run = |tied| {
            let settings = Settings { micro_batches: 2, deterministic, ..settings() };
            let job = Job::new(model.tied(tied), settings);
            let mut rank = job.uneven_on_cpu();
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
        near(&tied, &untied).unwrap_or_else(|e| panic!("{e} in {model:?}"));
    }
}

/// verl issue 5070.
#[test]
fn verl_5070_weight_decay_never_reaches_norms_or_biases() {
    for (model, mode) in families().into_iter().zip(MODES) {
        let run = |weight_decay| {
            let optimizer = AdamWSettings { weight_decay, ..settings().optimizer };
            let job = Job::new(model, Settings { optimizer, ..settings() }).in_mode(mode);
            // Norms that differ from one and biases from zero, where some rules begin to decay them.
            let mut rank = job.uneven_on_cpu();
            job.batch(0).step(&mut rank).unwrap();
            rank
        };
        let (without, with) = (run(0.0), run(0.5));
        for p in params(&without) {
            let vector = without.spec().param(p).shape.len() == 1;
            assert_eq!(
                weight(&without, p.0) == weight(&with, p.0),
                vector,
                "{}",
                without.spec().param(p).name
            );
        }
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
