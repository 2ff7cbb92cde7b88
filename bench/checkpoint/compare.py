"""Times checkpoints of memwall and of PyTorch DCP side by side, in turns, each in a process of its own.

    compare.py MEMWALL_BENCH [--rounds N] [--folder DIR] [--markdown FILE]

PyTorch writes with one thread and with two, and its better figures count.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "step"))
import quiet  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default="target/bench/checkpoint")
    parser.add_argument("--job", default=os.path.join(HERE, "..", "step", "S.toml"))
    parser.add_argument("--markdown", metavar="FILE")
    return parser.parse_args()


def turn(command, folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()
    quiet.require()
    environment = dict(os.environ, OMP_NUM_THREADS="2")
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])


def main():
    args = arguments()
    rows = {"memwall": [], "DCP, 1 thread": [], "DCP, 2 threads": []}
    for _ in range(args.rounds):
        own = turn([args.bench, "checkpoint", "--folder", args.folder, "--job", args.job], args.folder)
        rows["memwall"].append(own)
        print("memwall       ", own, flush=True)
        for threads in (1, 2):
            command = [sys.executable, f"{HERE}/torch_checkpoint.py", "--folder", args.folder, "--bytes", str(own["bytes"]),
                       "--threads", str(threads)]
            row = turn(command, args.folder)
            rows[f"DCP, {threads} thread{'s' if threads > 1 else ''}"].append(row)
            print(f"DCP, {threads} threads", row, flush=True)
    own, ones, twos = rows.values()
    # Megabytes a second, so that states of slightly different size compare.
    rate = lambda rows, what: statistics.median(r["bytes"] / r[what] / 1e6 for r in rows)
    best = lambda what: max(rate(ones, what), rate(twos, what))
    share = statistics.median(r["stood_still"] / r["background"] for r in own)
    stood = [r["stood_still"] for r in ones + twos if isinstance(r["stood_still"], float)]
    bytes_of = lambda r, what: r["bytes"] / r[what] / 1e6
    disk = statistics.median(bytes_of(r, "disk") for r in own)
    text = [
        f"{time.strftime('%Y-%m-%d')}; weights and two moments of S, f32, {own[0]['bytes'] / 1e9:.2f} GB; one process, two threads; "
        f"medians of {args.rounds} turns.", "",
        "| | memwall, MB/s | bound, MB/s | PyTorch DCP's best, MB/s | ratio to DCP |", "|---|---|---|---|---|"]
    for name, what, bound in [("save, to the disk", "save", disk),
                              ("load, from memory", "load_warm", rate(own, "read_warm")),
                              ("load, from the disk", "load_cold", rate(own, "read_cold"))]:
        mine, theirs = rate(own, what), best(what)
        text.append(f"| {name} | {mine:.0f} ({mine / bound:.2f} of the bound) | {bound:.0f} | {theirs:.0f} | {mine / theirs:.2f} |")
    seconds = statistics.median(r["background"] for r in own)
    beside = statistics.median(statistics.mean(r["steps_beside"]) / r["step_alone"] for r in own if r["steps_beside"])
    text += ["", f"Beside training a save took {seconds:.2f} s, for {100 * share:.1f}% of which training stood still; steps of "
             f"{statistics.median(r['step_alone'] for r in own):.2f} s took {beside:.2f} times as long meanwhile."]
    if stood:
        text[-1] += f" PyTorch's async_save returned after {statistics.median(stood):.2f} s."
    text += ["", "Bounds: one file of as many bytes, written and synced; all files read once, from memory and from the disk."]
    print("\n".join(text))
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write("\n".join(text) + "\n")


main()
