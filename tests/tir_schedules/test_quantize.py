"""The kernel of halo.quantize: vectors from end to end, on every level and for every length of a row."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import relax

from halo_tvm.code_generation import compiled
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import resolve


def assembly(level: str, depth: int) -> str:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("rows", "int64"), depth], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(OPERATORS["quantize"].call(x))
        builder.emit_func_output(out)
    target = resolve(level)
    mod, report = schedule_functions(relax.transform.LegalizeOps()(builder.get()), target)
    assert report.rules == {"row_reduction": 1}
    func = mod["quantize"].with_attr("global_symbol", "quantize")
    return compiled(tvm.IRModule({"quantize": func}), target).mod.inspect_source("asm")


@pytest.mark.parametrize("depth", [768, 3072, 11008])  # a short row is unrolled, a long one is a loop
@pytest.mark.parametrize(
    ("level", "rounding", "register"), [("x86:avx512", "vrndscaleps", "zmm"), ("x86:avx2", "vroundps", "ymm")]
)
def test_no_element_is_rounded_or_stored_by_itself(level: str, rounding: str, register: str, depth: int) -> None:
    text = assembly(level, depth)
    assert re.search(rf"{rounding}\s.*{register}", text)
    scalar = re.findall(r"\b(vroundss|vrndscaless|vcvttss2si|vpextrb|v\w*gather\w*|nearbyintf?\b)", text)
    assert not scalar, f"scalar instructions in the loops: {sorted(set(scalar))}"
