"""A decoder of the Llama architecture in plain PyTorch operations, as someone who knows PyTorch would write it."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Causal attention of full heads; one fused projection for queries, keys and values."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_btd, turn):
        batch, length, width = x_btd.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x_btd).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(rotate(q, turn), rotate(k, turn), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def angles(length, head_dim, base=10000.0):
    """Cosines and sines of the rotary embedding, `[length, head_dim / 2]` each."""
    rates = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * rates
    return angle.cos(), angle.sin()


def rotate(x, turn):
    """Turns the pair (i, i + head_dim / 2) of each head by its angle."""
    cos, sin = (t.to(x.dtype) for t in turn)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    """One layer: attention and a gated MLP, each behind a norm and beside a residual."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x_btd, turn):
        x_btd = x_btd + self.attention(self.norm1(x_btd), turn)
        gate, up = self.gate_up(self.norm2(x_btd)).chunk(2, dim=-1)
        return x_btd + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Embedding, layers, norm and head; forward returns the mean loss."""

    def __init__(self, config, length, recompute=False):
        """`config` is the `[model.config]` of a job of memwall."""
        super().__init__()
        width, heads = config["hidden_size"], config["num_attention_heads"]
        assert config["num_key_value_heads"] == heads, "grouped heads are not written here"
        self.recompute = recompute
        self.embedding = nn.Embedding(config["vocab_size"], width)
        self.blocks = nn.ModuleList(Block(width, heads, config["intermediate_size"])
                                    for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, config["vocab_size"], bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if config["tie_word_embeddings"]:
            self.head.weight = self.embedding.weight
        cos, sin = angles(length, width // heads)
        # Plain tensors, not buffers: a model that is cast to bf16 keeps its angles.
        self.turn = (cos, sin)

    def forward(self, tokens_bt, targets_bt):
        x_btd = self.embedding(tokens_bt)
        for block in self.blocks:
            if self.recompute:
                x_btd = checkpoint(block, x_btd, self.turn, use_reentrant=False)
            else:
                x_btd = block(x_btd, self.turn)
        logits = self.head(self.norm(x_btd))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets_bt.flatten())
