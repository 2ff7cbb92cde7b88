//! Ranks that do not agree, are silent, end, or fail: errors that say who and where, in time, and never a hang.

use super::common::{ARENA, PATIENT, SUM, WHOLE, fabric, tensor};
use memwall_comm::{Call, CommError, Groups};
use memwall_layout::Mesh;
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, DType, Phase};
use std::time::{Duration, Instant};

/// What each of three ranks says when it does `work`; none waits longer than it must.
fn errors(
    timeout: Duration,
    work: impl Fn(&Cpu, &Groups<Cpu>) -> Result<(), CommError> + Sync,
) -> Vec<String> {
    let mesh = Mesh::data_parallel(1, 3);
    let begin = Instant::now();
    let said = fabric(mesh, timeout).threads(ARENA, |device, groups| {
        let device = &device;
        work(device, &groups).err().map_or(String::new(), |e| e.to_string())
    });
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}: {said:?}", begin.elapsed());
    said
}

fn sum(device: &Cpu, groups: &Groups<Cpu>, n: usize, dtype: DType) -> Call<Cpu> {
    Call::AllReduce(tensor(device, groups.shard.as_ref(), dtype, &vec![1; n], SUM))
}

#[test]
fn ranks_that_do_different_things_are_both_named() {
    for kind in 0..4 {
        let said = errors(PATIENT, |device, groups| {
            let (group, odd) = (groups.shard.as_ref(), groups.rank == 1);
            drop(group.carry_out(device, sum(device, groups, 4, DType::F32))?);
            let call = match (kind, odd) {
                (0, true) => Call::Barrier,
                (1, true) => sum(device, groups, 9, DType::F32),
                (2, true) => sum(device, groups, 8, DType::I64),
                (3, _) => {
                    let buffer = tensor(device, group, DType::F32, &[1; 8], WHOLE);
                    Call::Broadcast { root: usize::from(odd), buffer }
                }
                _ => sum(device, groups, 8, DType::F32),
            };
            group.carry_out(device, call).map(drop)
        });
        let names = |s: &String| s.contains("rank 1 ") && s.contains("do not agree on collective number 2");
        assert!(said.iter().all(names), "{said:?}");
    }
}

#[test]
fn a_rank_that_leaves_a_collective_out_is_found_at_the_next_or_when_it_ends() {
    let said = errors(PATIENT, |device, groups| {
        let group = groups.shard.as_ref();
        if groups.rank != 2 {
            drop(group.carry_out(device, sum(device, groups, 5, DType::F32))?);
        }
        group.carry_out(device, sum(device, groups, 6, DType::F32)).map(drop)
    });
    assert!(said.iter().all(|s| s.contains("do not agree on collective number 1")), "{said:?}");
    let said = errors(PATIENT, |device, groups| {
        let call = sum(device, groups, 4, DType::F32);
        if groups.rank == 2 { Ok(()) } else { groups.shard.carry_out(device, call).map(drop) }
    });
    assert!(said[2].is_empty(), "{said:?}");
    assert!(said[..2].iter().all(|s| s.contains("rank 2 has ended")), "{said:?}");
}

/// torchtitan issue 2899: several timeouts contradicted each other.
#[test]
fn tt_2899_one_timeout_says_who_waits_for_whom_and_where() {
    let said = errors(Duration::from_millis(300), |device, groups| {
        let group = groups.shard.as_ref();
        device.ledger().enter(Phase::Backward);
        device.ledger().at_unit(groups.rank + 3);
        drop(group.carry_out(device, Call::Barrier)?);
        match groups.rank {
            // Not the first to give up.
            0 => std::thread::sleep(Duration::from_millis(500)),
            1 => {
                let buffer = tensor(device, group, DType::F32, &[1], WHOLE);
                return group.carry_out(device, Call::Receive { from: 2, buffer }).map(drop);
            }
            // Busy with something else for too long.
            _ => std::thread::sleep(Duration::from_millis(3000)),
        }
        group.carry_out(device, Call::Barrier).map(drop)
    });
    let first = said.iter().find(|s| s.contains("has waited 0.3 s")).expect("one gave up");
    assert!(first.contains("(backward, unit "), "{said:?}");
    assert!(first.contains("rank 2 waits for nobody: it was last seen in backward, unit 5"), "{said:?}");
    assert!(said.iter().all(|s| s.contains("has waited 0.3 s")), "{said:?}");
}

#[test]
fn a_rank_that_panics_or_gives_up_stops_the_others() {
    for panics in [false, true] {
        let begin = Instant::now();
        let said = errors(PATIENT, |device, groups| {
            let group = groups.shard.as_ref();
            let call = sum(device, groups, 4, DType::F32);
            if groups.rank == 1 {
                let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let pending = group.start(device, call).unwrap();
                    assert!(!panics, "a fault of the program");
                    drop(pending);
                }));
                assert_eq!(caught.is_err(), panics);
                // What failed stays failed.
                return group.carry_out(device, Call::Barrier).map(drop);
            }
            group.carry_out(device, call).map(drop)
        });
        let whole = "rank 1 has failed: it gave up all_reduce number 1, which it had started";
        assert!(said[0].contains(whole) && said[2].contains(whole), "{said:?}");
        assert!(!said[1].is_empty() && begin.elapsed() < Duration::from_secs(2), "{said:?}");
    }
}

#[test]
fn the_supervisor_can_stop_all() {
    let mesh = Mesh::data_parallel(1, 2);
    let fabric = fabric(mesh, PATIENT);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            fabric.fail("rank 7 was killed");
        });
        fabric.threads(ARENA, |device, groups| {
            let device = &device;
            if groups.rank == 0 {
                std::thread::sleep(Duration::from_millis(400));
            }
            groups.shard.carry_out(device, Call::Barrier).unwrap_err().to_string()
        })
    });
    assert!(said.iter().all(|s| s.ends_with("rank 7 was killed")), "{said:?}");
    assert_eq!(fabric.failure(), Some((None, "rank 7 was killed".to_owned())));
}
