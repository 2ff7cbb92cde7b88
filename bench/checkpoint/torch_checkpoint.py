"""PyTorch's distributed checkpoint (DCP) of a state as large as memwall's: one process, and as many threads as are given.

    torch_checkpoint.py --folder DIR --bytes N --layers N --threads N

Prints one line of JSON: seconds of a save, of loads from memory and from the disk, and of an asynchronous save: until it returns,
and in all.
"""
import argparse
import json
import os
import shutil
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

warnings.filterwarnings("ignore")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--inner", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    return parser.parse_args()


def state(args):
    """Weights and moments in the shapes of the model."""
    w, i = args.width, args.inner
    shapes = {"embed": (args.vocabulary, w), "norm": (w,)}
    for layer in range(args.layers):
        for name, shape in [("q", (w, w)), ("k", (w, w)), ("v", (w, w)), ("o", (w, w)), ("gate", (i, w)), ("up", (i, w)),
                            ("down", (w, i)), ("norm1", (w,)), ("norm2", (w,))]:
            shapes[f"layers.{layer}.{name}"] = shape
    return {kind: {name: torch.randn(shape) for name, shape in shapes.items()} for kind in ["model", "exp_avg", "exp_avg_sq"]}


def forget(folder):
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(work):
    begin = time.perf_counter()
    out = work()
    return time.perf_counter() - begin, out


def main():
    args = arguments()
    tensors = state(args)
    held = sum(t.numel() * 4 for kind in tensors.values() for t in kind.values())
    # The same amount to within what memwall's model has beside these shapes.
    assert abs(held - args.bytes) < 0.12 * args.bytes, (held, args.bytes)
    shutil.rmtree(args.folder, ignore_errors=True)
    writer = lambda: FileSystemWriter(args.folder, thread_count=args.threads)
    save, _ = timed(lambda: dcp.save(tensors, storage_writer=writer()))
    load = lambda: dcp.load(tensors, storage_reader=FileSystemReader(args.folder))
    warm, _ = timed(load)
    forget(args.folder)
    cold, _ = timed(load)
    shutil.rmtree(args.folder)
    begin = time.perf_counter()
    stood, future = None, None
    try:
        stood, future = timed(lambda: dcp.async_save(tensors, storage_writer=writer()))
        future.result()
        total = time.perf_counter() - begin
    except Exception as e:  # It needs a process group in some versions.
        stood, total = None, str(e)[:80]
    shutil.rmtree(args.folder, ignore_errors=True)
    print(json.dumps({"bytes": held, "save": save, "load_warm": warm, "load_cold": cold, "stood_still": stood, "background": total}))


main()
