"""Times collectives of memwall and of others side by side: one after the other, in turns, each in processes of its own.

    compare.py MEMWALL_BENCH [--rounds N] [--bytes N] [--markdown FILE]

Every turn makes ten timed collectives of each kind; a turn's figure is their median, and the table shows medians over the turns.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "step"))
import quiet  # noqa: E402

HERE = os.path.dirname(__file__)
NAMES = ["all_reduce", "reduce_scatter", "all_gather"]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--markdown", metavar="FILE")
    return parser.parse_args()


def has_mpi():
    probe = subprocess.run([sys.executable, "-c", "import mpi4py.MPI"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return shutil.which("mpirun") and probe.returncode == 0


def turn(command):
    quiet.require()
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    rows = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    return {name: statistics.median(rows[name]) for name in NAMES}


def main():
    args = arguments()
    size = ["--bytes", str(args.bytes)]
    sides = {
        "memwall": [args.bench, "collectives", *size],
        "gloo": [sys.executable, f"{HERE}/gloo.py", *size],
    }
    if has_mpi():
        sides["Open MPI"] = ["mpirun", "--allow-run-as-root", "-n", "2", sys.executable, f"{HERE}/mpi.py", *size]
    else:
        print("Open MPI is not compared: mpirun or mpi4py is missing")
    rows = {side: [] for side in sides}
    for _ in range(args.rounds):
        for side, command in sides.items():
            rows[side].append(turn(command))
            print(f"{side:10}", "  ".join(f"{name} {rows[side][-1][name]:8.2f} ms" for name in NAMES), flush=True)
    medians = {side: {n: statistics.median(r[n] for r in rows[side]) for n in NAMES} for side in sides}
    text = [f"{time.strftime('%Y-%m-%d')}; 2 ranks x 1 thread, {args.bytes >> 20} MiB f32, medians of {args.rounds} turns, ms.", "",
            "| | " + " | ".join(n for n in NAMES) + " |", "|---|" + "---|" * len(NAMES)]
    for side in sides:
        cells = []
        for name in NAMES:
            ratio = "" if side == "memwall" else f" ({medians[side][name] / medians['memwall'][name]:.1f} x memwall's)"
            cells.append(f"{medians[side][name]:.1f}{ratio}")
        text.append(f"| {side} | " + " | ".join(cells) + " |")
    print("\n".join(text))
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write("\n".join(text) + "\n")


main()
