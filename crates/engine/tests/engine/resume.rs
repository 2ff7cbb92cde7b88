//! A run that is repeated, or cut and taken up again, is the same run to the bit.

use super::common::{Job, PARTS, cases, cpu, families, jobs, params, set, settings, trace};
use memwall_engine::{Rank, Settings};
use memwall_tensor::{Cpu, device::Memory};
use proptest::prelude::*;

/// A new rank with all that a checkpoint holds of another: weights (masters where there are), moments, and the number
/// of steps done.
fn restarted(job: &Job, from: &Rank<Cpu>) -> Rank<Cpu> {
    let mut rank = super::common::rank_on(cpu(3), from.spec(), job.settings);
    for p in params(from) {
        for part in PARTS {
            set(&mut rank, part, p, &from.device().read_f32(from.part(part, p)));
        }
    }
    rank.set_steps_done(from.steps_done());
    rank
}

/// Whether four steps, cut after `cut` of them, are four steps.
fn goes_on(job: &Job, cut: usize) -> bool {
    let batches = [0, 1, 2, 3].map(|k| job.batch(k));
    let want = trace(&mut job.on_cpu(), &batches);
    let mut before = job.on_cpu();
    let first = trace(&mut before, &batches[..cut]);
    let mut after = restarted(job, &before);
    let second = trace(&mut after, &batches[cut..]);
    [first.steps, second.steps].concat() == want.steps && second.state == want.state
}

proptest! {
    #![proptest_config(cases(12))]

    /// ms-swift pull request 9935, OpenTau issue 185: restored random states were overwritten, masters rebuilt from
    /// bf16.
    #[test]
    fn a_rank_rebuilt_from_its_state_goes_on_to_the_bit(job in jobs(), cut in 0usize..=4) {
        prop_assert!(goes_on(&job, cut));
    }

    /// Megatron-LM issue 2369: deterministic mode was not.
    #[test]
    fn mg_2369_a_repeated_run_is_the_same_to_the_bit(job in jobs()) {
        let batches = [0, 1, 2].map(|k| job.batch(k));
        let want = trace(&mut job.on_cpu(), &batches);
        prop_assert!(trace(&mut job.on_cpu(), &batches) == want);
        // Other work on the same device before it does not matter.
        let mut used = job.on_cpu();
        let state = restarted(&job, &used);
        trace(&mut used, &batches[1..]);
        for p in params(&used) {
            for part in PARTS {
                set(&mut used, part, p, &state.device().read_f32(state.part(part, p)));
            }
        }
        used.set_steps_done(0);
        prop_assert!(trace(&mut used, &batches) == want);
    }
}

#[test]
fn ms_swift_pr_9935_dropout_masks_are_equal_after_a_resume() {
    for model in families() {
        for mode in super::common::MODES {
            let job =
                Job::new(model.dropping([0.2; 3]), Settings { micro_batches: 2, ..settings() }).in_mode(mode);
            assert!(goes_on(&job, 2), "{job:?}");
        }
    }
}
