//! What the dry device predicts is what the CPU measures: every block, every offset, every limit.

use super::common::{BUDGET, Job, MODES, Model, cases, families, frozen_jobs, jobs, settings};
use memwall_comm::Groups;
use memwall_engine::{
    EngineError, Keep, Place, Precision, Prediction, Rank, Settings, predict, predict_by_running, unit::Head,
};
use memwall_model::Family;
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, Change, Cpu, Description, Dry, Event, Ledger, LedgerState, Phase};
use proptest::prelude::*;

const DESCRIPTION: Description = Description { threads: 2 };

/// What a ledger saw of a run.
#[derive(Debug, PartialEq)]
pub struct Measured {
    /// After the rank was made.
    initial: LedgerState,
    /// After its last step or evaluation.
    run: LedgerState,
    /// Every block in between, the rank's own included.
    events: Vec<Event>,
}

/// A rank's whole life: `steps` steps, after each an evaluation over one batch more than before, and a checkpoint.
/// Returns what the ledger says at its begin and end.
fn life<D: Device>(device: D, job: &Job, steps: u64, evaluates: bool) -> Result<[LedgerState; 2], EngineError>
where
    D::Buf: Send,
{
    let mut rank = Rank::new(device, Groups::solo(), job.spec(), job.settings)?;
    rank.initialize();
    let initial = rank.device().ledger().state();
    for k in 0..steps {
        job.batch(k).step(&mut rank)?;
        if evaluates {
            job.with(|s| s.micro_batches = k as usize + 1).batch(!k).evaluate(&mut rank)?;
        }
    }
    rank.begin_checkpoint();
    Ok([initial, rank.device().ledger().state()])
}

/// The same, with what the ledger saw.
pub fn measure<D: Device>(device: D, job: &Job, steps: u64, evaluates: bool) -> Measured
where
    D::Buf: Send,
{
    // The account outlives the device, and so sees the last block given back.
    let ledger: Ledger = device.ledger().clone();
    ledger.record();
    let [initial, run] = life(device, job, steps, evaluates).unwrap();
    assert_eq!(ledger.state().live.total(), 0, "blocks outlive their device");
    Measured { initial, run, events: ledger.recorded() }
}

fn cpu(budget: u64) -> Cpu {
    Cpu::new(DESCRIPTION, budget).unwrap()
}

fn dry(budget: u64) -> Dry {
    Dry::new(DESCRIPTION, budget).unwrap()
}

fn prediction(job: &Job, evaluates: bool) -> Prediction {
    predict(&job.spec(), &job.settings, Place::SINGLE, DESCRIPTION, BUDGET, evaluates).unwrap()
}

/// The events of such a life as they are predicted, up to the rank's end.
fn expected(p: &Prediction, job: &Job, steps: usize, evaluates: bool) -> Vec<Event> {
    let mut events = p.events.init.to_vec();
    for k in 0..steps {
        (0..job.settings.micro_batches).for_each(|_| events.extend_from_slice(&p.events.micro_batch));
        (0..=k).filter(|_| evaluates).for_each(|_| events.extend_from_slice(&p.events.evaluation));
    }
    events
}

