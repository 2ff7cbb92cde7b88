"""Kills a rank in the middle of a run and goes on: how long each phase takes.

    recovery.py MEMWALL [--kills N] [--markdown FILE]
"""
import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time

RUN = "target/bench/recovery"
SETS = ["checkpoint.every=5", "train.steps=100000", f"run.dir={RUN}", "parallel.zero=3"]


def steps():
    try:
        with open(f"{RUN}/metrics.jsonl") as file:
            return sum(line.endswith("\n") for line in file)
    except FileNotFoundError:
        return 0


def ranks(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return list(map(int, file.read().split()))


def start(memwall, *more):
    sets = [part for item in SETS for part in ("--set", item)]
    return subprocess.Popen([memwall, "train", "examples/quickstart.toml", "--ranks", "2", *sets, *more],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(what, limit=120):
    begin = time.perf_counter()
    while not what():
        if time.perf_counter() - begin > limit:
            sys.exit("nothing happened for two minutes")
        time.sleep(0.002)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("memwall")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--markdown", metavar="FILE")
    args = parser.parse_args()
    shutil.rmtree(RUN, ignore_errors=True)
    draw = random.Random(1)
    rows = []
    child = start(args.memwall)
    wait_for(lambda: steps() > 6)
    for _ in range(args.kills):
        time.sleep(draw.random())
        os.kill(draw.choice(ranks(child.pid)), signal.SIGKILL)
        killed = time.perf_counter()
        words = child.communicate()[1]
        ended = time.perf_counter()
        assert child.returncode == 1 and "was killed by signal 9" in words, (child.returncode, words)
        # Lines of steps after the checkpoint are dropped when the run goes on.
        child = start(args.memwall, "--resume")
        begun = time.perf_counter()
        before = os.stat(f"{RUN}/metrics.jsonl").st_mtime_ns
        wait_for(lambda: os.stat(f"{RUN}/metrics.jsonl").st_mtime_ns != before)
        resumed = steps()
        wait_for(lambda: steps() > resumed)
        rows.append((ended - killed, time.perf_counter() - begun))
        print(f"stopped {rows[-1][0]:.3f} s after the kill, a step {rows[-1][1]:.3f} s after the start", flush=True)
    child.kill()
    child.wait()
    stop, again = ([row[i] for row in rows] for i in (0, 1))
    text = (f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, {args.kills} kills of a rank of two (ZeRO-3), the model of the "
            "quickstart; seconds.\n\n| phase | median | longest |\n|---|---|---|\n"
            f"| from the kill until all processes have ended and said why | {statistics.median(stop):.2f} | {max(stop):.2f} |\n"
            f"| from `--resume` until a step is done: job and data read, checkpoint verified and loaded, ranks compared | "
            f"{statistics.median(again):.2f} | {max(again):.2f} |\n")
    print(text)
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write(text)


main()
