"""Plans a job on every path, trains it on those that fit, and writes a table.

    paths.py MEMWALL JOB.toml TABLE.md
"""
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib

PATHS = {
    "A, one rank": ["parallel.ranks=1"],
    "B, 2 ranks, replicated": ["parallel.ranks=2"],
    "C, 2 ranks, ZeRO-1": ["parallel.ranks=2", "parallel.zero=1"],
    "C, 2 ranks, ZeRO-2": ["parallel.ranks=2", "parallel.zero=2"],
    "C, 2 ranks, ZeRO-3": ["parallel.ranks=2", "parallel.zero=3"],
    "C, 4 ranks, ZeRO-3": ["parallel.ranks=4", "parallel.zero=3"],
    "C, 4 ranks, ZeRO-3 in 2 replicas": ["parallel.ranks=4", "parallel.zero=3", "parallel.dp_replicate=2"],
}
CATEGORIES = ["weights", "gradients", "optimizer_state", "activations", "gathered", "communication", "workspace"]
MIB = 1 << 20


def sets(items):
    return [part for item in items for part in ("--set", item)]


def plan(memwall, job, items):
    """What the job costs, whatever the budget; and whether it fits that of the job."""
    ask = lambda *more: subprocess.run([memwall, "plan", job, "--json", *sets([*items, *more])], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
    free = ask("memory.budget=1 TiB")
    if free.returncode:
        sys.exit(f"memwall plan: {free.stderr}")
    refused = ask()
    if refused.returncode not in (0, 2):
        sys.exit(f"memwall plan: {refused.stderr}")
    return json.loads(free.stdout), refused.returncode == 0


def train(memwall, job, items, folder):
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run([memwall, "train", job, *sets(items)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"memwall train {items}: {done.stdout}")
    with open(f"{folder}/summary.json") as file:
        return json.load(file)


def mib(count):
    return f"{count / MIB:.1f}"


def cell(predicted, measured):
    """A figure, and the measured one where it is another."""
    if measured is None:
        return mib(predicted)
    return f"{mib(predicted)} =" if predicted == measured else f"{mib(predicted)}, measured {mib(measured)}"


def wire(parts):
    return sum(row["bytes"] for row in parts)


def main():
    memwall, job, table = sys.argv[1:]
    with open(job, "rb") as file:
        written = tomllib.load(file)
    folder, budget = written["run"]["dir"], written["memory"]["budget"]
    lines = [f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, {job}: a budget of {budget} for each rank. MiB of a "
             "rank at its peak; = means measured and equal to the byte.", "",
             "| path | fits | peak | " + " | ".join(c.replace("_", " ") for c in CATEGORIES) + " | wire, MiB a step | tokens/s |",
             "|---|---|---|" + "---|" * (len(CATEGORIES) + 2)]
    for name, items in PATHS.items():
        predicted, fits = plan(memwall, job, items)
        summary = train(memwall, job, items, folder) if fits else None
        peak = predicted["predicted"]["at_peak"]
        measured = summary["memory"]["measured"]["at_peak"] if summary else {}
        row = [name, "yes" if fits else "no", cell(peak["total"], measured.get("total"))]
        row += [cell(peak[c], measured.get(c)) for c in CATEGORIES]
        sent = wire(predicted["wire"])
        row.append(cell(sent, wire(summary["wire"]["measured"]) if summary and summary.get("wire") else (sent if summary else None)))
        row.append(f"{summary['median_tokens_per_second']:.0f}" if summary else "")
        lines.append("| " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    with open(table, "w") as file:
        file.write("\n".join(lines) + "\n")


main()
