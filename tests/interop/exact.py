"""transformers' models in true double precision."""
import contextlib
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
import transformers

transformers.utils.logging.disable_progress_bar()


@contextlib.contextmanager
def true_float64():
    """While active, model code that asks for float32 (norms, rotary tables, softmax) gets float64."""
    to, to_float, softmax = torch.Tensor.to, torch.Tensor.float, F.softmax
    swap = lambda d: torch.float64 if d is torch.float32 else d

    def to64(self, *args, **named):
        return to(self, *map(swap, args), **{k: swap(v) for k, v in named.items()})

    def softmax64(x, *args, **named):
        return softmax(x, *args, **{k: swap(v) for k, v in named.items()})

    torch.Tensor.to, torch.Tensor.float = to64, torch.Tensor.double
    F.softmax = torch.nn.functional.softmax = softmax64
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = to, to_float
        F.softmax = torch.nn.functional.softmax = softmax


def to_float64(model):
    """The float32 `model` in float64, its rotary frequencies computed anew; use it under `true_float64`."""
    exact = []
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            config = model.config
            assert config.rope_parameters["rope_type"] == "default", "only plain rotary embedding is known here"
            size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            powers = torch.arange(0, size, 2, dtype=torch.float64) / size
            exact.append((module, 1 / config.rope_parameters["rope_theta"] ** powers))
            assert torch.allclose(exact[-1][1], module.inv_freq.double(), rtol=1e-5), "not the model's frequencies"
    model.double()
    for module, frequencies in exact:
        module.inv_freq = frequencies
    return model