proptest! {
    #![proptest_config(cases(20))]

    #[test]
    fn predicted_memory_equals_measured(job in frozen_jobs(), evaluates: bool) {
        let predicted = prediction(&job, evaluates);
        for steps in [2, 3] {
            let on_cpu = measure(cpu(BUDGET), &job, steps, evaluates);
            let on_dry = measure(dry(BUDGET), &job, steps, evaluates);
            prop_assert_eq!(&on_cpu, &on_dry);
            prop_assert_eq!(on_cpu.initial, predicted.initial);
            prop_assert_eq!(on_cpu.run, predicted.run);
            let expected = expected(&predicted, &job, steps as usize, evaluates);
            let (life, end) = on_cpu.events.split_at(expected.len());
            let difference = life.iter().zip(&expected).position(|(a, b)| a != b);
            prop_assert_eq!(difference.map(|at| (life[at], expected[at])), None);
            // What is left is the rank's own, which it gives back.
            prop_assert!(end.iter().all(|e| e.change == Change::GiveBack));
        }
    }

    #[test]
    fn a_prediction_composed_of_units_equals_one_that_ran_them_all(
        job in frozen_jobs(), layers in 1usize..12, full_layers in 0usize..12, evaluates: bool, fits: bool, share in 0.0..1.0,
    ) {
        let model = Model { layers, full_layers, ..job.model }.checked();
        let job = Job { model, ..job };
        let spec = job.spec();
        let whole = prediction(&job, evaluates);
        prop_assert_eq!(&predict_by_running(&spec, &job.settings, Place::SINGLE, DESCRIPTION, BUDGET, evaluates).unwrap(), &whole);
        // Budgets that are too small are refused alike: where, for what, and with how much alive.
        let budget = (whole.run.reserved as f64 * if fits { 1.0 } else { share }) as u64;
        prop_assert_eq!(
            predict(&spec, &job.settings, Place::SINGLE, DESCRIPTION, budget, evaluates),
            predict_by_running(&spec, &job.settings, Place::SINGLE, DESCRIPTION, budget, evaluates)
        );
    }

    #[test]
    fn the_blocks_alive_at_the_peak_are_what_the_ledger_counts_there(job in jobs(), evaluates: bool) {
        let p = prediction(&job, evaluates);
        let alive = p.alive_at_peak();
        for (category, bytes) in p.run.at_peak.iter() {
            let of_category = alive.iter().filter(|a| a.block.category == category);
            let sum: u64 = of_category.map(|a| memwall_tensor::Arena::rounded(a.block.bytes)).sum();
            prop_assert_eq!(sum, bytes, "{:?}", category);
        }
        prop_assert!(alive.is_sorted_by(|a, b| a.block.bytes >= b.block.bytes));
        // It came to be with the block that was taken last, at the moment that the ledger names.
        prop_assert!(alive.iter().any(|a| a.since == p.run.peak));
        for phase in Phase::ALL {
            prop_assert_eq!(p.run.at_peak_in(phase).is_some(), evaluates || phase != Phase::Evaluation);
        }
    }

    /// burn issue 4792, candle issue 1241: device memory grew with each step.
    #[test]
    fn burn_4792_ledger_bytes_are_equal_at_every_step_boundary(job in jobs()) {
        let mut rank = job.on_cpu();
        let start = rank.device().ledger().state().live;
        for k in 0..3 {
            let batch = job.batch(k);
            prop_assert_eq!(batch.step(&mut rank).unwrap().live, start);
            batch.evaluate(&mut rank).unwrap();
            prop_assert_eq!(rank.device().ledger().state().live, start);
        }
    }

    /// torchtune pull request 1917: every micro-batch's activations were kept alive.
    #[test]
    fn torchtune_pr_1917_peak_memory_does_not_depend_on_accumulation_steps(job in jobs(), evaluates: bool) {
        let run = |micro_batches| prediction(&job.with(|s| s.micro_batches = micro_batches), evaluates).run;
        let one = run(1);
        for n in [2, 3, 17] {
            prop_assert_eq!(run(n), one);
        }
    }

    #[test]
    fn the_budget_is_enforced(job in jobs(), evaluates: bool) {
        let budget = prediction(&job, evaluates).run.reserved;
        prop_assert_eq!(measure(cpu(budget), &job, 2, evaluates).run.reserved, budget);
        // One cache line less: both devices refuse the same block, for the same reason.
        let short = budget - 64;
        let refused = |e: Result<_, EngineError>| e.unwrap_err().out_of_memory().cloned().expect("out of memory");
        let (on_cpu, on_dry) = (cpu(short), dry(short));
        let ledgers = [on_cpu.ledger().clone(), on_dry.ledger().clone()];
        ledgers.iter().for_each(Ledger::record);
        let cpu = refused(life(on_cpu, &job, 2, evaluates));
        prop_assert_eq!(&cpu, &refused(life(on_dry, &job, 2, evaluates)));
        let [a, b] = ledgers.map(|l| l.recorded());
        prop_assert_eq!(a, b);
        prop_assert!(cpu.largest_hole < cpu.requested.next_multiple_of(64) && cpu.budget == short);
    }

    #[test]
    fn a_step_that_does_not_fit_names_its_unit_and_gives_back_what_it_took(job in jobs()) {
        let mut rank = job.rank(cpu(prediction(&job, false).run.reserved - 64));
        let start = rank.device().ledger().state().live;
        let error = (0..2).find_map(|k| job.batch(k).step(&mut rank).err()).expect("it does not fit");
        prop_assert!(matches!(error, EngineError::InUnit { .. }) && error.out_of_memory().is_some(), "{error}");
        prop_assert_eq!(rank.device().ledger().state().live, start);
    }
}

