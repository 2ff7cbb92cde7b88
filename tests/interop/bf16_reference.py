"""Writes crates/engine/tests/reference/bf16: what PyTorch computes in bf16 for the tiny reference models.

    bf16_reference.py [NAME ...]

The scheme is the usual one: float32 masters and moments, weights = masters rounded to bf16, forward and backward of the
model classes of transformers in bf16, loss in float32 from bf16 logits, bf16 gradients, norm, clipping and AdamW in
float32. Beside it the same scheme with nothing rounded but the weights ("exact": float64, weights rounded to bf16 at
each step), and training without any rounding ("f64") and in float32 ("f32").

How far PyTorch's bf16 is from "exact" is the yardstick for any other bf16 implementation, and it is in meta.json for
two orders of summation (PyTorch's two attention paths), which shows how much of a distance is chance.
The README beside the output says what is in which file.
"""
import contextlib
import json
import math
import os
import sys

from exact import to_float64, true_float64
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

REFERENCE = os.path.join(os.path.dirname(__file__), "../../crates/engine/tests/reference")
NAMES = ["llama_gqa_tied", "qwen3_qknorm", "gpt2"]
# The recipe "clip" of the float32 references.
RECIPE = dict(lr=5e-3, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.1, clip_norm=0.25)
STEPS = 3
CURVE = dict(steps=60, batch=4, sequence=32, vocabulary=80, follows=0.85, seed=17)


def load(name, dtype, attention):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(REFERENCE, name), dtype=torch.float32 if dtype == torch.float64 else dtype,
        attn_implementation=attention)
    assert all(m.inv_freq.dtype == torch.float32 for m in model.modules() if hasattr(m, "inv_freq")), \
        "rotary frequencies were rounded with the weights"
    if dtype == torch.float64:
        to_float64(model)
    return model.train()


