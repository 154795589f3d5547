"""The promise on memory: a build stays under 1.5 times the weights plus 500 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = r"""
import re, sys
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
result = compile_model(CompileConfig(model=sys.argv[1], output=sys.argv[2], validate=False))
# Not getrusage: its high-water mark survives exec, so it would be that of the test run.
peak = 1024 * int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
print(peak, result.manifest.reports["build"]["params_bytes"])
"""


@pytest.mark.slow
def test_building_gpt2_keeps_the_weights_out_of_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE, "gpt2", str(tmp_path / "x.halo")]
    peak, weights = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-2:])
    assert weights > 490e6
    assert peak < 1.5 * weights + 500e6, f"peak {peak / 1e6:.0f} MB for {weights / 1e6:.0f} MB of weights"