/// The highest that a category has been.
fn peak(job: &Job, category: Category) -> u64 {
    prediction(job, false).run.peak_of_each[category]
}

/// DeepSpeed issue 5102: some paths had no estimate, and half precision alone was meant.
#[test]
fn ds_5102_every_block_of_every_family_and_mode_is_predicted() {
    for model in families() {
        for (mode, keep) in MODES.into_iter().zip([Keep::ALL, Keep::INPUT].into_iter().cycle()) {
            let settings = Settings { micro_batches: 2, keep, ..settings() };
            let job =
                Job { packed: true, ..Job::new(model.dropping([0.1, 0.2, 0.3]), settings).in_mode(mode) };
            let [on_cpu, on_dry] = [measure(cpu(BUDGET), &job, 2, true), measure(dry(BUDGET), &job, 2, true)];
            assert_eq!(on_cpu, on_dry, "{job:?}");
            assert_eq!(on_cpu.run, prediction(&job, true).run, "{job:?}");
        }
    }
}

#[test]
fn a_parameter_costs_what_its_types_say() {
    let state = [Category::Weights, Category::MasterWeights, Category::Gradients, Category::OptimizerState];
    for family in Family::ALL {
        // Units of many elements, so that what rounds them up to whole blocks is little.
        let model = Model { hidden: 96, intermediate: 300, vocabulary: 1000, ..Model::of(family) };
        let model = Model { heads: 8, head_dim: 12, ..model }.checked();
        // Bytes of weight, master, gradient, and two moments.
        let bytes = [4 + 4 + 8, 4 + 2 + 8, 4 + 8 + 8, 2 + 4 + 4 + 8, 2 + 4 + 2 + 8, 2 + 4 + 8 + 8];
        for (mode, bytes) in MODES.into_iter().zip(bytes) {
            let ledger = prediction(&Job::new(model, settings()).in_mode(mode), false).run;
            let spent: u64 = state.iter().map(|c| ledger.live[*c]).sum();
            let a_parameter = spent as f64 / model.spec().parameter_count() as f64;
            let bytes = f64::from(bytes);
            assert!(
                (bytes..1.02 * bytes).contains(&a_parameter),
                "{a_parameter} for {bytes}, {family:?} {mode:?}"
            );
        }
    }
}

/// Bytes that a block keeps a token besides its input: queries and result, keys and values, log-sum-exp, middle, and
/// the MLP's inner projections.
fn kept_a_token(m: &Model, element: usize) -> usize {
    let inner = if m.family == Family::Gpt2 { 1 } else { 2 };
    let elements = 2 * (m.heads + m.kv_heads) * m.head_dim + m.hidden + inner * m.intermediate;
    elements * element + m.heads * 4
}

/// DeepSpeed issue 4527: 0.49 GB were predicted, and each phase of the run took more than the one before.
#[test]
fn ds_4527_every_phase_has_a_figure_and_a_run_measures_it() {
    for model in families() {
        for (mode, keep) in MODES.into_iter().zip([Keep::ALL, Keep::INPUT].into_iter().cycle()) {
            let job = Job::new(model, Settings { keep, ..settings() }).in_mode(mode);
            let (p, on_cpu) = (prediction(&job, true).run, measure(cpu(BUDGET), &job, 1, true).run);
            let figures = |s: &LedgerState| Phase::ALL.map(|phase| s.at_peak_in(phase).unwrap().total());
            assert_eq!(figures(&p), figures(&on_cpu), "{job:?}");
            let [init, forward, backward, optimizer, evaluation, checkpoint] = figures(&p);
            assert!(init < forward && forward < backward && init < evaluation, "{job:?}");
            assert_eq!((optimizer, checkpoint, backward), (init, init, p.at_peak.total()), "{job:?}");
        }
    }
}

