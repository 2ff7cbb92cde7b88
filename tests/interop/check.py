"""Loads RUN/export in transformers and compares with what memwall computes with the same model; and RUN/bf16, the same
model in bfloat16 and in several files, with RUN/export.

    check.py RUN PROMPT TOKENS LOGITS

RUN/greedy.txt is memwall's greedy continuation of PROMPT by TOKENS tokens; LOGITS is the program that prints memwall's
logits for token ids.
"""
import json
import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Both compute in f32: rounding is 6e-8, and sums over a few hundred terms through a few layers leave some tens of
# it. Relative to the largest logit. A wrong term (rope pairing, a head's group, a norm) shows at 1e-2.
TOLERANCE = 1e-5

run, prompt, count, program = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
folder = os.path.join(run, "export")
tokenizer = AutoTokenizer.from_pretrained(folder)
model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
assert model.dtype == torch.float32, model.dtype

ids = tokenizer(prompt, return_tensors="pt").input_ids
assert ids[0].tolist() == list(prompt.encode()), "the tokenizer is not memwall's"
with torch.no_grad():
    for _ in range(count):
        best = model(input_ids=ids).logits[0, -1].argmax()
        if int(best) == tokenizer.eos_token_id:
            break
        ids = torch.cat((ids, best.view(1, 1)), 1)
    theirs = model(input_ids=ids).logits[0]
text = tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
ours = open(os.path.join(run, "greedy.txt"), newline="").read().removesuffix("\n")
assert text == ours, f"transformers writes {text!r}\nmemwall writes {ours!r}"

lines = subprocess.run([program, folder, *map(str, ids[0].tolist())], check=True, capture_output=True, text=True)
logits = torch.tensor([json.loads(line) for line in lines.stdout.splitlines()])
assert logits.shape == theirs.shape, (logits.shape, theirs.shape)
deviation = float((logits - theirs).abs().max() / theirs.abs().max())
assert deviation < TOLERANCE, deviation

# Rounded once, to nearest and ties to even, as torch does; so bitwise equal.
folder = os.path.join(run, "bf16")
rounded, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
assert rounded.dtype == torch.bfloat16, rounded.dtype
files = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
assert len(files) > 1 and os.path.exists(os.path.join(folder, "model.safetensors.index.json")), files
state = model.state_dict()
assert set(state) == set(rounded.state_dict())
for name, tensor in rounded.state_dict().items():
    assert torch.equal(tensor, state[name].to(torch.bfloat16)), name
print(json.dumps({"positions": len(logits), "logits_deviation": deviation, "greedy_equal": True}))
