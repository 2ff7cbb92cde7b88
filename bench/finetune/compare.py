"""Trains a job in memwall and in PyTorch, and says how far the two are apart.

    compare.py MEMWALL JOB [--steps N] [--out FILE.md] [--twin] [--reuse] [--set SECTION.KEY=VALUE ...]

Batches come from `memwall data inspect`, learning rates from the run's metrics, everything else from the run's job.toml.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib

import peer
from picture import picture
import torch

# Largest relative deviation of a loss. In f32 rounding is 6e-8; in bf16 two correct programs differ by some 2^-8 of the
# logits, of which the mean over a batch leaves a part. Training carries both on: at a high learning rate the distance grows
# by some tenths a step, whatever began it. A wrong term, or a batch, rate or mask that is not the same, shows at 1e-2 and
# more within some steps.
TOLERANCE = {"f32": 1e-3, "bf16": 1e-2}
# With a twin, as many times its deviation are allowed too: two distances that grow at one rate from starts that are alike.
OVER_TWIN = 4


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("job")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out")
    parser.add_argument("--twin", action="store_true")
    parser.add_argument("--reuse", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    return parser.parse_args()


def train(args):
    """memwall's run; returns its job with all defaults filled in, and its metrics by step."""
    sets = list(args.set)
    if args.steps:
        sets += [f"train.steps={args.steps}", f"optimizer.warmup_steps={args.steps // 10}",
                 f"train.evaluate_every={max(1, args.steps // 4)}"]
    sets = [word for s in sets for word in ("--set", s)]
    with open(args.job, "rb") as file:
        run = tomllib.load(file)["run"]["dir"]
    run = next((s.partition("=")[2].strip("\"'") for s in args.set[::-1] if s.startswith("run.dir=")), run)
    if not args.reuse:
        # Only what a run of memwall made is removed.
        if os.path.exists(os.path.join(run, "job.toml")):
            shutil.rmtree(run)
        subprocess.run([args.program, "train", args.job, *sets], check=True)
    with open(os.path.join(run, "job.toml"), "rb") as file:
        job = tomllib.load(file)
    with open(os.path.join(run, "metrics.jsonl")) as file:
        metrics = [json.loads(line) for line in file]
    assert [m["step"] for m in metrics] == list(range(1, job["train"]["steps"] + 1)), f"{run} is not a whole run"
    return run, job, metrics


def samples(args, run, *what):
    """What `memwall data inspect` says of the run's samples, as a batch."""
    done = subprocess.run([args.program, "data", "inspect", os.path.join(run, "job.toml"), *what, "--json"], check=True,
                          stdout=subprocess.PIPE, text=True)
    return peer.Batch.of([json.loads(line) for line in done.stdout.splitlines()])


def follow(args, run, job, metrics, name, twin):
    """PyTorch's run over the same batches; an object a step."""
    model = peer.Peer(job, twin)
    evaluation, done, checked = None, [], 0
    for m in metrics:
        batch = samples(args, run, "--step", str(m["step"]))
        if checked < 2 and batch.documents().max() > 1:
            checked = model.check_packing(batch)
            print(f"{name}: the loss of a sequence of {checked} documents is the sum of theirs", flush=True)
        assert batch.tokens.shape == (job["train"]["global_batch"], job["data"]["sequence_length"]), batch.tokens.shape
        assert batch.valid == m["tokens"], f"step {m['step']}: {batch.valid} targets here, {m['tokens']} in memwall"
        start = time.perf_counter()
        loss, norm = model.step(batch, m["learning_rate"])
        step = dict(step=m["step"], loss=loss, gradient_norm=norm, seconds=time.perf_counter() - start,
                    documents=int(batch.documents().max()))
        text = f"{name} step {m['step']}/{len(metrics)}  loss {loss:.4f} (memwall {m['loss']:.4f})"
        if m.get("evaluation_loss") is not None:
            evaluation = evaluation or samples(args, run, "--evaluation")
            step["evaluation_loss"] = model.evaluate(evaluation)
            text += f"  evaluation {step['evaluation_loss']:.4f} (memwall {m['evaluation_loss']:.4f})"
        print(f"{text}  {step['seconds']:.1f} s", flush=True)
        done.append(step)
    return done


def deviations(ours, theirs, key):
    return [(a["step"], abs(a[key] / b[key] - 1)) for a, b in zip(ours, theirs) if a.get(key) is not None]


def largest(points):
    return max(v for _, v in points)


