"""Times training steps of memwall's ranks and of PyTorch's, side by side: one after the other, in turns.

    compare.py MEMWALL [--model S|XS] [--rounds N] [--markdown FILE]

Both sides have two ranks of one thread and one core each. Memory is a rank's share of the resident pages (PSS: pages that ranks
share count once in all), sampled while they run. A row a run, then a table of medians over the rows that nobody disturbed.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STEP = os.path.join(HERE, "..", "step")
sys.path.insert(0, STEP)
import quiet  # noqa: E402
from allocator import preload  # noqa: E402

TARGET = "target/bench/step"
OURS = {"data parallel": ["parallel.zero=0"], "ZeRO-2": ["parallel.zero=2"], "ZeRO-3": ["parallel.zero=3"]}
THEIRS = {"DDP": ["ddp"], "DDP, compiled": ["ddp", "--compile"], "FSDP2": ["fsdp2"]}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("memwall")
    parser.add_argument("--model", choices=["S", "XS"], default="S")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="only these sides; may be given several times")
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--markdown", metavar="FILE")
    args = parser.parse_args()
    small = args.model == "XS"
    if args.warmup is None:
        args.warmup = 3 if small else 1
    if args.steps is None:
        args.steps = 10 if small else 2
    if args.warmup < 0 or min(args.steps, args.rounds) < 1:
        parser.error("--steps and --rounds are 1 or more, --warmup 0 or more")
    return args


def children(pid):
    """A process and all that come from it."""
    found = [pid]
    for at in found:
        try:
            with open(f"/proc/{at}/task/{at}/children") as file:
                found += map(int, file.read().split())
        except OSError:
            pass
    return found


def pss(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


class Memory(threading.Thread):
    """The highest sum over a family of processes, and its largest member's share then, sampled twice a second."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.sum, self.largest, self.done = pid, 0, 0, threading.Event()
        self.start()

    def run(self):
        while not self.done.wait(0.5):
            shares = [pss(pid) for pid in children(self.pid)]
            if sum(shares) > self.sum:
                self.sum, self.largest = sum(shares), max(shares)


class Row:
    def __init__(self, name, seconds, tokens, losses, memory, others):
        self.name, self.losses, self.others = name, losses, others
        self.rate, self.largest, self.sum = tokens / statistics.median(seconds), memory.largest, memory.sum
        mark = "" if self.counts() else "  disturbed: does not count"
        print(f"{name:22} {self.rate:9.1f} tokens/s  a rank {self.largest / 1e6:6.0f} MB  together {self.sum / 1e6:6.0f} MB  "
              f"others {others:.2f}  steps {' '.join(f'{s:.3f}' for s in seconds)}{mark}", flush=True)

    def counts(self):
        return self.others <= quiet.LIMIT


def family_seconds(pid):
    total = 0
    for at in children(pid):
        try:
            with open(f"/proc/{at}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


def memwall(args, name, sets):
    run = f"{TARGET}/memwall"
    shutil.rmtree(run, ignore_errors=True)
    count = args.warmup + args.steps
    half = {"S": 2, "XS": 4}[args.model]
    command = [args.memwall, "train", f"{STEP}/{args.model}.toml", "--ranks", "2", "--set", f"train.micro_batch={half}"]
    for item in [*sets, "run.threads=2"]:
        command += ["--set", item]
    quiet.require()
    others = quiet.Others()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    memory, metrics = Memory(child.pid), []
    while len(metrics) < count:
        time.sleep(0.1)
        if child.poll() is not None:
            sys.exit(f"memwall ended before its steps were done: {child.stderr.read()}")
        try:
            with open(f"{run}/metrics.jsonl") as file:
                metrics = [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            pass
    cores = others.cores(family_seconds(child.pid))
    memory.done.set()
    child.kill()
    child.wait()
    timed = metrics[args.warmup:count]
    return Row(f"memwall {name}", [m["seconds"] for m in timed], timed[0]["tokens"], [m["loss"] for m in metrics], memory, cores)


def torch(args, name, options):
    environment = dict(os.environ, OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1",
                       TORCHINDUCTOR_CACHE_DIR=os.path.abspath(f"{TARGET}/inductor"))
    if preload():
        environment["LD_PRELOAD"] = preload()
    command = [sys.executable, f"{HERE}/torch_ranks.py", f"{STEP}/{args.model}.toml", *options, "--warmup", str(args.warmup),
               "--steps", str(args.steps)]
    quiet.require()
    others, before = quiet.Others(), os.times()
    complaints = open(f"{TARGET}/complaints.txt", "w+")
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment)
    memory = Memory(child.pid)
    out = child.stdout.read()
    code = child.wait()
    memory.done.set()
    after = os.times()
    cores = others.cores(after.children_user + after.children_system - before.children_user - before.children_system)
    if code:
        complaints.seek(0)
        sys.exit(f"PyTorch's script ended with {code}: {complaints.read()[-2000:]}")
    result = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    args.torch = result["torch"]
    return Row(f"PyTorch {name}", result["seconds"][args.warmup:], result["tokens"], result["losses"], memory, cores)


def table(args, rows):
    names = list(dict.fromkeys(row.name for row in rows))
    counted = {name: [row for row in rows if row.name == name and row.counts()] for name in names}
    lines = [f"{time.strftime('%Y-%m-%d', time.gmtime())}; {os.cpu_count()} cores. Model {args.model}, f32, 2 ranks x 1 thread; "
             f"PyTorch {getattr(args, 'torch', 'not run')} over gloo{', tcmalloc' if preload() else ''}.", "",
             "| | tokens/s | PSS of a rank, MB | of both, MB | runs that count |", "|---|---|---|---|---|"]
    for name in names:
        rows = counted[name]
        if not rows:
            lines.append(f"| {name} | disturbed | | | 0 |")
            continue
        rate, largest, total = (statistics.median(getattr(r, key) for r in rows) for key in ("rate", "largest", "sum"))
        lines.append(f"| {name} | {rate:.1f} | {largest / 1e6:.0f} | {total / 1e6:.0f} | {len(rows)} |")
    return "\n".join(lines) + "\n"


def main():
    args = arguments()
    if not os.path.exists(f"{TARGET}/text.txt"):
        sys.exit("bench/step/run makes the text that this trains on: run it first")
    rows = []
    wanted = lambda name: not args.only or name in args.only
    for _ in range(args.rounds):
        rows += [memwall(args, name, sets) for name, sets in OURS.items() if wanted(name)]
        rows += [torch(args, name, options) for name, options in THEIRS.items() if wanted(name)]
    firsts = [row.losses[0] for row in rows]
    if max(firsts) - min(firsts) > 0.5:
        sys.exit(f"first losses differ: {firsts}")
    text = table(args, rows)
    print(f"\n{text}")
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write(text)


main()
