"""Operators whose state is overwritten in place: what is refused."""

from __future__ import annotations

import pytest
from graphs import context_of, small_model
from tvm import relax

from halo_tvm.errors import UnsupportedModel
from halo_tvm.imported import InputSpec
from halo_tvm.passes.check_caches import CheckCaches
from halo_tvm.relay_ops import OPERATORS


def var(name: str, shape: tuple[int, ...], dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


@pytest.mark.parametrize("before", [True, False])
def test_a_state_is_read_in_front_of_its_step_alone(before: bool) -> None:
    """Behind it the old value is not there any more."""
    inputs = [
        InputSpec("x", (1, 1, 16), "float32"),
        InputSpec("state", (1, 2, 16), "float32"),
        InputSpec("lengths", (1,), "int32"),
    ]

    def body(m):
        given = [m.inputs["x"], m.inputs["state"], m.inputs["lengths"], m.weight("w", (3, 16))]
        first = m.emit(relax.op.sum(m.inputs["state"])) if before else None
        found = m.op("causal_convolution", *given, has_state=True)
        y = m.emit(relax.TupleGetItem(found, 0))
        return {"y": y, "sum": first if before else m.emit(relax.op.sum(m.inputs["state"]))}

    model = small_model(inputs, body)
    if before:
        assert CheckCaches()(model.mod, context_of(model))[1] == {"appends": 1}
        return
    with pytest.raises(UnsupportedModel, match="found state in .*, which is the cache before it, overwritten in place"):
        CheckCaches()(model.mod, context_of(model))


def test_without_a_state_nothing_is_written() -> None:
    def body(m):
        return {"y": m.op("causal_convolution", m.inputs["x"], m.weight("w", (3, 16)))}

    model = small_model([InputSpec("x", (1, 5, 16), "float32")], body)
    assert CheckCaches()(model.mod, context_of(model))[1] == {"appends": 0}


@pytest.mark.parametrize(
    ("name", "args", "attrs", "message"),
    [
        ("causal_convolution", [(1, 5, 16), (3, 8)], {}, r"weight must be float32 of the shape \[3, .*16.*\]"),
        ("causal_convolution", [(1, 5, 16), (3, 16)], {"activation": "relu"}, "has_state, has_bias and activation"),
        ("causal_convolution", [(1, 5, 16), (3, 16)], {"has_bias": True}, r"3 arguments expected \(x, weight, bias\)"),
        ("selective_scan", [(1, 5, 4, 8)] * 6, {}, r"a must be float32 of the shape"),
        (
            "selective_scan",
            [(1, 5, 4, 8), (1, 5, 4), (4,), (1, 5, 3, 8), (1, 5, 3, 8), (4,)],
            {},
            "groups that divide 4 heads expected, got 3",
        ),
        ("gated_delta", [(1, 5, 4, 8), (1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 4), (1, 5, 2)], {}, "beta must be float32"),
    ],
)
def test_other_shapes_are_refused(name: str, args: list, attrs: dict, message: str) -> None:
    bb = relax.BlockBuilder()
    params = [var(f"a{i}", shape) for i, shape in enumerate(args)]
    with pytest.raises(ValueError, match=message), bb.function("main", params):
        bb.emit(OPERATORS[name].call(*params, **attrs))