class Trainer:
    """Masters and moments in `wide`, the model computing in `narrow`, its weights rounded to `weights`."""

    def __init__(self, name, narrow, wide, weights, attention="sdpa"):
        self.model = load(name, narrow, attention)
        self.exact = narrow == torch.float64
        self.narrow, self.wide, self.weights = narrow, wide, weights
        start = load_file(os.path.join(REFERENCE, name, "model.safetensors"))
        self.parameters = dict(self.model.named_parameters())
        assert set(start) == set(self.parameters)
        self.masters = {n: start[n].to(wide).requires_grad_() for n in self.parameters}
        matrices = [p for p in self.masters.values() if p.ndim >= 2]
        vectors = [p for p in self.masters.values() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [dict(params=matrices, weight_decay=RECIPE["weight_decay"]), dict(params=vectors, weight_decay=0.0)],
            lr=RECIPE["lr"], betas=RECIPE["betas"], eps=RECIPE["eps"], foreach=False, fused=False)

    def gradients(self, tokens, targets):
        with torch.no_grad():
            for n, p in self.parameters.items():
                p.copy_(self.masters[n].to(self.weights).to(self.narrow))
        self.model.zero_grad(set_to_none=True)
        with true_float64() if self.exact else contextlib.nullcontext():
            logits = self.model(input_ids=tokens, use_cache=False).logits
            assert logits.dtype == self.narrow
            loss = F.cross_entropy(logits.to(self.wide).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        assert all(p.grad.dtype == self.narrow for p in self.parameters.values())
        return logits.detach(), float(loss.detach()), {n: p.grad.to(self.wide) for n, p in self.parameters.items()}

    def step(self, tokens, targets):
        _, loss, gradients = self.gradients(tokens, targets)
        for n, p in self.masters.items():
            p.grad = gradients[n]
        norm = torch.nn.utils.clip_grad_norm_(list(self.masters.values()), RECIPE["clip_norm"])
        self.optimizer.step()
        return loss, float(norm)


TRAINERS = {
    "bf16": dict(narrow=torch.bfloat16, wide=torch.float32, weights=torch.bfloat16),
    "bf16_eager": dict(narrow=torch.bfloat16, wide=torch.float32, weights=torch.bfloat16, attention="eager"),
    "exact": dict(narrow=torch.float64, wide=torch.float64, weights=torch.bfloat16),
    "f64": dict(narrow=torch.float64, wide=torch.float64, weights=torch.float64),
    "f32": dict(narrow=torch.float32, wide=torch.float32, weights=torch.float32),
}


def far(a, b):
    """|a - b| / |b|, Euclidean."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def without_key_bias(name, values):
    """gpt2's key biases have no gradient in exact arithmetic: AdamW makes full steps of their rounding noise."""
    if not name.endswith("c_attn.bias"):
        return values
    query, _, value = values.chunk(3)
    return torch.cat((query, value))


def whole(named):
    return torch.cat([without_key_bias(n, named[n]).double().flatten() for n in sorted(named)])


def distances(ours, exact):
    tensors = {n: far(without_key_bias(n, ours[n]), without_key_bias(n, exact[n])) for n in sorted(ours)}
    return dict(all=far(whole(ours), whole(exact)), tensors=tensors)


def curve_batches():
    """Learnable at random: each token is followed by its image under one permutation, or else by any token."""
    g = torch.Generator().manual_seed(CURVE["seed"])
    v, rows = CURVE["vocabulary"], CURVE["steps"] * CURVE["batch"]
    image = torch.randperm(v, generator=g)
    tokens = [torch.randint(0, v, (rows,), generator=g)]
    for _ in range(CURVE["sequence"]):
        any_token = torch.randint(0, v, (rows,), generator=g)
        follows = torch.rand(rows, generator=g) < CURVE["follows"]
        tokens.append(torch.where(follows, image[tokens[-1]], any_token))
    tokens = torch.stack(tokens, 1).view(CURVE["steps"], CURVE["batch"], CURVE["sequence"] + 1)
    return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()


def reference(name, out, curve):
    batch = load_file(os.path.join(REFERENCE, name, "batch.safetensors"))
    tokens, targets = batch["input_ids"], batch["targets"]
    make = lambda kind: Trainer(name, **TRAINERS[kind])
    start = {n: t.double() for n, t in load_file(os.path.join(REFERENCE, name, "model.safetensors")).items()}
    logits, losses, gradients, updates, after, runs = {}, {}, {}, {}, {}, {}
    for kind in TRAINERS:
        trainer = make(kind)
        logits[kind], losses[kind], gradients[kind] = trainer.gradients(tokens[0], targets[0])
        steps = [trainer.step(tokens[k], targets[k]) for k in range(STEPS)]
        after[kind] = {n: p.detach() for n, p in trainer.masters.items()}
        updates[kind] = {n: p.double() - start[n] for n, p in after[kind].items()}
        trainer = make(kind)
        runs[kind] = dict(losses=[l for l, _ in steps], grad_norms_before_clip=[n for _, n in steps],
                          curve=[trainer.step(*pair)[0] for pair in zip(*curve)])
    # The float64 references were made by another program.
    with open(os.path.join(REFERENCE, name, "meta.json")) as file:
        want = json.load(file)["adamw_clip"]["f64"]
    for ours, want in zip(runs["f64"]["losses"] + runs["f64"]["grad_norms_before_clip"],
                          want["losses"] + want["grad_norms_before_clip"], strict=True):
        assert abs(ours / want - 1) < 1e-9, (ours, want)
    distance = {}
    for kind in ("bf16", "bf16_eager", "f32", "f64"):
        to = "f64" if kind == "f32" else "exact"
        pair = zip(runs[kind]["curve"], runs[to]["curve"])
        distance[f"{kind} from {to}"] = dict(
            logits=far(logits[kind], logits[to]), loss=abs(losses[kind] / losses[to] - 1),
            losses=max(abs(a / b - 1) for a, b in zip(runs[kind]["losses"], runs[to]["losses"])),
            norms=max(abs(a / b - 1) for a, b in zip(runs[kind]["grad_norms_before_clip"],
                                                     runs[to]["grad_norms_before_clip"])),
            gradients=distances(gradients[kind], gradients[to]), updates=distances(updates[kind], updates[to]),
            curve=max(abs(a / b - 1) for a, b in pair))
    rounded = {n: t.to(torch.bfloat16) for n, t in load_file(os.path.join(REFERENCE, name, "model.safetensors")).items()}
    save(out, f"{name}.gradients", {
        **{f"weight.{n}": t for n, t in rounded.items()},
        **{f"grad.bf16.{n}": t for n, t in gradients["bf16"].items()},
        **{f"grad.exact.{n}": t.float() for n, t in gradients["exact"].items()}})
    save(out, f"{name}.masters", {
        **{f"adamw_clip.bf16.{n}": t for n, t in after["bf16"].items()},
        **{f"adamw_clip.exact.{n}": t.float() for n, t in after["exact"].items()}})
    for title, d in distance.items():
        print(f"{name:16} {title:22}" + "".join(
            f" {k} {d[k]['all'] if isinstance(d[k], dict) else d[k]:.1e}" for k in d), flush=True)
    return dict(runs=runs, distance=distance)


def save(out, name, tensors):
    path = os.path.join(out, name + ".safetensors")
    save_file({n: t.detach().contiguous().clone() for n, t in tensors.items()}, path)
    assert os.path.getsize(path) < 300 << 10, path


def main():
    torch.set_num_threads(1)
    out = os.path.join(REFERENCE, "bf16")
    os.makedirs(out, exist_ok=True)
    curve = curve_batches()
    save(out, "curve_batches", dict(input_ids=curve[0], targets=curve[1]))
    # The loss of a model that knows the permutation and how often it holds.
    v, follows = CURVE["vocabulary"], CURVE["follows"]
    hit = follows + (1 - follows) / v
    floor = -hit * math.log(hit) - (1 - hit) * math.log((1 - hit) / (v - 1))
    for name in sys.argv[1:] or NAMES:
        meta = dict(reference(name, out, curve), recipe=RECIPE, curve=dict(CURVE, lowest_possible_loss=floor),
                    torch=torch.__version__, transformers=transformers.__version__)
        with open(os.path.join(out, name + ".meta.json"), "w") as file:
            json.dump(meta, file, indent=1)
            file.write("\n")


main()
