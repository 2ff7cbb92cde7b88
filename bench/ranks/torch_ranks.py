"""Trains a model in PyTorch on two ranks for a few steps and prints one JSON object: seconds and loss of each.

    torch_ranks.py JOB.toml ddp|fsdp2 [--compile] [--warmup N] [--steps N]

The batch is the job's, cut between the ranks; each has one thread and one core. `compare.py` beside this runs it.
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "step"))
from model import Decoder  # noqa: E402
from torch_step import Bytes, read_job  # noqa: E402

WORLD = 2


def rank(index, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29518")
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[index]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=index, world_size=WORLD)
    torch.manual_seed(1)
    job = read_job(args.job, args.set)
    batches = Bytes(job)
    model = Decoder(job["model"]["config"], batches.length)
    parameters = sum(p.numel() for p in model.parameters())
    if args.path == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (WORLD,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        trained = fully_shard(model, mesh=mesh)
    forward = torch.compile(trained) if args.compile else trained
    o = job["optimizer"]
    weights = list(model.parameters())
    groups = [dict(params=[w for w in weights if w.dim() > 1], weight_decay=o["weight_decay"]),
              dict(params=[w for w in weights if w.dim() == 1], weight_decay=0.0)]
    fused = {"fused": True} if args.path == "ddp" else {"foreach": True}
    adamw = torch.optim.AdamW(groups, lr=o["learning_rate"], betas=(0.9, 0.95), eps=1e-8, **fused)
    seconds, losses = [], []
    part = batches.batch // WORLD
    for _ in range(args.warmup + args.steps):
        tokens, targets = (t[index * part:(index + 1) * part] for t in batches())
        dist.barrier()
        start = time.perf_counter()
        loss = forward(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, job["train"]["clip"])
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / WORLD)
        seconds.append(time.perf_counter() - start)
    if index == 0:
        print(json.dumps(dict(seconds=seconds, losses=losses, parameters=parameters,
                              tokens=batches.batch * batches.length, torch=torch.__version__)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("path", choices=["ddp", "fsdp2"])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(rank, args=(args,), nprocs=WORLD)
