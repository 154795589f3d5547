"""The promises on memory: of a build, and of runs of many sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig

ROOT = Path(__file__).resolve().parents[1]
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


# Rows by rows of every size up to 600: 220 MB of scores in all, and as much again behind their softmax.
SIZES = r"""
import numpy as np, onnx.parser
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import compile_in_process
graph = "g (float[n, 64] x) => (float[n, n] y) {t = Transpose <perm = [1, 0]> (x) s = MatMul (x, t) y = Softmax (s)}"
net = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {graph}')
run = compile_in_process(import_proto(net, name="net"))
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
run(np.ones((600, 64), np.float32))
before = resident()
for n in np.random.default_rng(0).permutation(600) + 1:
    run(np.ones((n, 64), np.float32))
print(resident() - before)
"""


@pytest.mark.slow
def test_modules_one_after_another_take_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the heap gets back of them piece by piece, it cannot give out again (`runtime/pools.py`)."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import load_and_close

    path = tmp_path / "mlp.halo"
    compile_model(CompileConfig(model="mlp", output=str(path), records=False, validate=False))
    before, after = load_and_close.cycles(load_and_close.net(path), 30)
    assert not load_and_close.more(before, after)


@pytest.mark.slow
def test_runs_of_many_sizes_hold_the_memory_of_a_few() -> None:
    (grown,) = subprocess.run([sys.executable, "-c", SIZES], capture_output=True, text=True, check=True).stdout.split()
    assert int(grown) < 30e6, f"{int(grown) / 1e6:.0f} MB more behind 600 sizes than behind the largest"
