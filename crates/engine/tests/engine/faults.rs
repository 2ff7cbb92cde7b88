//! What happens when a step cannot be carried out: who is named, and what is left as it was.

use super::common::{
    Batch, FOLDERS, Job, MODES, Model, Reference, change, cpu, families, param, params, settings, state_bits,
    trace, weight,
};
use memwall_comm::{Call, Clock, CommError, Group, Groups, Pending, Solo, Traffic};
use memwall_engine::{EngineError, Generator, Precision, Rank, Settings, Zero};
use memwall_layout::{Axis, Mesh};
use memwall_model::ParamId;
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, Description, Dry};
use std::sync::atomic::{AtomicBool, Ordering};

/// The small model, plain or with exact gradients.
fn job(deterministic: bool) -> Job {
    Job::small(Settings { deterministic, micro_batches: 2, ..settings() })
}

/// The small model in every mode.
fn in_every_mode() -> impl Iterator<Item = Job> {
    MODES.into_iter().map(|mode| job(false).in_mode(mode))
}

/// What was not finite and which tensor was named, of a step that must fail and change nothing.
fn refused(rank: &mut Rank<Cpu>, batch: &Batch) -> (&'static str, String) {
    let (before, done) = (state_bits(rank), rank.steps_done());
    let error = batch.step(rank).unwrap_err();
    let EngineError::NotFinite { step, what, ref tensor } = error else { panic!("{error}") };
    assert_eq!((step, rank.steps_done()), (done + 1, done));
    assert!(state_bits(rank) == before, "weights or moments changed beside: {error}");
    assert!(error.to_string().contains(tensor), "{error}");
    (what, tensor.clone())
}

#[test]
fn ranks_along_an_axis_that_nothing_is_cut_along_are_refused() {
    let r = Reference::read(FOLDERS[0]);
    let mesh = Mesh::data_parallel(2, 3);
    let device = Dry::new(Description { threads: 1 }, 1 << 30).unwrap();
    let e = Rank::new(device, Groups::dry(mesh, 4), r.spec, settings()).err().unwrap();
    assert_eq!(e, EngineError::Mesh { mesh, zero: Zero::None });
}

#[test]
fn a_sequence_beyond_the_learned_positions_is_refused_and_one_of_turned_ones_is_not() {
    let gpt2 = Reference::read("gpt2").spec;
    let longest = gpt2.config.max_positions;
    let rank = |spec, sequence| {
        let s = Settings { sequence, ..settings() };
        Rank::new(cpu(1), Groups::solo(), spec, s).err()
    };
    let refusal = EngineError::Positions { length: longest + 1, longest };
    assert_eq!(rank(gpt2.clone(), longest), None);
    assert_eq!(rank(gpt2.clone(), longest + 1), Some(refusal.clone()));
    assert_eq!(Generator::new(cpu(1), &gpt2, longest + 1).err(), Some(refusal));
    let turned = Reference::read(FOLDERS[0]).spec;
    let longest = turned.config.max_positions;
    assert_eq!(rank(turned, longest + 1), None);
}

/// torchtitan issue 951: one bad weight makes everything bad, and only its name helps.
#[test]
fn tt_951_the_first_non_finite_tensor_is_named() {
    for (model, mode) in families().into_iter().zip(MODES) {
        let job = Job { model, ..job(false) }.in_mode(mode);
        let batch = job.batch(1);
        let mut rank = job.on_cpu();
        // Not the first step, so that there are moments to spoil.
        job.batch(0).step(&mut rank).unwrap();
        for p in params(&rank) {
            // A row of the embedding is read only where the batch has its token.
            let at = if p == ParamId(0) { batch.tokens[0] as usize * model.hidden } else { 0 };
            let healthy = weight(&rank, p.0);
            for poison in [f32::NAN, f32::INFINITY] {
                change(&mut rank, p, |i, x| if i == at { poison } else { x });
                let name = format!("the weight {}", rank.spec().param(p).name);
                assert_eq!(refused(&mut rank, &batch).1, name);
                change(&mut rank, p, |i, _| healthy[i]);
            }
        }
        // Of two, the first in the order of the forward pass.
        for p in [2, 3].map(|back| ParamId(params(&rank).count() - back)) {
            change(&mut rank, p, |_, _| f32::NAN);
            assert_eq!(refused(&mut rank, &batch).1, format!("the weight {}", rank.spec().param(p).name));
        }
    }
}

