//! Ranks as threads: what collectives give, what happens when ranks do not agree, fall silent or end, and what is counted.

mod common;
mod faults;
mod rounds;

use common::{ARENA, PART, PATIENT, SUM, WHOLE, fabric, tensor, values};
use memwall_comm::local::Fabric;
use memwall_comm::{Call, Collective, bytes_moved};
use memwall_layout::Mesh;
use memwall_tensor::device::Memory;
use memwall_tensor::{Cpu, DType, bf16, fixed};
use rounds::{given, round};

/// burn pull request 3553: the second all-reduce sometimes blocked.
#[test]
fn burn_pr_3553_ten_thousand_collectives_of_random_kinds_sizes_and_delays() {
    for (ranks, rounds) in [(2, 4000), (3, 3000), (4, 3000)] {
        let mesh = Mesh::data_parallel(1, ranks);
        let fabric = fabric(mesh, PATIENT);
        fabric.threads(ARENA, |device, groups| {
            let device = &device;
            (0..rounds).for_each(|number| round(device, groups.shard.as_ref(), 7 + ranks as u64, number));
        });
    }
}

#[test]
fn groups_of_a_mesh_do_not_disturb_each_other() {
    let mesh = Mesh::data_parallel(2, 2);
    let fabric = fabric(mesh, PATIENT);
    fabric.threads(ARENA, |device, groups| {
        let device = &device;
        let seed = |kind: u64, others: usize| kind * 100 + others as u64;
        let (row, column) = (groups.rank / 2, groups.rank % 2);
        for number in 0..300 {
            round(device, groups.shard.as_ref(), seed(1, row), number);
            round(device, groups.replicate.as_ref(), seed(2, column), number);
            round(device, groups.data.as_ref(), seed(3, 0), number);
        }
    });
}

#[test]
fn collectives_under_way_may_be_waited_for_in_any_order() {
    let mesh = Mesh::data_parallel(1, 3);
    let fabric = fabric(mesh, PATIENT);
    fabric.threads(ARENA, |device, groups| {
        let device = &device;
        let group = groups.shard.as_ref();
        for turn in 0..200 {
            let start = |k: i64| {
                let t = tensor(device, group, DType::F32, &[k * (1 + group.rank() as i64)], SUM);
                group.start(device, Call::AllReduce(t)).unwrap()
            };
            let pending: Vec<_> = (0..5).map(|k| (k, start(k))).collect();
            // Those of an even number first in some turns, those of an odd one in others: the same on all ranks, since a sum
            // in place needs all of them.
            let (a, b): (Vec<_>, Vec<_>) = pending.into_iter().partition(|(k, _)| (k + turn) % 2 == 0);
            for (k, p) in b.into_iter().chain(a) {
                assert_eq!(values(device, &group.wait(device, p).unwrap().into_buffer()), [6 * k]);
            }
        }
    });
}

#[test]
fn sums_are_formed_in_the_order_of_the_ranks_and_are_the_same_on_all() {
    let mesh = Mesh::data_parallel(1, 4);
    let n = 5000;
    let of = |rank: usize, i: usize| (given(3, 1, rank, i) as f32 + 0.1).exp() / 3.0;
    for dtype in [DType::F32, DType::BF16] {
        let fabric = fabric(mesh, PATIENT);
        let got = fabric.threads(ARENA, |device, groups| {
            let device = &device;
            let group = groups.shard.as_ref();
            let mut t = tensor(device, group, dtype, &vec![0; n], SUM);
            let own: Vec<f32> = (0..n).map(|i| of(group.rank(), i)).collect();
            let low: Vec<bf16> = own.iter().map(|x| bf16::from_f32(*x)).collect();
            let bytes =
                if dtype == DType::F32 { bytemuck::cast_slice(&own) } else { bytemuck::cast_slice(&low) };
            device.write(t.view_mut().slice, bytes);
            let t = group.carry_out(device, Call::AllReduce(t)).unwrap().into_buffer();
            let mut bytes = vec![0u8; n * dtype.bytes()];
            device.read(t.view().slice, &mut bytes);
            bytes
        });
        assert!(got.iter().all(|g| *g == got[0]));
        let sum = |i: usize| match dtype {
            DType::F32 => (0..4).map(|r| of(r, i)).reduce(|a, b| a + b).unwrap().to_le_bytes().to_vec(),
            _ => {
                let terms = (0..4).map(|r| bf16::from_f32(of(r, i)).to_f32());
                bf16::from_f32(terms.reduce(|a, b| a + b).unwrap()).to_le_bytes().to_vec()
            }
        };
        assert!(got[0] == (0..n).flat_map(sum).collect::<Vec<u8>>(), "{dtype:?}");
    }
}

