"""A real model in memwall is the same model as in transformers: logits of real text, greedy text; both in f32.

    pretrained.py FOLDER MEMWALL LOGITS

FOLDER is a Hugging Face folder, MEMWALL the program, LOGITS the example that prints memwall's logits for token ids.
"""
import json
import os
import subprocess
import sys

from exact import to_float64, true_float64
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Largest deviation from the logits in float64, relative to the largest logit. transformers' own f32 is off by 2.7e-6 on
# SmolLM2-135M; another order of sums may be off a few times as far. A wrong term (rope pairing, a head's group, a norm)
# shows at 1e-2, a rotary embedding whose angles drift with the position at the last positions first.
TOLERANCE = 1e-5
POSITIONS = 256
GENERATED = 64
# SmolLM2 ends the first by itself: that memwall stops there too is part of the comparison.
PROMPTS = ["The memory of a computer", "def quicksort(items):\n"]

folder, program, logits_program = sys.argv[1:4]
root = os.path.join(os.path.dirname(__file__), "../..")
tokenizer = AutoTokenizer.from_pretrained(folder)
model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
model.eval()


def greedy(prompt):
    """The continuation, token by token without a cache; the gap between the two best logits where it is smallest."""
    ids, gap = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids, float("inf")
    with torch.no_grad():
        count = 0
        while count < GENERATED:
            best = model(input_ids=ids, use_cache=False).logits[0, -1].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            if int(best.indices[0]) == tokenizer.eos_token_id:
                break
            ids = torch.cat((ids, best.indices[:1].view(1, 1)), 1)
            count += 1
    return tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False), count, gap


def deviation(ours, exact):
    return float((ours - exact).abs().max() / exact.abs().max())


text = open(os.path.join(root, "LICENSE"), encoding="utf-8").read()
ids = tokenizer(text, add_special_tokens=False).input_ids[:POSITIONS]
assert len(ids) == POSITIONS
written = [greedy(prompt) for prompt in PROMPTS]
assert max(count for _, count, _ in written) == GENERATED, "no prompt goes on for long enough"
with torch.no_grad():
    theirs = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    with true_float64():
        exact = to_float64(model)(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
heads, groups = model.config.num_attention_heads, model.config.num_key_value_heads
del model

lines = subprocess.run([logits_program, folder, *map(str, ids)], check=True, capture_output=True, text=True).stdout
ours = torch.tensor([json.loads(line) for line in lines.splitlines()], dtype=torch.float64)
assert ours.shape == exact.shape, (ours.shape, exact.shape)
# llama_cpp_3364, llama2_c_286: the first tokens may look right under a wrong rotary layout or grouping of heads.
assert groups < heads, f"{heads} heads on {groups}: grouped heads would not be checked"
for first in range(0, POSITIONS, 64):
    part = slice(first, first + 64)
    off = float((ours[part] - exact[part]).abs().max() / exact.abs().max())
    assert off < TOLERANCE, f"logits of positions {first} to {first + 63} are off by {off:.1e} of the largest"

for prompt, (text, _, gap) in zip(PROMPTS, written):
    done = subprocess.run([program, "generate", folder, "--prompt", prompt, "--temperature", "0", "--max-tokens",
                           str(GENERATED)], check=True, capture_output=True)
    mine = done.stdout.decode().removesuffix("\n")
    assert mine == text, f"transformers writes {text!r}\nmemwall writes {mine!r}\nsmallest gap of two logits: {gap:.1e}"

print(json.dumps({
    "positions": POSITIONS, "heads": heads, "key_value_heads": groups,
    "memwall_logits_from_f64": deviation(ours, exact), "transformers_logits_from_f64": deviation(theirs, exact),
    "greedy_equal": True, "greedy_tokens": [count for _, count, _ in written],
    "greedy_smallest_gap": min(gap for _, _, gap in written),
}))
