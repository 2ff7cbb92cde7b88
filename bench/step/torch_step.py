"""Trains a model in PyTorch for a few steps and prints one JSON object: seconds and loss of each, and what was trained.

    torch_step.py JOB.toml --precision f32|autocast|masters [--recompute] [--compile] [--warmup N] [--steps N]

Model, batch, length and text are those of a job file of memwall. `compare.py` beside this runs it.
"""
import argparse
import contextlib
import glob
import json
import time
import tomllib

import torch
from model import Decoder


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--precision", choices=["f32", "autocast", "masters"], default="f32")
    parser.add_argument("--recompute", action="store_true", help="keep only the input of each layer")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--adamw", choices=["fused", "foreach"], default="fused")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def read_job(path, sets):
    """The job as memwall takes it: a TOML file and what overrides it."""
    with open(path, "rb") as file:
        job = tomllib.load(file)
    for item in sets:
        key, _, value = item.partition("=")
        section, _, name = key.partition(".")
        try:
            job.setdefault(section, {})[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            job.setdefault(section, {})[name] = value
    return job


class Bytes:
    """Batches of the job's text: a token a byte, the target of each the byte after it."""

    def __init__(self, job):
        text = b"".join(open(path, "rb").read() for pattern in job["data"]["train"] for path in sorted(glob.glob(pattern)))
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.batch, self.length = job["train"]["global_batch"], job["data"]["sequence_length"]
        self.next = 0

    def __call__(self):
        size = self.batch * self.length
        assert self.next + size < len(self.text), "the text is too short for these steps"
        tokens, targets = (self.text[self.next + k:self.next + k + size].long().view(self.batch, self.length) for k in (0, 1))
        self.next += size
        return tokens, targets


class Optimizer:
    """AdamW with clipping; with masters, the weights that the model reads are bf16 roundings of f32 ones."""

    def __init__(self, model, job, args):
        o = job["optimizer"]
        self.weights, self.clip = list(model.parameters()), job["train"]["clip"]
        self.masters = self.weights
        if args.precision == "masters":
            self.masters = [w.detach().clone() for w in self.weights]
            model.to(torch.bfloat16)
        groups = [dict(params=[m for m in self.masters if m.dim() > 1], weight_decay=o["weight_decay"]),
                  dict(params=[m for m in self.masters if m.dim() == 1], weight_decay=0.0)]
        self.adamw = torch.optim.AdamW(groups, lr=o["learning_rate"], betas=(0.9, 0.95), eps=1e-8, **{args.adamw: True})

    def step(self):
        if self.masters is not self.weights:
            for master, weight in zip(self.masters, self.weights):
                master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, self.clip)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self.masters is not self.weights:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    job = read_job(args.job, args.set)
    batches = Bytes(job)
    model = Decoder(job["model"]["config"], batches.length, args.recompute)
    optimizer = Optimizer(model, job, args)
    forward = torch.compile(model) if args.compile else model
    autocast = torch.autocast("cpu", dtype=torch.bfloat16) if args.precision == "autocast" else contextlib.nullcontext()
    seconds, losses = [], []
    for _ in range(args.warmup + args.steps):
        tokens, targets = batches()
        start = time.perf_counter()
        with autocast:
            loss = forward(tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    print(json.dumps(dict(seconds=seconds, losses=losses, parameters=sum(p.numel() for p in model.parameters()),
                          tokens=batches.batch * batches.length, torch=torch.__version__)))


if __name__ == "__main__":
    main()
