//! A layout changes what a step costs, never what it computes: ranks against one device, for gradients, losses and states.

use super::common::{
    BUDGET, FROZEN, Hook, Job, Layout, MODES, Model, Outcome, REORDERED, cases, change, families,
    frozen_jobs, near, params, settings, train_share, wrapped,
};
use memwall_comm::{Call, CommError, Group, Groups, Pending};
use memwall_engine::{EngineError, Part, Place, Settings, Zero, predict, predict_by_running};
use memwall_layout::Mesh;
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, Description, Event};
use proptest::prelude::*;

const DESCRIPTION: Description = Description { threads: 1 };

/// Every bit of an outcome.
fn bits(o: &Outcome) -> (Vec<u64>, Vec<u32>) {
    let all = o.state.iter().flatten().chain(&o.gradients).flatten();
    (o.steps.iter().flatten().map(|x| x.to_bits()).collect(), all.map(|x| x.to_bits()).collect())
}

fn batches(job: &Job, n: u64) -> Vec<super::common::Batch> {
    (0..n).map(|k| job.batch(k)).collect()
}

/// The small model, deterministic, clipped, over as many micro-batches as all the numbers of ranks divide.
fn deterministic(model: Model) -> Job {
    let settings =
        Settings { deterministic: true, micro_batch: 1, micro_batches: 24, clip: Some(0.4), ..settings() };
    Job { packed: true, ..Job::new(model.dropping([0.1, 0.2, 0.1]), settings) }
}

/// torchtitan issues 1842, 596, 766 and 3106, torchtune issue 2420, Megatron issue 2369, burn pull request 3581: losses,
/// norms, gradients and dropout that depend on how many ranks there are; here under clipping, with unequal numbers of valid
/// tokens on the ranks, over tens of steps.
#[test]
fn tt_1842_tt_596_tt_3106_torchtune_2420_mg_2369_burn_pr_3581_no_bit_depends_on_the_layout() {
    let job = deterministic(Model { vocabulary: 31, ..Model::SMALL });
    let batches = batches(&job, 20);
    let want = bits(&Layout::SINGLE.train(&job, &batches));
    for ranks in [2, 3, 4, 8] {
        for layout in Layout::of(ranks) {
            assert!(bits(&layout.train(&job, &batches)) == want, "{layout:?}");
        }
    }
}

