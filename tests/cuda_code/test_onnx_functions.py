"""What ONNX's own tests become on a GPU: each of their functions emulated, beside a CPU's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from emulated_functions import assert_near, emulated, scheduled_file
from emulation import KernelFault
from tvm import tirx

from halo_tvm.errors import HaloError, UnsupportedModel

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("[a-b]", "c", "[d-k]", "l", "[m-q]", "r(?!educe)", "reduce", "[s-z]")
# Expanded tests are the others again; recurrences take minutes; indices drawn at random leave a matrix.
LEFT_OUT = r"expanded|float16|FLOAT16|fp16|bfloat|BFLOAT|^test_(cast|lstm|gru|rnn|simple_rnn|det_)"
EMULATED = ("float32", "float64", "int32", "int64", "int8", "uint8")


@cache
def node_tests() -> dict[str, object]:
    sys.path.insert(0, str(ROOT / "scripts"))
    from onnx_conformance import load_tests

    return load_tests("node")


def functions(model: onnx.ModelProto, path: Path) -> Iterator[tuple[str, tirx.PrimFunc, tirx.PrimFunc, str]]:
    """Name, before and after its rule, and the rule of each function that can be emulated; none of a refused model."""
    onnx.save(model, path)
    try:
        net = scheduled_file(path, "fp32")
    except HaloError:
        return
    for name, func in net.before.items():
        shapes = [getattr(param.ty, "shape", (None,)) for param in func.params]
        dtypes = {str(getattr(param.ty, "dtype", "")) for param in func.params}
        if dtypes <= {*EMULATED} and all(isinstance(dim, tirx.IntImm) for shape in shapes for dim in shape):
            yield name, func, net.after[name], net.rules[name]


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_functions_are_right(family: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    wrong: list[str] = []
    for test in node_tests().values():
        if test.model is None or not re.match(f"test_{family}", test.name) or re.search(LEFT_OUT, test.name):
            continue
        for name, before, after, rule in functions(test.model, tmp_path / "model.onnx"):
            if (text := before.script()) in seen:
                continue
            seen.add(text)
            try:
                for array, wanted in emulated(before, after):
                    if array.dtype.kind == "f":
                        assert_near(array, wanted, name)
                    else:
                        np.testing.assert_array_equal(array, wanted)
            except UnsupportedModel:  # the emulation says what it cannot do
                continue
            except (AssertionError, KernelFault) as error:
                wrong.append(f"{test.name}: {name} by {rule}: {str(error)[:300]}")
    assert seen and not wrong, "\n".join(wrong)
