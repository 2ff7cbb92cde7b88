//! What the dry device predicts is what the CPU measures: every block, every offset, every limit.

use super::common::{BUDGET, Job, MODES, Model, cases, families, jobs, settings};
use memwall_comm::{Group, Solo};
use memwall_engine::{EngineError, Keep, Precision, Prediction, Rank, Settings, predict, unit::Head};
use memwall_model::Family;
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, Cpu, Description, Dry, Event, Ledger, LedgerState};
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

/// A rank's whole life: `steps` steps, and after each an evaluation over one batch more than before. Returns what
/// the ledger says at its begin and end.
fn life<D: Device>(device: D, job: &Job, steps: u64, evaluates: bool) -> Result<[LedgerState; 2], EngineError>
where
    Solo: Group<D>,
{
    let mut rank = Rank::new(device, Box::new(Solo), job.model.spec(), job.settings)?;
    rank.initialize();
    let initial = rank.device().ledger().state();
    for k in 0..steps {
        job.batch(k).step(&mut rank)?;
        if evaluates {
            job.with(|s| s.micro_batches = k as usize + 1).batch(!k).evaluate(&mut rank)?;
        }
    }
    Ok([initial, rank.device().ledger().state()])
}

/// The same, with what the ledger saw.
pub fn measure<D: Device>(device: D, job: &Job, steps: u64, evaluates: bool) -> Measured
where
    Solo: Group<D>,
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
    predict(&job.model.spec(), &job.settings, DESCRIPTION, BUDGET, evaluates).unwrap()
}

proptest! {
    #![proptest_config(cases(20))]

    #[test]
    fn predicted_memory_equals_measured(job in jobs(), evaluates: bool) {
        let predicted = prediction(&job, evaluates);
        for steps in [2, 3] {
            let on_cpu = measure(cpu(BUDGET), &job, steps, evaluates);
            let on_dry = measure(dry(BUDGET), &job, steps, evaluates);
            prop_assert_eq!(&on_cpu, &on_dry);
            prop_assert_eq!(on_cpu.initial, predicted.initial);
            prop_assert_eq!(on_cpu.run, predicted.run);
        }
    }

    #[test]
    fn ledger_bytes_are_equal_at_every_step_boundary(job in jobs()) {
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

#[test]
fn every_block_of_every_family_and_mode_is_predicted() {
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

#[test]
fn the_loss_peak_is_proportional_to_the_chunk_not_to_the_sequence() {
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
