"""Running results on a GPU: along any axis, in any type, at sizes known or not, beside NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from emulated_functions import TARGET, scheduled_file
from emulation import emulate
from onnx import TensorProto, helper
from tvm import te, tirx

from halo_tvm.importers.meaning.running import log_add_exp
from halo_tvm.passes.schedule import scheduled_by
from halo_tvm.relay_ops.parts.in_order import COMBINED, Combine, running
from halo_tvm.tir_schedules import RULES

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
COMBINATIONS: dict[str, tuple[Combine, np.ufunc, int]] = {
    "add": (COMBINED["add"], np.add, 0),
    "mul": (COMBINED["mul"], np.multiply, 1),
    "max": (COMBINED["max"], np.maximum, 0),
    "logaddexp": (log_add_exp, np.logaddexp, 0),
}


def scanned(shape: Sequence[int | tirx.Var], axis: int, dtypes: tuple[str, str], how: str, exclusive: bool):
    x = te.placeholder(shape, dtypes[0], name="x")
    combine, _, neutral = COMBINATIONS[how]
    func = te.create_prim_func([x, running(x, axis, dtypes[1], exclusive, combine, neutral)])
    rule = RULES["fallback_gpu"]
    return scheduled_by(rule, func, TARGET, rule.default(func, TARGET))


def accumulated(x: np.ndarray, axis: int, dtype: str, how: str, exclusive: bool) -> np.ndarray:
    _, ufunc, neutral = COMBINATIONS[how]
    out = ufunc.accumulate(x.astype(dtype), axis=axis)
    if not exclusive:
        return out
    first = np.full_like(np.take(out, [0], axis), neutral)
    return np.concatenate([first, np.take(out, range(out.shape[axis] - 1), axis)], axis)


@pytest.mark.parametrize("how", COMBINATIONS)
@pytest.mark.parametrize(
    ("shape", "axis", "given", "blocks"),
    [
        ((3, 57), 1, (3, 57), 3),  # a block to a row: one tile, cut
        ((2, 2500), 1, (2, 2500), 2),  # three tiles, the last one cut
        ((2, 1024), 1, (2, 1024), 2),
        ((N, M), 1, (2, 1030), 2),
        ((N, M), 1, (5, 1), 5),
        ((N, M, 2), 1, (2, 57, 2), 4),  # near columns: a block to each
        ((70,), 0, (70,), 1),
        ((3, 7), 1, (3, 7), 1),  # short rows: a thread to each
        ((3, 40, 100), 1, (3, 40, 100), 2),  # columns side by side: a thread to each
        ((N, 7, M), 1, (3, 7, 45), 1),
        ((N, M), 0, (9, 300), 2),
    ],
)
@pytest.mark.sampled(11, 22)
def test_every_axis(how: str, shape: Sequence[int | tirx.Var], axis: int, given: Sequence[int], blocks: int) -> None:
    x = np.random.default_rng(0).uniform(0.97, 1.03, given).astype("float32")
    found = np.full(given, np.nan, "float32")
    done = emulate(scanned(shape, axis, ("float32", "float32"), how, False), TARGET, [x, found])
    np.testing.assert_allclose(found, accumulated(x, axis, "float64", how, False), rtol=2e-5)
    assert [extents["blockIdx.x"] for _, extents, _ in done.launches] == [blocks]


@pytest.mark.parametrize(
    "dtypes", [("float64", "float64"), ("float16", "float16"), ("int32", "int64"), ("bool", "int64"), ("int8", "int8")]
)
@pytest.mark.parametrize(("shape", "given"), [((N, M), (3, 90)), ((N, 4, M), (2, 4, 40))])
@pytest.mark.parametrize("exclusive", [False, True])
def test_every_type(dtypes: tuple[str, str], shape: Sequence[object], given: Sequence[int], exclusive: bool) -> None:
    rng = np.random.default_rng(0)
    x, found = rng.integers(0, 2, given).astype(dtypes[0]), np.full(given, 85, dtypes[1])
    emulate(scanned(shape, 1, dtypes, "add", exclusive), TARGET, [x, found])
    np.testing.assert_array_equal(found, accumulated(x, 1, dtypes[1], "add", exclusive))


def test_many_rows_and_none() -> None:
    """Beyond the 65,535 that the second axis of a grid takes; no elements, no launch or nothing written."""
    x, found = np.ones((70000, 3), "float32"), np.zeros((70000, 3), "float32")
    emulate(scanned((N, 3), 1, ("float32", "float32"), "add", False), TARGET, [x, found])
    np.testing.assert_array_equal(found, np.cumsum(x, 1))
    for shape in ((0, 5), (5, 0)):
        empty = np.zeros(shape, "float32")
        for axis in (0, 1):
            emulate(scanned((N, M), axis, ("float32", "float32"), "add", False), TARGET, [empty, empty.copy()])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("flags", [{}, {"exclusive": 1}])
def test_cumsum_of_a_model(axis: int, flags: dict[str, int], tmp_path: Path) -> None:
    """All functions of it, one after another: TVM's own kernels wrote to memory of the host."""
    shape, path = (3, 57, 2), tmp_path / "model.onnx"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    place = helper.make_tensor("axis", TensorProto.INT64, (), [axis])
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], **flags)
    graph = helper.make_graph([node], "running", [given], [made], [place])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    net = scheduled_file(path, "fp32")
    x = np.random.default_rng(0).integers(-3, 4, shape).astype("float32")
    expected = accumulated(x, axis, "float32", "add", bool(flags))
    for name in net.before:
        rank = [int(dim) for dim in net.before[name].params[0].ty.shape]
        assert int(np.prod(rank)) == x.size and len(net.before[name].params) == 2
        x, found = x.reshape(rank), np.full(rank, np.nan, "float32")
        emulate(net.after[name], TARGET, [x, found])
        x = found
    np.testing.assert_array_equal(x.reshape(shape), expected)