/// DeepSpeed issue 4093: 0.77 GB were estimated, 13 GB were taken: all but states had been left out.
#[test]
fn ds_4093_the_prediction_covers_activations_scratch_and_data() {
    let p = prediction(&Job::small(settings()), false);
    let states = [Category::Weights, Category::Gradients, Category::OptimizerState];
    for category in states.into_iter().chain([Category::Activations, Category::Data, Category::Communication])
    {
        assert!(p.run.at_peak[category] > 0, "{category:?}");
    }
    // The kernels' own space, the loss, the rotary table.
    assert!(p.run.at_peak[Category::Workspace] > DESCRIPTION.scratch_bytes() as u64);
}

/// candle issue 1241: saved tensors of a small model exhausted the machine.
#[test]
fn candle_1241_saved_bytes_equal_the_formula() {
    for model in families() {
        // Every tensor fills whole cache lines.
        let model =
            Model { hidden: 64, heads: 4, kv_heads: 4, head_dim: 16, intermediate: 96, layers: 5, ..model };
        for (precision, element) in [(Precision::F32, 4), (Precision::Bf16, 2)] {
            for keep in [Keep::ALL, Keep::INPUT] {
                let job = Job::new(model, Settings { precision, keep, ..settings() });
                let p = prediction(&job, false);
                let mut live = 0;
                for e in p.events.micro_batch.iter().take_while(|e| e.moment.phase == Phase::Forward) {
                    let bytes = e.block.bytes * u64::from(e.block.category == Category::Activations);
                    live = if e.change == Change::Take { live + bytes } else { live - bytes };
                }
                let stream = model.hidden * element;
                let kept = if keep == Keep::ALL { kept_a_token(&model, element) } else { 0 };
                let a_token = model.layers * (stream + kept) + stream;
                assert_eq!(live, (a_token * job.settings.micro_tokens()) as u64, "{job:?}");
            }
        }
    }
}

#[test]
fn full_recompute_lowers_the_peak() {
    const LAYERS: usize = 12;
    for model in families() {
        for (precision, element) in [(Precision::F32, 4), (Precision::Bf16, 2)] {
            let model = Model { layers: LAYERS, ..model };
            let settings = Settings { precision, sequence: 64, ..settings() };
            let job = |keep| Job::new(model, Settings { keep, ..settings });
            let peak_of = |keep| peak(&job(keep), Category::Activations);
            let (all, input) = (peak_of(Keep::ALL), peak_of(Keep::INPUT));
            // One block's worth exists either way, while that block's backward runs.
            let a_block = (kept_a_token(&model, element) * settings.micro_tokens()) as u64;
            let saved = (LAYERS as u64 - 1) * a_block;
            assert!(all - input >= saved - saved / 20, "{all} to {input} saves less than {saved}");
            assert!(all - input <= saved + a_block, "{all} to {input} saves more than is kept");
            let total = |keep| prediction(&job(keep), false).run.at_peak.total();
            assert!(total(Keep::INPUT) < total(Keep::ALL));
        }
    }
}

/// NeMo Automodel issue 3907: the whole logits existed for the loss.
#[test]
fn automodel_3907_the_loss_peak_is_proportional_to_the_chunk_not_to_the_sequence() {
    let model = Model { vocabulary: 4099, ..Model::SMALL };
    let chunk = Head::chunk(model.vocabulary);
    for precision in [Precision::F32, Precision::Bf16] {
        let workspace = |sequence| {
            let settings = Settings { micro_batch: 1, sequence, precision, ..settings() };
            peak(&Job::new(model, settings), Category::Workspace)
        };
        let (one, many) = (workspace(chunk), workspace(16 * chunk));
        // A token's loss and its row of the rotary table live beside the chunk's logits.
        let a_token = 4 + 4 * model.head_dim;
        assert_eq!(many - one, (15 * chunk * a_token) as u64);
        let logits = |tokens: usize| (tokens * model.vocabulary * 4) as u64;
        assert!(one > logits(chunk) && many - DESCRIPTION.scratch_bytes() as u64 <= logits(16 * chunk) / 8);
    }
}