/// accelerate pull request 4171: tied parameters broke under sharding.
#[test]
fn ac_pr_4171_every_family_tied_and_untied_trains_alike_in_every_layout() {
    for model in families() {
        for tied in [false, true] {
            let job = deterministic(Model { tied, ..model }).with(|s| s.micro_batches = 4);
            let batches = batches(&job, 2);
            let want = bits(&Layout::SINGLE.train(&job, &batches));
            for layout in Layout::of(4).into_iter().chain(Layout::of(2)) {
                assert!(bits(&layout.train(&job, &batches)) == want, "{layout:?} {model:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn without_exact_sums_layouts_differ_by_rounding_alone(job in frozen_jobs(), ranks in 2usize..=4, per_rank in 1usize..=2) {
        let job = job.with(|s| s.micro_batches = ranks * per_rank);
        let batches = [job.batch(0)];
        let want = Layout::SINGLE.train(&job, &batches);
        for layout in Layout::of(ranks) {
            let got = layout.train(&job, &batches);
            // Gradients that are kept in bf16 are rounded for each rank, as they are for each micro-batch.
            let low = job.settings.gradients == memwall_engine::Precision::Bf16 && !job.settings.deterministic;
            if !low {
                near(&got.gradients, &want.gradients).map_err(TestCaseError::fail)?;
                for (a, b) in got.steps[0].iter().zip(&want.steps[0]).take(2) {
                    prop_assert!((a - b).abs() <= 2.0 * REORDERED * b.abs(), "{} {} {:?}", a, b, layout);
                }
            } else {
                prop_assert!((got.steps[0][0] - want.steps[0][0]).abs() <= REORDERED * want.steps[0][0].abs());
                prop_assert!((got.steps[0][1] / want.steps[0][1] - 1.0).abs() < 0.02, "{:?}", layout);
            }
        }
    }

    /// DeepSpeed issue 5102: paths without an estimate.
    #[test]
    fn ds_5102_every_rank_takes_the_memory_and_gets_the_bytes_that_were_predicted(
        job in frozen_jobs(), ranks in 1usize..=4, which in any::<prop::sample::Index>(), layers in 1usize..6,
    ) {
        let model = Model { layers, ..job.model }.checked();
        let job = Job { model, ..job }.with(|s| s.micro_batches = ranks * 2);
        let layouts = Layout::of(ranks);
        let layout = layouts[which.index(layouts.len())];
        let batches = batches(&job, 2);
        let ran = layout.on_ranks(&job, |groups| groups, |rank| {
            // Masters that were just initialized are rounded, and gathered where every rank holds all weights.
            rank.compare_state()?;
            let ledger = rank.device().ledger().clone();
            let initial = ledger.state();
            ledger.record();
            let before = rank.groups().traffic();
            batches[0].step_of(rank)?;
            let after = rank.groups().traffic();
            let step: Vec<Event> = ledger.recorded();
            batches[1].evaluate_of(rank)?;
            batches[1].step_of(rank)?;
            rank.begin_checkpoint();
            Ok((initial, ledger.state(), step, [0, 1, 2].map(|g| after[g] - before[g])))
        });
        for (place, ran) in layout.places().zip(ran) {
            let (initial, run, step, traffic) = ran.unwrap();
            let p = predict(&job.spec(), &layout.settings(&job), place, DESCRIPTION, BUDGET, true).unwrap();
            prop_assert_eq!(p.step_traffic, traffic, "{:?}", place);
            let expected: Vec<Event> = (0..2).flat_map(|_| p.events.micro_batch.to_vec()).collect();
            prop_assert_eq!(step.iter().zip(&expected).position(|(a, b)| a != b), None);
            prop_assert_eq!(step.len(), expected.len());
            prop_assert_eq!(initial, p.initial);
            prop_assert_eq!(run, p.run);
            let long = predict_by_running(&job.spec(), &layout.settings(&job), place, DESCRIPTION, BUDGET, true);
            prop_assert_eq!(long.unwrap(), p);
        }
    }
}

/// llm-foundry issue 414: sharding demanded that all parameters of a unit train.
#[test]
fn llm_foundry_414_frozen_parameters_stay_as_they_are_and_the_rest_trains_alike_in_every_layout() {
    for frozen in FROZEN {
        for (tied, mode) in [(false, MODES[2]), (true, MODES[2]), (true, MODES[5])] {
            let job = deterministic(Model::SMALL.tied(tied)).with(|s| s.micro_batches = 4).in_mode(mode);
            let job = Job { frozen, ..job };
            let batches = batches(&job, 3);
            let one = Layout::SINGLE.train(&job, &batches);
            let first = job.on_cpu();
            for (p, weights) in params(&first).zip(&one.state[0]) {
                let before = first.device().read_f32(first.part(Part::Weight, p));
                assert_eq!(before == *weights, job.spec().param(p).frozen, "{frozen:?} {p:?}");
            }
            for layout in Layout::of(4).into_iter().chain(Layout::of(2)) {
                assert!(bits(&layout.train(&job, &batches)) == bits(&one), "{layout:?} {frozen:?} {mode:?}");
            }
        }
    }
}

#[test]
fn what_is_frozen_costs_its_weights_alone() {
    use memwall_tensor::Category;
    let job = Job::new(Model { hidden: 64, intermediate: 96, ..Model::SMALL }.checked(), settings());
    let live = |frozen| {
        let job = Job { frozen, ..job };
        predict(&job.spec(), &job.settings, Place::SINGLE, DESCRIPTION, BUDGET, false).unwrap()
    };
    let (all, some) = (live(super::common::Frozen::Nothing), live(super::common::Frozen::FirstUnits));
    assert!(some.initial.live[Category::Gradients] * 3 < all.initial.live[Category::Gradients]);
    assert!(some.initial.live[Category::OptimizerState] * 3 < all.initial.live[Category::OptimizerState]);
    assert!(some.initial.live[Category::Weights].abs_diff(all.initial.live[Category::Weights]) < 1 << 15);
    assert!(some.step_flops.matmul < all.step_flops.matmul);
}

#[test]
fn every_mode_trains_alike_on_ranks_where_sums_are_exact() {
    for mode in MODES.into_iter().filter(|m| m.2) {
        let job = deterministic(Model::SMALL).with(|s| s.micro_batches = 4).in_mode(mode);
        let batches = batches(&job, 3);
        let want = bits(&Layout::SINGLE.train(&job, &batches));
        for layout in Layout::of(4) {
            assert!(bits(&layout.train(&job, &batches)) == want, "{layout:?} {mode:?}");
        }
    }
}

/// DeepSpeed issue 4093: the estimate was the same on two devices and on four.
#[test]
fn ds_4093_what_is_sharded_halves_from_two_to_four_ranks() {
    use memwall_tensor::Category;
    let model = Model {
        hidden: 64,
        intermediate: 192,
        vocabulary: 4096,
        heads: 4,
        head_dim: 16,
        kv_heads: 4,
        ..Model::SMALL
    };
    let spec = model.checked().spec();
    let live = |zero, dp_shard| {
        let place = Place { mesh: Mesh::data_parallel(1, dp_shard), rank: 0 };
        let settings = Settings { zero, ..settings() };
        predict(&spec, &settings, place, DESCRIPTION, 1 << 40, false).unwrap().initial.live
    };
    let sharded = [
        (Zero::One, vec![Category::OptimizerState]),
        (Zero::Two, vec![Category::OptimizerState, Category::Gradients]),
        (Zero::Three, vec![Category::OptimizerState, Category::Gradients, Category::Weights]),
    ];
    for (zero, categories) in sharded {
        let (whole, two, four) = (live(Zero::None, 1), live(zero, 2), live(zero, 4));
        for category in categories {
            // Padding to whole blocks for each rank is all that keeps it from being exact.
            let slack = (spec.units.len() * 4 * 1024 * 8) as u64;
            assert!(two[category].abs_diff(whole[category] / 2) <= slack, "{zero:?} {category:?}");
            assert!(four[category].abs_diff(whole[category] / 4) <= slack, "{zero:?} {category:?}");
        }
    }
}

/// torchtitan issue 166: data-parallel ranks started from different weights, and the loss still fell.
#[test]
fn tt_166_state_that_ranks_must_have_in_common_is_compared() {
    let job = deterministic(Model::SMALL).with(|s| s.micro_batches = 4);
    for layout in Layout::of(4) {
        let apart = layout.on_ranks(
            &job,
            |groups| groups,
            |rank| {
                rank.compare_state()?;
                if rank.groups().rank == 2 {
                    let unit = rank.spec().units[2].params.clone();
                    let p = unit.into_iter().find(|p| !rank.held(Part::Weight, *p).is_empty()).unwrap();
                    change(rank, p, |i, x| if i == 0 { x + 1e-6 } else { x });
                }
                rank.compare_state()
            },
        );
        let shared = layout.zero != Zero::Three || layout.dp_replicate > 1;
        // Of what one rank alone holds there is nothing to compare.
        for (rank, outcome) in apart.iter().enumerate() {
            // Parts are compared among those who hold the same one.
            let compares =
                shared && (layout.zero != Zero::Three || rank % layout.dp_shard == 2 % layout.dp_shard);
            match outcome {
                Err(EngineError::Apart { unit, .. }) => assert!(compares && *unit == 2, "{layout:?}"),
                Ok(()) => assert!(!compares, "{layout:?}"),
                // Others stop since these have failed.
                Err(EngineError::Comm(_)) => {}
                Err(other) => panic!("{layout:?}: {other}"),
            }
        }
        assert!(!shared || apart.iter().any(|o| matches!(o, Err(EngineError::Apart { .. }))), "{layout:?}");
    }
}

#[test]
fn ranks_agree_to_stop_and_tell_each_other_their_numbers() {
    let job = deterministic(Model::SMALL).with(|s| s.micro_batches = 3);
    let layout = Layout { dp_replicate: 1, dp_shard: 3, zero: Zero::Two };
    let said = layout.on_ranks(
        &job,
        |groups| groups,
        |rank| {
            let number = rank.groups().rank as u64;
            let numbers = rank.gather_statistics(std::array::from_fn(|i| 10 * number + i as u64))?;
            Ok((numbers, rank.agree(false)?, rank.agree(number == 1)?))
        },
    );
    for said in said {
        let (numbers, nobody, somebody) = said.unwrap();
        assert_eq!(numbers.len(), 3);
        assert!(numbers.iter().enumerate().all(|(rank, n)| n[3] == 10 * rank as u64 + 3));
        assert!(!nobody && somebody);
    }
}

/// torchtitan issue 1750, PyTorch issue 168058: the same seed gave other initial weights in another layout.
#[test]
fn tt_1750_initial_values_are_those_of_one_device_in_every_layout() {
    let job = deterministic(Model::SMALL).with(|s| s.micro_batches = 4);
    let whole = job.on_cpu();
    for layout in Layout::of(4) {
        let ranks = layout.on_ranks(
            &job,
            |groups| groups,
            |rank| {
                let pieces = params(rank).map(|p| {
                    (rank.held(Part::Weight, p), rank.device().read_f32(rank.part(Part::Weight, p)))
                });
                Ok(pieces.collect::<Vec<_>>())
            },
        );
        for pieces in ranks {
            for (p, (held, values)) in params(&whole).zip(pieces.unwrap()) {
                let all = whole.device().read_f32(whole.part(Part::Weight, p));
                assert_eq!(values, all[held], "{layout:?}");
            }
        }
    }
}

/// torchtitan issue 951: one bad weight makes everything bad; of what ranks share, one of them holds it.
#[test]
fn tt_951_every_rank_names_the_tensor_that_one_of_them_holds() {
    let job = deterministic(Model::SMALL).with(|s| s.micro_batches = 4);
    let (batch, mut poisoned) = (job.batch(0), 0);
    for layout in Layout::of(4) {
        for bad in [0, 1, 2, 3] {
            let said = layout.on_ranks(
                &job,
                |groups| groups,
                |rank| {
                    // The last that this rank holds of any, on one rank, or on all replicas of what it holds. Of small units the
                    // last part may be padding alone.
                    let all: Vec<_> = params(rank).collect();
                    let last = all.into_iter().rev().find(|p| !rank.owned(*p).is_empty());
                    let mine = layout.dp_shard == 1 || rank.groups().shard.rank() == bad % layout.dp_shard;
                    let Some(last) = last.filter(|_| mine) else {
                        return Ok((None, batch.step_of(rank).err().map(|e| e.to_string())));
                    };
                    let at = rank.owned(last).start - rank.held(Part::Weight, last).start;
                    change(rank, last, |i, x| if i == at { f32::NAN } else { x });
                    let name = rank.spec().param(last).name.clone();
                    Ok((Some(name), batch.step_of(rank).err().map(|e| e.to_string())))
                },
            );
            let said: Vec<_> = said.into_iter().map(Result::unwrap).collect();
            let Some(name) = said.iter().find_map(|(name, _)| name.clone()) else { continue };
            poisoned += 1;
            let named =
                |e: &Option<String>| e.as_ref().is_some_and(|e| e.contains(&format!("the weight {name}")));
            assert!(said.iter().all(|(_, e)| named(e)), "{layout:?}: {said:?}");
        }
    }
    assert!(poisoned > 12, "{poisoned}");
}

/// Delays that differ from rank to rank.
struct Slow {
    rank: u64,
    count: std::sync::atomic::AtomicU64,
}

impl Slow {
    fn think(&self) {
        let number = self.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let micros = memwall_tensor::math::random_u64(self.rank, number) % 400;
        std::thread::sleep(std::time::Duration::from_micros(micros));
    }
}

impl Hook for Slow {
    fn start(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        call: Call<Cpu>,
    ) -> Result<Pending<Cpu>, CommError> {
        self.think();
        group.start(device, call)
    }

    fn wait(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        pending: Pending<Cpu>,
    ) -> Result<Call<Cpu>, CommError> {
        self.think();
        group.wait(device, pending)
    }
}

/// PiPPy pull request 1088: a slow rank broke the order of things.
#[test]
fn pippy_pr_1088_random_delays_of_each_rank_change_nothing() {
    let job = deterministic(Model::SMALL).with(|s| s.micro_batches = 8);
    let batches = batches(&job, 4);
    let want = bits(&Layout::SINGLE.train(&job, &batches));
    for layout in Layout::of(4) {
        let wrap = |groups: Groups<Cpu>| {
            let slow = Slow { rank: groups.rank as u64, count: Default::default() };
            wrapped(groups, &std::sync::Arc::new(slow))
        };
        let ranks = layout.on_ranks(&job, wrap, |rank| train_share(rank, &batches, true));
        let outcome = Layout::if_together(&job, ranks.into_iter().map(Result::unwrap).collect()).unwrap();
        assert!(bits(&outcome) == want, "{layout:?}");
    }
}
