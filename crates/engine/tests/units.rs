//! The gradients of whole small models against slopes of an independent forward in f64.

mod common;

use common::decoder::Decoder;
use common::jobs::{CANCELLED, Job, Sizes, cases, change, jobs, largest, params};
use common::settings;
use memwall_engine::{Part, Settings};
use memwall_model::ModelConfig;
use memwall_tensor::{device::Memory, math};
use proptest::prelude::*;

/// Step of the central differences: they are off by its square times the third derivative, and by 1e-16 of the
/// loss over it.
const STEP: f64 = 1e-5;

/// Largest deviation of an element, relative to its tensor's largest gradient.
const TOLERANCE: f64 = 1e-4;

/// Largest deviation of the loss, relative, or absolute below one.
const LOSS_TOLERANCE: f64 = 1e-6;

/// Elements of each tensor whose slopes are taken.
const PROBES: u64 = 2;

/// Trains a step and compares a few elements of every gradient, and the loss, with those of the f64 forward under
/// the config that `as_read` makes of the job's. Says what deviates.
fn compare(job: &Job, as_read: impl FnOnce(&mut ModelConfig)) -> Result<(), String> {
    let mut rank = job.on_cpu();
    let spec = rank.spec().clone();
    // Norms other than one, so that their weights matter.
    for p in params(&rank).filter(|p| spec.param(*p).shape.len() == 1) {
        change(&mut rank, p, |i, x| x + 0.3 * (i as f32 + p.0 as f32).sin());
    }
    let wide = |p| rank.device().read_f32(rank.part(Part::Weight, p)).into_iter().map(f64::from).collect();
    let mut config = spec.config.clone();
    as_read(&mut config);
    let mut decoder = Decoder { config: &config, params: params(&rank).map(wide).collect() };
    let batch = job.batch(0);
    let loss = |d: &Decoder<'_>| d.loss(&batch.tokens, &batch.targets, job.settings.sequence);
    let report = batch.step(&mut rank).unwrap();

    let gradients: Vec<_> = params(&rank).map(|p| rank.gradient(p)).collect();
    let floor = CANCELLED * largest(&gradients.concat());
    for (p, g) in gradients.iter().enumerate() {
        let name = &spec.params[p].name;
        let key = math::stream_key(job.settings.seed, name);
        for probe in 0..PROBES {
            let i = (math::random_u64(key, probe) % g.len() as u64) as usize;
            let here = decoder.params[p][i];
            let mut at = |x| {
                decoder.params[p][i] = x;
                loss(&decoder)
            };
            let slope = (at(here + STEP) - at(here - STEP)) / (2.0 * STEP);
            decoder.params[p][i] = here;
            if (f64::from(g[i]) - slope).abs() > TOLERANCE * largest(g) + floor {
                return Err(format!("{name}[{i}]: {:e} for {slope:e} in {job:?}", g[i]));
            }
        }
    }
    let want = loss(&decoder);
    let near = (report.loss - want).abs() < LOSS_TOLERANCE * want.max(1.0);
    if near { Ok(()) } else { Err(format!("loss {} for {want} in {job:?}", report.loss)) }
}

fn check(job: &Job) {
    compare(job, |_| ()).unwrap_or_else(|e| panic!("{e}"));
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn gradients_are_the_slopes_of_an_independent_f64_model(mut job in jobs()) {
        // Slopes cost two forwards for each element.
        job.sizes.well_conditioned();
        let s = &mut job.settings;
        (s.sequence, s.micro_batches) = (s.sequence.min(13), s.micro_batches.min(2));
        check(&job);
    }
}

#[test]
fn gradients_are_slopes_beyond_one_chunk_of_the_head_and_one_tile_of_attention() {
    let sizes =
        Sizes { hidden: 9, intermediate: 5, layers: 1, heads: 2, kv_heads: 1, head_dim: 4, ..Sizes::SMALL };
    for tied in [false, true] {
        let settings = Settings { micro_batch: 2, sequence: 131, deterministic: tied, ..settings() };
        check(&Job { sizes: sizes.tied(tied), settings });
    }
}

#[test]
fn a_gradient_of_a_slightly_other_model_is_told_apart() {
    let job = Job::small(settings());
    check(&job);
    let other = compare(&job, |c| c.norm_eps = 1e-2).unwrap_err();
    assert!(other.contains("model.embed_tokens.weight"), "{other}");
}
