"""Elements and rows written at places that are data: on both roads equal to their frameworks, also on threads."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from onnx import TensorProto, helper
from torch import Tensor, nn

from halo_tvm.importers.onnx import import_proto
from halo_tvm.importers.torch_export import import_module
from halo_tvm.in_process import Program, compile_in_process

ROWS, EDGES, WIDE = 40, 500, 96  # enough for several threads


class Messages(nn.Module):
    """What graph nets do with the features of edges: rows are added, or the largest is kept, by node."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, edges: Tensor, to: Tensor) -> Tensor:
        start = torch.zeros(ROWS, edges.shape[1])
        if self.how == "index_add":
            return start.index_add(0, to, edges)
        if self.how == "index_put":
            return start.index_put((to,), edges, accumulate=True)
        wide = to.unsqueeze(-1).expand_as(edges)
        if self.how == "scatter_add":
            return start.scatter_add(0, wide, edges)
        return start.scatter_reduce(0, wide, edges, self.how, include_self=False)


def compiled(net: nn.Module, *args: Tensor) -> tuple[Program, dict[str, np.ndarray]]:
    program = compile_in_process(import_module(net.eval(), args))
    return program, program(*(arg.numpy() for arg in args))


@pytest.mark.parametrize("how", ["index_add", "index_put", "scatter_add", "amax", "prod", "mean"])
def test_rows_of_messages(how: str) -> None:
    torch.manual_seed(0)
    edges, to = torch.randn(EDGES, WIDE), torch.randint(0, ROWS, (EDGES,))
    _, found = compiled(Messages(how), edges, to)
    torch.testing.assert_close(
        torch.from_numpy(next(iter(found.values()))), Messages(how)(edges, to), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("wide", [False, True], ids=["elements", "rows"])
def test_an_index_outside_writes_to_no_other_memory(wide: bool) -> None:
    """Torch refuses it. The last row takes it, before any target's kernel sees it."""

    class Added(nn.Module):
        def forward(self, x: Tensor, at: Tensor, updates: Tensor) -> Tensor:
            return x.scatter_add(0, at[:, :1].expand_as(updates) if wide else at, updates)

    x, updates, at = torch.zeros(4, 8), torch.ones(3, 8), torch.zeros(3, 8, dtype=torch.int64)
    program, _ = compiled(Added(), x, at, updates)
    assert any("wrap" in f.function for f in program.reports.schedule.functions)
    at[1], at[2] = 1 << 40, -(1 << 40)
    (found,) = program(x.numpy(), at.numpy(), updates.numpy()).values()
    np.testing.assert_array_equal(found.sum(1), [16, 0, 0, 8])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_along_each_axis(axis: int) -> None:
    """Places of their own, of fewer elements than the data has along the other axes."""
    torch.manual_seed(1)

    class Added(nn.Module):
        def forward(self, x: Tensor, at: Tensor, updates: Tensor) -> Tensor:
            return x.scatter_add(axis, at, updates)

    x = torch.randn(9, 33, 70)
    at = torch.randint(0, x.shape[axis], (9, 30, 64))
    updates = torch.randn(9, 33, 70)
    _, found = compiled(Added(), x, at, updates)
    wanted = Added()(x, at, updates)
    torch.testing.assert_close(torch.from_numpy(next(iter(found.values()))), wanted, rtol=1e-4, atol=1e-4)


def scatter(axis: int = 0) -> Program:
    """y = ScatterElements(x, Expand(at), updates), added up."""
    nodes = [
        helper.make_node("Expand", ["at", "sizes"], ["wide"]),
        helper.make_node("ScatterElements", ["x", "wide", "updates"], ["y"], axis=axis, reduction="add"),
    ]
    floats = [("x", [ROWS, WIDE]), ("updates", [EDGES, WIDE])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats]
    inputs += [helper.make_tensor_value_info("at", TensorProto.INT64, [EDGES, 1])]
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [2], [EDGES, WIDE])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, WIDE])
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [out], [sizes]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    return compile_in_process(import_proto(model, name="scatter"))


def test_one_index_for_a_row_is_not_written_out() -> None:
    """Negative indices count from the end, and those outside are dropped."""
    rng = np.random.default_rng(2)
    x, updates = rng.standard_normal((ROWS, WIDE), "float32"), rng.standard_normal((EDGES, WIDE), "float32")
    at = rng.integers(-ROWS - 2, ROWS + 2, (EDGES, 1))
    program = scatter()
    inside = np.flatnonzero((at[:, 0] >= -ROWS) & (at[:, 0] < ROWS))
    wanted = x.astype("float64")
    np.add.at(wanted, at[inside, 0], updates[inside].astype("float64"))
    np.testing.assert_allclose(program(x=x, updates=updates, at=at)["y"], wanted, rtol=1e-4, atol=1e-5)
    assert not any("broadcast" in f.function or "expand" in f.function for f in program.reports.schedule.functions)
