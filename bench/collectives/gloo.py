"""Collectives of PyTorch over gloo between two processes: prints one line of JSON, milliseconds of each round.

    gloo.py [--bytes N]
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARMUP, ROUNDS = 3, 10


def timed(run):
    times = []
    for i in range(WARMUP + ROUNDS):
        dist.barrier()
        begin = time.perf_counter()
        run()
        if i >= WARMUP:
            times.append(round(1e3 * (time.perf_counter() - begin), 3))
    return times


def rank(index, world, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[index]})
    dist.init_process_group("gloo", rank=index, world_size=world)
    whole, part = torch.ones(size // 4), torch.ones(size // 4 // world)
    rows = {
        "all_reduce": timed(lambda: dist.all_reduce(whole)),
        "reduce_scatter": timed(lambda: dist.reduce_scatter_tensor(part, whole)),
        "all_gather": timed(lambda: dist.all_gather_into_tensor(whole, part)),
    }
    if index == 0:
        print(json.dumps(rows), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=64 << 20)
    args = parser.parse_args()
    mp.spawn(rank, args=(2, args.bytes), nprocs=2)
