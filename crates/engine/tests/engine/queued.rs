//! Operations that are carried out later, on queues, change nothing: the CPU's bits, its account, and no fault.

use super::common::{BUDGET, Job, MODES, cases, cpu, families, jobs, settings, trace};
use super::predicted::measure;
use memwall_engine::{Generator, Keep, Precision, Settings};
use memwall_tensor::Description;
use memwall_tensor::queued::Queued;
use proptest::prelude::*;

fn queued(seed: u64) -> Queued {
    Queued::new(Description { threads: 2 }, BUDGET, seed).unwrap()
}

/// Some steps leave the CPU's bits behind, and no fault; then the account, block by block.
fn check(job: &Job, seed: u64) {
    let batches = [0, 1, 2].map(|k| job.batch(k));
    let device = queued(seed);
    let on_queues = trace(&mut job.rank(device.clone()), &batches);
    assert_eq!(device.faults(), [], "{job:?}");
    assert!(on_queues == trace(&mut job.on_cpu(), &batches), "{job:?}");
    assert_eq!(measure(queued(!seed), job, 2, true), measure(cpu(2), job, 2, true), "{job:?}");
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn operations_that_come_later_change_no_bit_and_no_block(job in jobs(), seed: u64) {
        check(&job, seed);
    }

    #[test]
    fn a_step_waits_for_the_device_once_at_its_end(job in jobs(), seed: u64) {
        let device = queued(seed);
        let mut rank = job.rank(device.clone());
        for k in 0..3 {
            let before = device.waits();
            job.batch(k).step(&mut rank).unwrap();
            prop_assert_eq!(device.waits(), before + 1);
            job.batch(!k).evaluate(&mut rank).unwrap();
            prop_assert_eq!(device.waits(), before + 2);
        }
    }
}

#[test]
fn operations_that_come_later_change_no_bit_in_any_family_and_mode() {
    for model in families() {
        for (mode, keep) in MODES.into_iter().zip([Keep::ALL, Keep::INPUT].into_iter().cycle()) {
            let settings = Settings { micro_batches: 2, keep, clip: Some(0.5), ..settings() };
            let job = Job { packed: true, ..Job::new(model.dropping([0.1, 0.2, 0.3]), settings) };
            check(&job.in_mode(mode), 7);
        }
    }
}
