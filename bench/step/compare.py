"""Times whole training steps of memwall and of PyTorch, side by side: one process after the other, in turns.

    compare.py MEMWALL [--model S|XS] [--mode f32|bf16|recompute|long] [--rounds N] [--markdown FILE]

Each process makes warm-up steps and some timed ones. The first round runs PyTorch in every variant of the mode, those after
it only the fastest. Prints a row a process, then a table of medians over the rows that no other process disturbed.
"""
import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import tomllib

import quiet
from allocator import preload

HERE = os.path.dirname(__file__)
TARGET = "target/bench/step"
# What memwall's job is told, and the variants of PyTorch that do the same.
MODES = {
    "f32": ([], {"eager": [], "compiled": ["--compile"]}),
    "bf16": (["precision.mode=bf16"], {
        "autocast": ["--precision", "autocast"],
        "autocast, compiled": ["--precision", "autocast", "--compile"],
        "f32 masters": ["--precision", "masters"],
        "f32 masters, compiled": ["--precision", "masters", "--compile"]}),
    "recompute": (["memory.recompute=full"], {"eager": ["--recompute"], "compiled": ["--recompute", "--compile"]}),
    "long": (["data.sequence_length=8192", "train.micro_batch=1", "train.global_batch=1"],
             {"eager": [], "compiled": ["--compile"]}),
}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("memwall")
    parser.add_argument("--mode", choices=MODES, default="f32")
    parser.add_argument("--model", choices=["S", "XS"], help="default: S, or XS with --mode long")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant", action="append", help="only this variant of PyTorch; may be given several times")
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--markdown", metavar="FILE", help="write the table to this file too")
    args = parser.parse_args()
    args.model = args.model or ("XS" if args.mode == "long" else "S")
    small = args.model == "XS"
    if args.warmup is None:
        args.warmup = 2 if small and args.mode != "long" else 1
    if args.steps is None:
        args.steps = 3 if args.mode == "long" else 10 if small else 2
    if args.warmup < 0 or min(args.steps, args.rounds, args.threads) < 1:
        parser.error("--steps, --rounds and --threads are 1 or more, --warmup 0 or more")
    unknown = set(args.variant or []) - set(MODES[args.mode][1])
    if unknown:
        parser.error(f"--mode {args.mode} has the variants {', '.join(MODES[args.mode][1])}")
    return args


