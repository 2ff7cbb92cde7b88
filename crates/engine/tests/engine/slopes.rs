//! The gradients of whole small models against slopes of an independent forward in f64.

use super::common::{CANCELLED, Job, Model, cases, families, gradients, jobs, largest, params, settings};
use super::decoder::Decoder;
use memwall_engine::{Part, Precision, Settings};
use memwall_model::Family;
use memwall_tensor::{device::Memory, math};
use proptest::prelude::*;

/// Step of the central differences: they are off by its square times the third derivative, and by 1e-16 of the
/// loss over it.
const STEP: f64 = 1e-5;

/// Largest deviation of a slope, relative to its gradient's length.
const TOLERANCE: f64 = 1e-4;

/// Largest deviation of the loss, relative, or absolute below one.
const LOSS_TOLERANCE: f64 = 1e-6;

/// Trains a step and compares the loss, and every gradient along a random direction of ones and minus ones, with
/// those of the f64 forward of `read_as`. Says what deviates.
fn compare(job: &Job, read_as: Model) -> Result<(), String> {
    let mut rank = job.uneven_on_cpu();
    let spec = rank.spec().clone();
    let wide = |p| rank.device().read_f32(rank.part(Part::Weight, p)).into_iter().map(f64::from).collect();
    let named = params(&rank).map(|p| (spec.param(p).name.clone(), wide(p)));
    let mut decoder = Decoder { model: &read_as, params: named.collect(), seed: job.settings.seed };
    let batch = job.batch(0);
    let report = batch.step(&mut rank).unwrap();

    let gradients = gradients(&rank);
    let floor = CANCELLED * largest(&gradients.concat());
    for (p, g) in spec.params.iter().zip(&gradients) {
        let key = math::stream_key(job.settings.seed, &p.name);
        let sign = |i: usize| if math::random_u64(key, i as u64) & 1 == 0 { 1.0 } else { -1.0 };
        let here = decoder.params[&p.name].clone();
        let mut at = |step: f64| {
            let moved = here.iter().enumerate().map(|(i, x)| x + step * sign(i)).collect();
            decoder.params.insert(p.name.clone(), moved);
            decoder.loss(&batch)
        };
        let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        decoder.params.insert(p.name.clone(), here);
        let got: f64 = g.iter().enumerate().map(|(i, g)| f64::from(*g) * sign(i)).sum();
        let length = g.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let apart = (got - slope).abs();
        if apart.is_nan() || apart > TOLERANCE * length + floor * (g.len() as f64).sqrt() {
            return Err(format!("{}: {got:e} for {slope:e} in {job:?}", p.name));
        }
    }
    let want = decoder.loss(&batch);
    let near = (report.loss - want).abs() < LOSS_TOLERANCE * want.max(1.0);
    if near { Ok(()) } else { Err(format!("loss {} for {want} in {job:?}", report.loss)) }
}

fn check(job: &Job) {
    compare(job, job.model).unwrap_or_else(|e| panic!("{e}"));
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn gradients_are_the_slopes_of_an_independent_f64_model(mut job in jobs()) {
        job.model = job.model.well_conditioned();
        // What is rounded to bf16 has no slopes. They cost two forwards for each parameter.
        let s = &mut job.settings;
        (s.precision, s.gradients) = (Precision::F32, Precision::F32);
        (s.sequence, s.micro_batch, s.micro_batches) =
            (s.sequence.min(13), s.micro_batch.min(2), s.micro_batches.min(2));
        check(&job);
    }
}

#[test]
fn every_family_has_the_slopes_of_an_independent_f64_model() {
    for model in families() {
        for (tied, packed, dropout) in [(false, true, [0.0; 3]), (true, false, [0.1, 0.2, 0.3])] {
            let settings = Settings { micro_batches: 2, deterministic: tied, ..settings() };
            check(&Job { packed, ..Job::new(model.tied(tied).dropping(dropout), settings) });
        }
    }
}

#[test]
fn gradients_are_slopes_beyond_one_chunk_of_the_head_and_one_tile_of_attention() {
    let tiny =
        Model { intermediate: 5, layers: 1, heads: 2, kv_heads: 1, head_dim: 4, hidden: 9, ..Model::SMALL };
    let windowed = Model { family: Family::Mistral, window: Some(65), ..tiny };
    let dropping = Model { tied: true, ..windowed }.dropping([0.0, 0.2, 0.0]);
    for (model, packed) in [(tiny, false), (windowed, true), (dropping, false)] {
        let settings = Settings { micro_batch: 2, sequence: 131, deterministic: packed, ..settings() };
        check(&Job { packed, ..Job::new(model, settings) });
    }
}

#[test]
fn a_gradient_of_a_slightly_other_model_is_told_apart() {
    for model in families() {
        let job = Job { packed: true, ..Job::new(model.dropping([0.1; 3]), settings()) };
        check(&job);
        let others = [
            Model { eps: 1e-2, ..job.model },
            Model { theta: 2e4, ..job.model },
            Model { window: Some(4), ..job.model },
            Model { dropout: [0.1, 0.11, 0.1], ..job.model },
            Model { full_layers: 0, ..job.model },
        ];
        for other in others.map(Model::checked).into_iter().filter(|o| o.spec() != job.model.spec()) {
            compare(&job, other).expect_err("another model passes for this one");
        }
    }
}