#[test]
fn an_overflow_of_a_fixed_point_sum_sticks_across_ranks() {
    let mesh = Mesh::data_parallel(1, 2);
    let got = fabric(mesh, PATIENT).threads(ARENA, |device, groups| {
        let device = &device;
        let group = groups.shard.as_ref();
        let mine = if group.rank() == 0 { [fixed::OVERFLOWED, i64::MAX, 4] } else { [1, 1, -9] };
        let call = Call::AllReduce(tensor(device, group, DType::I64, &mine, SUM));
        values(device, &group.carry_out(device, call).unwrap().into_buffer())
    });
    assert_eq!(got, vec![vec![fixed::OVERFLOWED, fixed::OVERFLOWED, -5]; 2]);
}

#[test]
fn the_bytes_that_cross_are_those_that_the_formula_says() {
    for ranks in [2, 3, 4] {
        let mesh = Mesh::data_parallel(ranks, 1);
        fabric(mesh, PATIENT).threads(ARENA, |device, groups| {
            let device = &device;
            let group = groups.replicate.as_ref();
            for n in [0, 1, 40, 1000, 12 * 1024] {
                let whole = n * ranks;
                let t = |n: usize, p| tensor(device, group, DType::BF16, &vec![1; n], p);
                let mut calls = vec![
                    Call::AllReduce(t(n, SUM)),
                    Call::AllGather { part: Some(t(n, PART)), whole: t(whole, WHOLE) },
                    Call::ReduceScatter { whole: t(whole, SUM), part: None, accumulate: false },
                    Call::AllToAll { from: t(whole, PART), to: t(whole, PART) },
                    Call::Broadcast { root: 1, buffer: t(n, WHOLE) },
                    Call::Barrier,
                ];
                match group.rank() {
                    0 => calls.push(Call::Send { to: 1, buffer: t(n, WHOLE) }),
                    1 => calls.push(Call::Receive { from: 0, buffer: t(n, WHOLE) }),
                    _ => {}
                }
                for call in calls {
                    let (which, before) = (call.collective(), group.traffic());
                    let want = bytes_moved(&call, group.rank(), ranks);
                    drop(group.carry_out(device, call).unwrap());
                    let crossed = group.traffic() - before;
                    let of_it = (crossed.calls[which as usize], crossed.bytes[which as usize]);
                    assert_eq!(of_it, (1, want), "{which:?}");
                    assert_eq!(crossed.total_bytes(), want);
                }
            }
        });
    }
}

#[test]
fn what_no_group_can_do_is_refused_before_anyone_is_told() {
    let mesh = Mesh::data_parallel(1, 2);
    fabric(mesh, PATIENT).threads(ARENA, |device, groups| {
        let device = &device;
        let group = groups.shard.as_ref();
        let t = |n: usize, p| tensor(device, group, DType::F32, &vec![1; n], p);
        let refused = |call: Call<Cpu>, why: &str| {
            let text = group.carry_out(device, call).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        };
        refused(Call::AllReduce(t(3, WHOLE)), "on axis dp_shard, the buffer is replicated");
        refused(
            Call::AllGather { part: None, whole: t(3, WHOLE) },
            "3 elements are no equal parts for 2 ranks",
        );
        refused(Call::AllGather { part: Some(t(3, PART)), whole: t(4, WHOLE) }, "the part is 3 elements");
        refused(Call::ReduceScatter { whole: t(4, WHOLE), part: None, accumulate: false }, "is replicated");
        refused(Call::Broadcast { root: 2, buffer: t(1, WHOLE) }, "there is no rank 2");
        refused(Call::Send { to: group.rank(), buffer: t(1, WHOLE) }, "does not talk to itself");
        refused(Call::AllReduce(tensor(device, group, DType::I32, &[1], SUM)), "no sums of I32");
        refused(Call::AllReduce(tensor(device, group, DType::U8, &[1], SUM)), "no sums of U8");
        // None of these counted: the next collective is the first for both.
        drop(group.carry_out(device, Call::Barrier).unwrap());
        assert_eq!(group.traffic().calls[Collective::Barrier as usize], 1);
    });
}

#[test]
fn memory_files_are_opened_again_and_go_with_the_fabric() {
    let open = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
    let before = open();
    for _ in 0..100 {
        let mesh = Mesh::data_parallel(1, 2);
        let fabric = fabric(mesh, PATIENT);
        assert_eq!(fabric.files().len(), 3);
        let files = fabric.files().iter().map(|f| f.try_clone_to_owned().unwrap()).collect();
        let same = Fabric::open(mesh, ARENA, PATIENT, files).unwrap();
        same.fail("seen");
        assert_eq!(fabric.failure().unwrap().1, "seen");
    }
    // Other tests of this process open and close theirs meanwhile; three hundred that stay would show.
    assert!(open() < before + 100);
}
