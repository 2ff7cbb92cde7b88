"""The allocator that PyTorch is given."""
import os


def preload():
    """The allocator that serves PyTorch best, where this machine has it."""
    folders = [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib"]
    names = ["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"]
    return next((path for folder in folders for name in names if os.path.exists(path := f"{folder}/{name}")), None)
