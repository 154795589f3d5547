"""TVM loads no PyTorch, and one that is loaded before or after it works as ever."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")

BEHIND = """
import sys
import halo_tvm.compiler
assert "torch" not in sys.modules
import tvm_ffi, torch
assert tvm_ffi.from_dlpack(torch.arange(3)).numpy().tolist() == [0, 1, 2]
assert tvm_ffi.get_global_func("testing.echo")(torch.arange(3)).numpy().tolist() == [0, 1, 2]
"""
BESIDE = """
import threading
import halo_tvm
failed = []
def other():
    try:
        import torch
    except ImportError as reason:
        failed.append(reason)
thread = threading.Thread(target=other)
thread.start()
import tvm
thread.join()
assert not failed, failed
"""
BEFORE = """
import torch
import halo_tvm.runtime
import tvm_ffi
tvm_ffi.use_torch_stream()
"""


@pytest.mark.parametrize(
    "program",
    [BEHIND, *(pytest.param(program, marks=pytest.mark.slow) for program in (BESIDE, BEFORE))],
    ids=["behind", "beside", "before"],
)
def test_torch_and_tvm_in_one_process(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
