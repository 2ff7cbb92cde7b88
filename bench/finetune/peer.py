"""The peer: a transformers model trained with torch.optim.AdamW on given batches by a memwall job's recipe."""
import dataclasses
import fnmatch
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
import transformers

transformers.utils.logging.disable_progress_bar()
IGNORE = -100


@dataclasses.dataclass
class Batch:
    """Token ids, positions and targets `[samples, sequence]`; IGNORE where nothing is to be predicted."""
    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor

    @staticmethod
    def of(samples):
        """Of memwall's samples, which ignore targets of -1."""
        tokens, positions, targets = (torch.tensor([s[k] for s in samples]) for k in ("tokens", "positions", "targets"))
        return Batch(tokens, positions, torch.where(targets < 0, IGNORE, targets))

    @property
    def valid(self):
        return int((self.targets != IGNORE).sum())

    def documents(self):
        """How many documents, or parts of them, each sample holds: positions restart at 0."""
        return (self.positions == 0).sum(1)

    def part(self, rows, columns=slice(None)):
        return Batch(*(t[rows, columns] for t in (self.tokens, self.positions, self.targets)))

    def micro_batches(self, size):
        return [self.part(slice(first, first + size)) for first in range(0, len(self.tokens), size)]

    def mask(self):
        """True where a token may look: at itself and what is before it in its document (positions restart at 0)."""
        document = (self.positions == 0).cumsum(1)
        same = document[:, :, None] == document[:, None, :]
        causal = torch.ones(same.shape[1:], dtype=torch.bool).tril()
        return (same & causal)[:, None]


class Peer:
    """A model and its optimizer; in bf16 the masters and moments are f32. A `twin` is as correct and differs by rounding:
    attention is computed the other way, and the start is moved by about one f32 rounding."""

    def __init__(self, job, twin=False):
        self.job = job
        attention = "eager" if twin else "sdpa"
        self.narrow = {"f32": torch.float32, "bf16": torch.bfloat16}[precision(job)]
        # Masters are what the folder has, whatever its dtype, in f32.
        wide = transformers.AutoModelForCausalLM.from_pretrained(job["model"]["path"], dtype=torch.float32,
                                                                 attn_implementation=attention)
        window = getattr(wide.config, "sliding_window", None)
        assert not window or window >= job["data"]["sequence_length"], "a window is not in this program's masks"
        dropout = {k: v for k, v in wide.config.to_dict().items() if k.endswith(("dropout", "pdrop")) and v}
        assert not dropout, f"no two programs draw the same dropout: {dropout}"
        if self.narrow == torch.float32:
            self.model, self.masters = wide, dict(wide.named_parameters())
        else:
            self.masters = {n: p.detach().clone().requires_grad_() for n, p in wide.named_parameters()}
            del wide
            self.model = transformers.AutoModelForCausalLM.from_pretrained(
                job["model"]["path"], dtype=self.narrow, attn_implementation=attention)
        if twin:
            move = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for p in self.masters.values():
                    p.mul_(1 + 2.0 ** -23 * torch.randn(p.shape, generator=move))
        self.publish()
        self.model.train()
        o = job["optimizer"]
        without = o.get("no_decay", [])
        decays = lambda n, p: p.ndim >= 2 and not any(fnmatch.fnmatchcase(n, pattern) for pattern in without)
        groups = [dict(params=[p for n, p in self.masters.items() if decays(n, p) == decay],
                       weight_decay=o["weight_decay"] if decay else 0.0) for decay in (True, False)]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0,
                                           betas=(o["beta1"], o["beta2"]), eps=o["eps"], fused=True)

    def loss(self, batch):
        """Sum of the losses of the batch's targets."""
        mask = batch.mask()
        # Added to the scores: every token may look at itself, so no row is all -inf.
        mask = torch.zeros(mask.shape, dtype=self.narrow).masked_fill(~mask, float("-inf"))
        logits = self.model(input_ids=batch.tokens, attention_mask=mask, position_ids=batch.positions,
                            use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum")

    def step(self, batch, rate):
        """One step; returns its loss and the gradient norm before clipping."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = 0.0
        for micro in batch.micro_batches(self.job["train"]["micro_batch"]):
            # One count for the whole step, not one for each micro-batch.
            loss = self.loss(micro) / batch.valid
            loss.backward()
            total += float(loss.detach())
            self.collect()
        clip = self.job["train"]["clip"] or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(list(self.masters.values()), clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.publish()
        return total, float(norm)

    @torch.no_grad()
    def publish(self):
        """Rounds the masters to the model's weights."""
        if self.narrow != torch.float32:
            for name, p in self.model.named_parameters():
                p.copy_(self.masters[name])

    def collect(self):
        """Adds the model's bf16 gradients to the masters' f32 ones."""
        if self.narrow == torch.float32:
            return
        for name, p in self.model.named_parameters():
            master = self.masters[name]
            master.grad = p.grad.float() if master.grad is None else master.grad + p.grad
            p.grad = None

    @torch.no_grad()
    def evaluate(self, batch):
        return sum(float(self.loss(m)) for m in batch.micro_batches(self.job["train"]["micro_batch"])) / batch.valid

    @torch.no_grad()
    def check_packing(self, batch):
        """The loss of a packed sequence is the sum of its documents' losses: proves this program's own mask."""
        most = int(batch.documents().argmax())
        row = batch.part(slice(most, most + 1))
        cuts = (row.positions[0] == 0).nonzero().flatten().tolist() + [row.tokens.shape[1]]
        apart = 0.0
        for first, end in zip(cuts, cuts[1:]):
            document = row.part(slice(None), slice(first, end))
            if document.valid:
                apart += float(self.loss(document))
        together = float(self.loss(row))
        limit = 1e-4 if self.narrow == torch.float32 else 2e-2
        assert abs(together / apart - 1) < limit, f"packed documents see each other: {together} for {apart}"
        return len(cuts) - 1


def precision(job):
    """Type of the weights that the model computes with."""
    return job.get("precision", {"mode": "f32"})["mode"]