def write_text(size=1 << 21):
    """Words in some random order: both programs train on these bytes."""
    path = f"{TARGET}/text.txt"
    if not os.path.exists(path):
        os.makedirs(TARGET, exist_ok=True)
        draw = random.Random(1)
        words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(1000)]
        with open(path, "w") as file:
            file.write(" ".join(draw.choices(words, k=size // 6)))


class Row:
    """One process: its timed steps, its peak, and what others did meanwhile."""

    def __init__(self, name, seconds, tokens, losses, parameters, peak, others):
        self.name, self.losses, self.parameters, self.others = name, losses, parameters, others
        self.rate, self.peak = tokens / statistics.median(seconds), peak
        steps = " ".join(f"{s:.3f}" for s in seconds)
        mark = "" if self.counts() else "  disturbed: does not count"
        print(f"{name:28} {self.rate:9.1f} tokens/s  peak {peak / 1e6:7.0f} MB  others {others:.2f} cores  steps {steps}{mark}",
              flush=True)

    def counts(self):
        return self.others <= quiet.LIMIT


def memwall(args, sets):
    """Runs memwall until the timed steps are in its metrics; what it would save at the end is no part of a step."""
    run = f"{TARGET}/memwall"
    shutil.rmtree(run, ignore_errors=True)
    count = args.warmup + args.steps
    command = [args.memwall, "train", f"{HERE}/{args.model}.toml"]
    for item in [*sets, f"run.threads={args.threads}"]:
        command += ["--set", item]
    quiet.require()
    others = quiet.Others()
    complaints = open(f"{TARGET}/complaints.txt", "w+")
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=complaints)
    metrics = []
    while len(metrics) < count:
        time.sleep(0.1)
        if child.poll() is not None:
            sys.exit(f"memwall ended before its steps were done: {read(complaints)}")
        try:
            with open(f"{run}/metrics.jsonl") as file:
                metrics = [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            pass
    child.kill()
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    cores = others.cores(usage.ru_utime + usage.ru_stime)
    shutil.rmtree(run)
    timed = metrics[args.warmup:count]
    return Row("memwall", [m["seconds"] for m in timed], timed[0]["tokens"], [m["loss"] for m in metrics], None,
               usage.ru_maxrss * 1024, cores)


def torch(args, sets, name, options):
    """Runs PyTorch's script."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), TORCHINDUCTOR_COMPILE_THREADS="1",
                       TORCHINDUCTOR_CACHE_DIR=os.path.abspath(f"{TARGET}/inductor"))
    if preload():
        environment["LD_PRELOAD"] = preload()
    command = [sys.executable, f"{HERE}/torch_step.py", f"{HERE}/{args.model}.toml", *options, "--warmup", str(args.warmup),
               "--steps", str(args.steps), "--threads", str(args.threads)]
    for item in sets:
        command += ["--set", item]
    quiet.require()
    others = quiet.Others()
    # Not a pipe: a compiler's warnings may be more than one holds.
    complaints = open(f"{TARGET}/complaints.txt", "w+")
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    cores = others.cores(usage.ru_utime + usage.ru_stime)
    if child.returncode:
        sys.exit(f"PyTorch's script ended with {child.returncode}: {read(complaints)}")
    result = json.loads(out.splitlines()[-1])
    args.torch = result["torch"]
    return Row(f"PyTorch {name}", result["seconds"][args.warmup:], result["tokens"], result["losses"], result["parameters"],
               usage.ru_maxrss * 1024, cores)


def read(file):
    file.seek(0)
    return file.read()


def parameters(args):
    """Of the model, as memwall counts them."""
    plan = subprocess.run([args.memwall, "plan", f"{HERE}/{args.model}.toml", "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(plan.stdout)["parameters"]


def check(args, count, rows):
    """All must have trained the same model: an untrained one is as good as a guess."""
    with open(f"{HERE}/{args.model}.toml", "rb") as file:
        guess = math.log(tomllib.load(file)["model"]["config"]["vocab_size"])
    for row in rows:
        if not abs(row.losses[0] - guess) < 0.5 or not all(map(math.isfinite, row.losses)):
            sys.exit(f"{row.name}: losses {row.losses} are not those of this model, whose first is near {guess:.2f}")
        if row.parameters not in (None, count):
            sys.exit(f"{row.name} has {row.parameters} parameters, memwall {count}")


def rounds(args):
    sets, variants = MODES[args.mode]
    names = args.variant or list(variants)
    rows, count = [], parameters(args)
    for round_ in range(args.rounds):
        ours = memwall(args, sets)
        theirs = [torch(args, sets, name, variants[name]) for name in names]
        check(args, count, [ours, *theirs])
        rows += [ours, *theirs]
        if round_ == 0 and not args.variant:
            fastest = max(theirs, key=lambda row: row.rate)
            names = [fastest.name.removeprefix("PyTorch ")]
    return rows


def cpu():
    with open("/proc/cpuinfo") as file:
        fields = dict(map(str.strip, line.split(":", 1)) for line in file if ":" in line)
    return f"{fields.get('model name', os.uname().machine)}, {os.cpu_count()} cores"


def table(args, rows):
    """The medians in Markdown."""
    names = list(dict.fromkeys(row.name for row in rows))
    counted = {name: [row for row in rows if row.name == name and row.counts()] for name in names}
    if not counted["memwall"]:
        sys.exit("other processes disturbed every run of memwall: nothing to compare")
    median = lambda name, key: statistics.median(getattr(row, key) for row in counted[name])
    rate, peak = median("memwall", "rate"), median("memwall", "peak")
    length = {"long": "1 x 8192"}.get(args.mode, {"S": "4 x 512", "XS": "8 x 256"}[args.model])
    lines = [f"{time.strftime('%Y-%m-%d', time.gmtime())}; {cpu()}. Model {args.model}, {args.mode}, {length} tokens a step, {args.threads} threads; PyTorch {args.torch}"
             f"{', tcmalloc' if preload() else ''}.", "",
             "| | tokens/s | memwall is | peak RSS, MB | memwall takes | runs that count | others, cores at most |",
             "|---|---|---|---|---|---|---|"]
    for name in names:
        if not counted[name]:
            lines.append(f"| {name} | disturbed | | | | 0 | {max(row.others for row in rows if row.name == name):.2f} |")
            continue
        r, p = median(name, "rate"), median(name, "peak")
        ratio, share = ("", "") if name == "memwall" else (f"{rate / r:.2f} x", f"{peak / p:.2f} x")
        lines.append(f"| {name} | {r:.1f} | {ratio} | {p / 1e6:.0f} | {share} | {len(counted[name])} | "
                     f"{max(row.others for row in counted[name]):.2f} |")
    return "\n".join(lines) + "\n"


def main():
    args = arguments()
    write_text()
    text = table(args, rounds(args))
    print(f"\n{text}")
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write(text)


main()