#[test]
fn a_step_after_a_refused_one_is_as_if_that_had_not_been() {
    for job in in_every_mode() {
        let batches = [job.batch(0), job.batch(1)];
        let want = trace(&mut job.on_cpu(), &batches);
        let mut rank = job.on_cpu();
        let first = trace(&mut rank, &batches[..1]);
        let healthy = weight(&rank, 3);
        change(&mut rank, ParamId(3), |_, _| f32::NAN);
        refused(&mut rank, &batches[1]);
        change(&mut rank, ParamId(3), |i, _| healthy[i]);
        let second = trace(&mut rank, &batches[1..]);
        assert_eq!([first.steps, second.steps].concat(), want.steps);
        assert!(second.state == want.state);
    }
}

#[test]
fn a_loss_that_overflows_is_told_as_a_loss() {
    for job in in_every_mode() {
        let mut rank = job.on_cpu();
        for name in ["model.norm.weight", "lm_head.weight"] {
            let p = param(rank.spec(), name);
            change(&mut rank, p, |_, x| 1e25 * x);
        }
        let (what, tensor) = refused(&mut rank, &job.batch(0));
        assert_eq!(what, "loss");
        assert!(tensor.starts_with("the gradient of "), "{tensor}");
        assert!(!job.batch(0).evaluate(&mut rank).unwrap().is_finite());
    }
}

#[test]
fn an_evaluation_of_a_poisoned_model_is_not_finite() {
    for job in in_every_mode() {
        // One logit of each token is not a number, and it is no target's.
        let mut batch = job.batch(0);
        batch.targets.iter_mut().filter(|t| **t == 0).for_each(|t| *t = 1);
        for poison in [f32::NAN, f32::INFINITY] {
            let mut rank = job.on_cpu();
            let head = param(rank.spec(), "lm_head.weight");
            change(&mut rank, head, |i, x| if i == 0 { poison } else { x });
            let loss = batch.evaluate(&mut rank).unwrap();
            assert!(!loss.is_finite(), "{poison} gives {loss}");
        }
    }
}

#[test]
fn a_master_beyond_bf16_is_a_weight_that_is_not_finite_and_is_told() {
    let job = job(false).with(|s| (s.precision, s.gradients) = (Precision::Bf16, Precision::Bf16));
    let mut rank = job.on_cpu();
    let head = param(rank.spec(), "lm_head.weight");
    let healthy = weight(&rank, head.0);
    // Finite, and infinite once it is rounded.
    change(&mut rank, head, |i, x| if i == 0 { f32::MAX } else { x });
    assert_eq!(refused(&mut rank, &job.batch(0)).0, "loss");
    change(&mut rank, head, |i, _| healthy[i]);
    job.batch(0).step(&mut rank).unwrap();
}

/// A rank whose final norm has a gradient of some thousands, while the loss is finite.
fn steep(deterministic: bool, factor: f32) -> (Rank<Cpu>, Batch) {
    let job = job(deterministic);
    let mut rank = job.on_cpu();
    let head = param(rank.spec(), "lm_head.weight");
    change(&mut rank, head, |_, x| factor * x);
    (rank, job.batch(0))
}

#[test]
fn a_gradient_that_overflows_fixed_point_is_named() {
    let (mut rank, batch) = steep(true, 5e3);
    let (what, tensor) = refused(&mut rank, &batch);
    assert_eq!(what, "gradient");
    assert!(tensor.starts_with("the gradient of "), "{tensor}");
    // The same gradients fit f32, and so the other mode goes on.
    let (mut rank, batch) = steep(false, 5e3);
    assert!(batch.step(&mut rank).unwrap().gradient_norm > 1024.0);
}

#[test]
fn a_finite_gradient_whose_norm_is_too_large_is_named() {
    let (mut rank, batch) = steep(false, 1e9);
    let (what, tensor) = refused(&mut rank, &batch);
    assert_eq!(what, "gradient");
    assert!(tensor.starts_with("the gradient of "), "{tensor}");
}