def page(job, metrics, runs, out):
    """The page's text, and the largest deviation of a training or evaluation loss."""
    theirs = runs["PyTorch"]
    t, o = job["train"], job["optimizer"]
    loss, evaluation = deviations(metrics, theirs, "loss"), deviations(metrics, theirs, "evaluation_loss")
    norm = deviations(metrics, theirs, "gradient_norm")
    rows = [m["step"] for m in metrics if m.get("evaluation_loss") is not None]
    rows = sorted({1, *rows})
    text = [
        "# Fine-tuning beside PyTorch", "",
        "<!-- Generated: bench/finetune/run -->", "",
        f"{os.path.basename(os.path.normpath(job['model']['path']))}, fine-tuned in memwall and in PyTorch {torch.__version__} with "
        f"the model classes of transformers {peer.transformers.__version__}: the same start, the same batches, the same recipe. "
        "The text is documentation of Debian packages. `bench/finetune/run` makes this page.", "",
        f"- {t['steps']} steps of {t['global_batch']} sequences of {job['data']['sequence_length']} tokens, micro-batches of "
        f"{t['micro_batch']}; {sum(m['tokens'] for m in metrics)} targets in all; precision {peer.precision(job)}.",
        f"- AdamW: learning rate {o['learning_rate']:g}, {o['schedule']} to {o.get('final_learning_rate', o['learning_rate']):g} after "
        f"{o.get('warmup_steps', 0)} steps of warm-up, betas {o['beta1']} and {o['beta2']}, eps {o['eps']:g}, weight decay "
        f"{o['weight_decay']} (not on norms and biases), gradient norm clipped to {t['clip']}.",
        "- The loss of a step is the sum over its valid targets divided by their number. Documents that share a sequence do not see "
        "each other: PyTorch is given a mask made from the positions"
        + (", and that mask is checked against the documents one by one." if max(m["documents"] for m in theirs) > 1
           else "; in this run no sequence had two."),
        "", f"![Loss curves of both, and their relative deviation]({os.path.basename(out)[:-3]}.svg)", "",
        "Largest relative deviation from PyTorch over the run: "
        f"**{largest(loss):.1e}** of the training loss, **{largest(evaluation):.1e}** of the evaluation loss, "
        f"{largest(norm):.1e} of the gradient norm.", "",
    ]
    if "twin" in runs:
        other = {k: largest(deviations(runs["twin"], theirs, k)) for k in ("loss", "evaluation_loss", "gradient_norm")}
        text += ["PyTorch's twin (another way to compute attention, which is another order of the same sums, and a start moved by about "
                 f"one f32 rounding) deviates from PyTorch by {other['loss']:.1e}, {other['evaluation_loss']:.1e} and "
                 f"{other['gradient_norm']:.1e}: so far are two correct programs apart.", ""]
    text += ["| step | loss, memwall | loss, PyTorch | deviation | evaluation, memwall | evaluation, PyTorch | deviation |",
             "|---|---|---|---|---|---|---|"]
    for k in rows:
        a, b = metrics[k - 1], theirs[k - 1]
        line = f"| {k} | {a['loss']:.6f} | {b['loss']:.6f} | {abs(a['loss'] / b['loss'] - 1):.1e} |"
        if a.get("evaluation_loss") is not None:
            x, y = a["evaluation_loss"], b["evaluation_loss"]
            line += f" {x:.6f} | {y:.6f} | {abs(x / y - 1):.1e} |"
        else:
            line += " | | |"
        text.append(line)
    text.append("")
    return "\n".join(text), max(largest(loss), largest(evaluation))


def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".part", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".part", path)


def main():
    args = arguments()
    out = args.out or ("target/finetune/finetune.md" if args.steps or args.set else "docs/finetune.md")
    assert out.endswith(".md"), "--out is the page: a name that ends in .md"
    run, job, metrics = train(args)
    torch.set_num_threads(job["run"]["threads"] or os.cpu_count())
    runs = {"PyTorch": follow(args, run, job, metrics, "PyTorch", twin=False)}
    if args.twin:
        runs["twin"] = follow(args, run, job, metrics, "twin", twin=True)
    write(os.path.join(run, "pytorch.json"), json.dumps(runs))
    theirs = runs["PyTorch"]
    lines = lambda key: {name: [(m["step"], m[key]) for m in steps if m.get(key) is not None]
                         for name, steps in (("memwall", metrics), ("PyTorch", theirs))}
    deviation = {"training loss, memwall from PyTorch": deviations(metrics, theirs, "loss")}
    if "twin" in runs:
        deviation["training loss, twin from PyTorch"] = deviations(runs["twin"], theirs, "loss")
    text, worst = page(job, metrics, runs, out)
    write(out[:-3] + ".svg", picture("Fine-tuning: memwall and PyTorch", lines("loss"), lines("evaluation_loss"), deviation))
    write(out, text)
    print(f"largest relative deviation: training loss {largest(deviations(metrics, theirs, 'loss')):.2e}, evaluation loss "
          f"{largest(deviations(metrics, theirs, 'evaluation_loss')):.2e}; see {out}")
    limit = TOLERANCE[peer.precision(job)]
    if args.twin:
        limit = max(limit, *(OVER_TWIN * largest(deviations(runs["twin"], theirs, k)) for k in ("loss", "evaluation_loss")))
    if worst > limit:
        sys.exit(f"the two runs are farther apart than {limit:g}")


main()
