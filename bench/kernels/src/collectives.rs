//! Collectives between ranks of this machine, each a process's worth of work on a thread of its own: what `bench/collectives`
//! compares with other libraries.

use crate::{CollectivesArgs, Fault};
use memwall_comm::local::Fabric;
use memwall_comm::{Call, Group};
use memwall_layout::{Cut, Mesh, Placement, Placements, Reduction};
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, Cpu, DType, Description, Shape, Tensor, allowed_cores};
use std::time::{Duration, Instant};

const NAMES: [&str; 3] = ["all_reduce", "reduce_scatter", "all_gather"];

/// Prints one line of JSON: milliseconds of each round of each collective.
pub(crate) fn collectives(args: &CollectivesArgs) -> Result<(), Fault> {
    let elements = args.bytes / 4 / args.ranks * args.ranks;
    let arena = 3 * args.bytes as u64 + (64 << 20);
    let mesh = Mesh::data_parallel(1, args.ranks);
    let fabric = Fabric::new(mesh, arena, Duration::from_secs(60))?;
    let cores = allowed_cores();
    let rank = |rank: usize| -> Result<Vec<Vec<f64>>, String> {
        let said = |e: &dyn std::fmt::Display| e.to_string();
        let device = Cpu::new(Description { threads: 1 }, arena).map_err(|e| said(&e))?;
        let device = device.sharing(fabric.arena(rank).clone());
        if cores.len() >= args.ranks {
            pin_this_thread(cores[rank]);
        }
        let groups = fabric.groups(rank);
        let group = groups.shard.as_ref();
        let mut out = Vec::new();
        for name in NAMES {
            let mut times = Vec::new();
            let mut buffers = Some(new(&device, group, name, elements).map_err(|e| said(&e))?);
            for round in 0..args.rounds + args.warmup {
                group.carry_out(&device, Call::Barrier).map_err(|e| said(&e))?;
                let begin = Instant::now();
                let call = buffers.take().ok_or("no buffers")?;
                let done = group.carry_out(&device, call).map_err(|e| said(&e))?;
                if round >= args.warmup {
                    times.push(begin.elapsed().as_secs_f64() * 1e3);
                }
                buffers = Some(again(group, done));
            }
            out.push(times);
        }
        Ok(out)
    };
    let ranks: Vec<Result<Vec<Vec<f64>>, String>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..args.ranks).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().map(|r| r.join().unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    });
    let ranks = ranks.into_iter().collect::<Result<Vec<_>, _>>()?;
    let row = |(i, name): (usize, &&str)| {
        let times: Vec<String> = ranks[0][i].iter().map(|t| format!("{t:.3}")).collect();
        format!("\"{name}\": [{}]", times.join(", "))
    };
    println!("{{{}}}", NAMES.iter().enumerate().map(row).collect::<Vec<_>>().join(", "));
    Ok(())
}

/// Binds the calling thread, which is all of its rank, to a core.
fn pin_this_thread(core: usize) {
    // SAFETY: zeros are an empty set of cores; the call reads the set, which lives until it returns.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

fn placed(group: &dyn Group<Cpu>, placement: Placement) -> Placements {
    group.axes().iter().fold(Placements::REPLICATED, |p, axis| p.with(*axis, placement))
}

/// The call with touched buffers of this many f32 in the whole.
fn new(
    device: &Cpu,
    group: &dyn Group<Cpu>,
    name: &str,
    elements: usize,
) -> Result<Call<Cpu>, memwall_tensor::Error> {
    let (sum, part) = (Placement::Partial(Reduction::Sum), Placement::Shard(0, Cut::Even));
    let tensor = |n: usize, placement| {
        let (shape, placed) = (Shape::vector(n), placed(group, placement));
        let mut t = Tensor::new(device, shape, DType::F32, placed, Category::Communication)?;
        device.fill(t.view_mut().slice, 1.0);
        Ok::<_, memwall_tensor::Error>(t)
    };
    let n = elements / group.size();
    Ok(match name {
        "all_reduce" => Call::AllReduce(tensor(elements, sum)?),
        "reduce_scatter" => Call::ReduceScatter {
            whole: tensor(elements, sum)?,
            part: Some(tensor(n, part)?),
            accumulate: false,
        },
        _ => {
            Call::AllGather { part: Some(tensor(n, part)?), whole: tensor(elements, Placement::Replicated)? }
        }
    })
}

/// The same call on what it gave back.
fn again(group: &dyn Group<Cpu>, done: Call<Cpu>) -> Call<Cpu> {
    match done {
        Call::AllReduce(t) => Call::AllReduce(t.placed(placed(group, Placement::Partial(Reduction::Sum)))),
        other => other,
    }
}
