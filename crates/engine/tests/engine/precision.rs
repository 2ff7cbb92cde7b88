//! bf16 computes; f32 masters are what is trained.

use super::common::{
    Batch, Job, Model, change, copy_weights, families, gradients, param, params, settings, weight,
};
use memwall_engine::{AdamWSettings, Precision, Rank, Schedule, Settings};
use memwall_tensor::{Cpu, Float, bf16};

fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).wide()
}

/// A job in bf16.
fn job(model: Model, gradients: Precision) -> Job {
    Job::new(model, Settings { precision: Precision::Bf16, gradients, ..settings() })
}

/// The bits of the loss of `batch`, which says what weights the forward reads.
fn read(rank: &mut Rank<Cpu>, batch: &Batch) -> u64 {
    batch.evaluate(rank).unwrap().to_bits()
}

/// DeepSpeed issue 5307: bf16 weights without masters did not move in 100 steps.
#[test]
fn ds_5307_masters_move_where_bf16_weights_would_not() {
    const RATE: f64 = 5e-5;
    for model in families() {
        let schedule = Schedule { peak: RATE, last: RATE, steps: 100, ..settings().schedule };
        let optimizer = AdamWSettings { weight_decay: 0.0, ..settings().optimizer };
        let job = job(model, Precision::Bf16).with(|s| (s.schedule, s.optimizer) = (schedule, optimizer));
        let (mut rank, batch) = (job.on_cpu(), job.batch(0));
        let first: Vec<f32> = params(&rank).flat_map(|p| weight(&rank, p.0)).collect();
        let (mut last, mut largest_step) = (first.clone(), 0f32);
        for _ in 0..100 {
            batch.step(&mut rank).unwrap();
            let now: Vec<f32> = params(&rank).flat_map(|p| weight(&rank, p.0)).collect();
            largest_step = now.iter().zip(&last).fold(largest_step, |m, (a, b)| m.max((a - b).abs()));
            last = now;
        }
        // Half the distance of bf16 numbers between 0.25 and 0.5: what a step must exceed to move one of them.
        let half = 2f32.powi(-10);
        assert!(largest_step < half / 4.0, "a step of {largest_step} in {model:?}");
        let far: Vec<_> = first.iter().zip(&last).filter(|(a, _)| (0.25..0.5).contains(&a.abs())).collect();
        let moved = far.iter().filter(|(a, b)| rounded(**a) != rounded(**b)).count();
        assert!(far.len() > 100 && moved * 2 > far.len(), "{moved} of {} in {model:?}", far.len());
        assert!(f64::from_bits(read(&mut rank, &batch)) < batch.evaluate(&mut job.on_cpu()).unwrap());
    }
}

#[test]
fn masters_are_what_is_read_and_written_and_weights_are_their_rounding() {
    for model in families() {
        for gradients in [Precision::F32, Precision::Bf16] {
            let job = job(model, gradients);
            let (mut rank, batch) = (job.on_cpu(), job.batch(0));
            // Once as initialized, then as the optimizer left them.
            for _ in 0..3 {
                let masters: Vec<_> = params(&rank).flat_map(|p| weight(&rank, p.0)).collect();
                assert!(masters.iter().any(|x| rounded(*x) != *x), "masters are rounded");
                let mut other = job.on_cpu();
                copy_weights(&rank, &mut other);
                let want = read(&mut rank, &batch);
                assert_eq!(read(&mut other, &batch), want, "a written master is rounded before it is read");
                params(&rank).for_each(|p| change(&mut other, p, |_, x| rounded(x)));
                assert_eq!(read(&mut other, &batch), want, "weights are not the rounded masters");
                batch.step(&mut rank).unwrap();
                assert_ne!(read(&mut rank, &batch), want, "a step changes the weights");
            }
        }
    }
}

#[test]
fn the_optimizer_changes_masters_by_its_rule_not_their_rounding() {
    let optimizer = settings().optimizer;
    for model in families() {
        let job = job(model, Precision::Bf16);
        let mut rank = job.on_cpu();
        let before: Vec<Vec<f32>> = params(&rank).map(|p| weight(&rank, p.0)).collect();
        job.batch(0).step(&mut rank).unwrap();
        for (p, g) in params(&rank).zip(gradients(&rank)) {
            let decay = if rank.spec().param(p).shape.len() == 2 { optimizer.weight_decay } else { 0.0 };
            let rate = settings().schedule.at(1);
            for ((was, is), g) in before[p.0].iter().zip(weight(&rank, p.0)).zip(g) {
                // Loshchilov and Hutter, algorithm 2, at its first step: both moments' corrections cancel them.
                let (was, g) = (f64::from(*was), f64::from(g));
                let want = was - rate * (g / (g.abs() + optimizer.eps) + decay * was);
                assert!((f64::from(is) - want).abs() < 1e-6, "{is} for {want} in {model:?}");
            }
        }
    }
}

#[test]
fn bf16_and_f32_differ_by_rounding_and_by_no_more() {
    // Eight bits of mantissa: a product is off by 2^-8 at most, and a gradient passes some tens of them.
    const FAR: f64 = 0.05;
    for model in families() {
        let bf16 = job(model, Precision::F32);
        let f32 = bf16.with(|s| s.precision = Precision::F32);
        let (mut short, mut long) = (bf16.uneven_on_cpu(), f32.uneven_on_cpu());
        // From the same weights, so that only activations are rounded.
        params(&short).for_each(|p| change(&mut long, p, |_, x| rounded(x)));
        let batch = Job { packed: true, ..bf16 }.batch(0);
        let (a, b) = (batch.step(&mut short).unwrap().loss, batch.step(&mut long).unwrap().loss);
        assert!((a / b - 1.0).abs() < 2f64.powi(-8) && a != b, "{a} for {b} in {model:?}");
        let (a, b) = (gradients(&short).concat(), gradients(&long).concat());
        let length = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let apart = length(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / length(&mut b.iter().copied());
        assert!(apart < FAR, "{apart} in {model:?}");
    }
}

#[test]
fn a_master_written_between_steps_is_what_the_next_step_reads() {
    let job = job(Model::SMALL, Precision::Bf16);
    let (mut rank, batch) = (job.on_cpu(), job.batch(0));
    batch.step(&mut rank).unwrap();
    let mut other = job.on_cpu();
    copy_weights(&rank, &mut other);
    let p = param(rank.spec(), "model.norm.weight");
    for r in [&mut rank, &mut other] {
        change(r, p, |_, x| 1.5 * x);
    }
    let (a, b) = (batch.step(&mut rank).unwrap(), batch.step(&mut other).unwrap());
    assert_eq!(a.loss.to_bits(), b.loss.to_bits());
}