#[test]
fn a_step_whose_targets_are_all_ignored_has_no_loss_and_no_gradient() {
    for job in in_every_mode() {
        let mut rank = job.on_cpu();
        let mut batch = job.batch(0);
        batch.targets.fill(-1);
        assert_eq!(batch.evaluate(&mut rank).unwrap(), 0.0);
        let report = batch.step(&mut rank).unwrap();
        assert_eq!((report.loss, report.gradient_norm), (0.0, 0.0));
        assert!(params(&rank).all(|p| weight(&rank, p.0).iter().all(|x| x.is_finite())));
        assert!(job.batch(1).step(&mut rank).unwrap().loss > 0.0);
    }
}

#[test]
fn a_rank_is_a_value_and_may_be_sent() {
    fn sent<T: Send>(value: T) -> T {
        value
    }
    let job = job(false);
    let batches = [job.batch(0), job.batch(1)];
    let want = trace(&mut job.on_cpu(), &batches);
    let mut rank = sent(job.on_cpu());
    let first = trace(&mut rank, &batches[..1]);
    let second = batches[1].clone();
    let (mut rank, steps) = std::thread::spawn(move || {
        let steps = trace(&mut rank, &[second]).steps;
        (rank, steps)
    })
    .join()
    .unwrap();
    assert_eq!([first.steps, steps].concat(), want.steps);
    assert!(trace(&mut rank, &[]).state == want.state);
}

#[test]
fn ranks_side_by_side_do_not_disturb_each_other() {
    let run = |seed| {
        let job = Job::small(Settings { seed, ..settings() });
        trace(&mut job.on_cpu(), &[job.batch(0), job.batch(1)])
    };
    let want = [1, 2, 3].map(run);
    let got =
        std::thread::scope(|s| [1, 2, 3].map(|seed| s.spawn(move || run(seed))).map(|t| t.join().unwrap()));
    assert!(got == want);
}

/// A group of one whose collectives fail while `broken`.
struct Flaky(&'static AtomicBool);

impl Group<Cpu> for Flaky {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn axes(&self) -> &[Axis] {
        &[]
    }
    fn start(&self, device: &Cpu, call: Call<Cpu>) -> Result<Pending<Cpu>, CommError> {
        if self.0.load(Ordering::Relaxed) {
            return Err(CommError::new(call.collective(), 0, 1, "unplugged"));
        }
        Solo.start(device, call)
    }
    fn wait(&self, device: &Cpu, pending: Pending<Cpu>) -> Result<Call<Cpu>, CommError> {
        Solo.wait(device, pending)
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn clock(&self) -> Clock {
        Clock::default()
    }
}

#[test]
fn a_collective_that_fails_is_an_error_every_time_and_never_a_panic() {
    static BROKEN: AtomicBool = AtomicBool::new(true);
    let job = job(false);
    let spec = job.spec();
    let mut rank =
        Rank::new(cpu(2), Groups { data: Box::new(Flaky(&BROKEN)), ..Groups::solo() }, spec, job.settings)
            .unwrap();
    rank.initialize();
    let before = state_bits(&rank);
    for _ in 0..2 {
        assert!(matches!(job.batch(0).step(&mut rank), Err(EngineError::Comm(_))));
        assert!(matches!(job.batch(0).evaluate(&mut rank), Err(EngineError::Comm(_))));
    }
    assert!(state_bits(&rank) == before);
}

#[test]
fn a_rank_that_does_not_fit_is_an_error_that_says_what_and_gives_everything_back() {
    let spec = Model::SMALL.spec();
    let description = Description { threads: 1 };
    // Room for a rank's weights, and for little else.
    let budget = description.scratch_bytes() + (64 << 10);
    let device = Cpu::new(description, budget as u64).unwrap();
    let ledger = device.ledger().clone();
    let error = Rank::new(device, Groups::solo(), spec, settings()).err().expect("no room");
    let what = error.out_of_memory().expect("out of memory");
    assert!(what.requested > 0 && what.budget == budget as u64, "{error}");
    assert_eq!(ledger.state().live.total(), 0);
}
