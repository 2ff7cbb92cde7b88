//! What the dry device predicts is what the CPU measures: every block, every offset, every limit.

mod common;

use common::jobs::{Job, Sizes, cases, jobs};
use common::{BUDGET, settings};
use memwall_comm::{Group, Solo};
use memwall_engine::{EngineError, Keep, Prediction, Rank, Settings, predict, unit::Head};
use memwall_tensor::device::{Device, Memory};
use memwall_tensor::{Category, Cpu, Description, Dry, Event, Ledger, LedgerState};
use proptest::prelude::*;

const DESCRIPTION: Description = Description { threads: 2 };

/// What a ledger saw of a run.
#[derive(Debug, PartialEq)]
struct Measured {
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
    let mut rank = Rank::new(device, Box::new(Solo), job.sizes.spec(), job.settings)?;
    rank.initialize();
    let initial = rank.device().ledger().state();
    for k in 0..steps {
        job.batch(k).step(&mut rank)?;
        if evaluates {
            let held_out = Settings { micro_batches: k as usize + 1, ..job.settings };
            Job { settings: held_out, ..job.clone() }.batch(!k).evaluate(&mut rank)?;
        }
    }
    Ok([initial, rank.device().ledger().state()])
}

/// The same, with what the ledger saw.
fn measure<D: Device>(device: D, job: &Job, steps: u64, evaluates: bool) -> Measured
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
    predict(&job.sizes.spec(), &job.settings, DESCRIPTION, BUDGET, evaluates).unwrap()
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

    #[test]
    fn peak_memory_does_not_depend_on_the_number_of_micro_batches(job in jobs(), evaluates: bool) {
        let run = |micro_batches| {
            let settings = Settings { micro_batches, ..job.settings };
            prediction(&Job { settings, ..job.clone() }, evaluates).run
        };
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
fn full_recompute_lowers_the_peak() {
    const LAYERS: usize = 12;
    let job = |keep| Job {
        sizes: Sizes { layers: LAYERS, ..Sizes::SMALL },
        settings: Settings { keep, sequence: 64, ..settings() },
    };
    let (all, input) = (job(Keep::ALL), job(Keep::INPUT));
    // What a block keeps a token besides its input: queries and result, keys and values, log-sum-exp, middle,
    // gate and up. One block's worth exists either way, while that block's backward runs.
    let s = Sizes::SMALL;
    let a_token =
        2 * s.heads * s.head_dim + 2 * s.kv_heads * s.head_dim + s.heads + s.hidden + 2 * s.intermediate;
    let saved = ((LAYERS - 1) * a_token * 4 * all.settings.micro_tokens()) as u64;
    let (all, input) = (peak(&all, Category::Activations), peak(&input, Category::Activations));
    assert!(all - input >= saved - saved / 20, "{all} to {input} saves less than {saved}");
    let total = |keep| prediction(&job(keep), false).run.at_peak.total();
    assert!(total(Keep::INPUT) < total(Keep::ALL));
}

#[test]
fn the_loss_peak_is_proportional_to_the_chunk_not_to_the_sequence() {
    let sizes = Sizes { vocabulary: 4099, ..Sizes::SMALL };
    let chunk = Head::chunk(sizes.vocabulary);
    let workspace = |sequence| {
        let settings = Settings { micro_batch: 1, sequence, ..settings() };
        peak(&Job { sizes, settings }, Category::Workspace)
    };
    let (one, many) = (workspace(chunk), workspace(16 * chunk));
    // A token's loss and its row of the rotary table live beside the chunk's logits.
    let a_token = 4 + 4 * sizes.head_dim;
    assert_eq!(many - one, (15 * chunk * a_token) as u64);
    let logits = |tokens: usize| (tokens * sizes.vocabulary * 4) as u64;
    assert!(one > logits(chunk) && many - DESCRIPTION.scratch_bytes() as u64 <= logits(16 * chunk) / 8);
}
