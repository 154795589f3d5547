"""Norms along an axis that is no row: the sums are one kernel, what runs over their places again another."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import small_model
from tolerances import assert_close
from tvm import relax

from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.in_process import compile_in_process
from halo_tvm.interpreter import evaluate
from halo_tvm.models.builder import ModelBuilder


def normed(axis: int, length: int | str) -> ImportedModel:
    """x [2, length, 24] over the root of its mean square along `axis`, through a GELU."""

    def body(m: ModelBuilder) -> dict[str, relax.Expr]:
        x = m.inputs["x"]
        mean = m.emit(relax.op.mean(m.emit(relax.op.multiply(x, x)), axis, True))
        root = m.emit(relax.op.rsqrt(m.emit(relax.op.add(mean, relax.const(1e-5, "float32")))))
        y = m.emit(relax.op.multiply(m.emit(relax.op.multiply(x, root)), m.weight("scale", (24,))))
        return {"y": m.emit(relax.op.nn.gelu(y))}

    return small_model((InputSpec("x", (2, length, 24), "float32"),), body, t=(1, 70))


@pytest.mark.parametrize("length", [1, 31, 64, "t"])
@pytest.mark.parametrize("axis", [1, 2])
def test_what_spreads_a_sum_is_a_kernel_of_its_own_unless_a_rule_serves_both(axis: int, length: int | str) -> None:
    model = normed(axis, length)
    program = compile_in_process(model)
    rules = sorted(f.rule for f in program.reports.schedule.functions)
    reasons = [c.reason for c in program.reports.optimise.fuse.candidates if not c.taken]
    if axis == 2:
        assert "search" not in rules and "row_reduction" in rules
    elif length != 1:
        assert rules == ["elementwise", "elementwise", "search"]
        assert any(reason.startswith("it sums, and no rule computes") for reason in reasons)
    for size in [length] if isinstance(length, int) else [1, 7, 70]:
        x = np.random.default_rng(size).standard_normal((2, size, 24)).astype("float32")
        assert_close(program(x=x)["y"], evaluate(model, {"x": x})["y"])
