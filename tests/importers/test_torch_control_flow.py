"""Operators of torch that hold graphs: what is decided at run time, in process and from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from halo_tvm.errors import UnsupportedModel
from halo_tvm.imported import ImportedModel
from halo_tvm.importers.torch_export import import_module, import_program, import_unrestricted
from halo_tvm.in_process import compile_in_process

ROWS = ({0: torch.export.Dim.DYNAMIC(min=1, max=40)},)


class Module(torch.nn.Module):
    """`function`, which may use a linear layer."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.function = function

    def forward(self, *inputs):
        return self.function(self.linear, *inputs)


def chosen_by_values(linear, x):
    return torch.cond(x.sum() > 0, lambda x: linear(x).sin(), lambda x: x.cos(), (x,))


def chosen_by_a_size(_linear, x):
    return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))


def repeated(linear, x, n):
    step = lambda i, x: (i + 1, torch.cond(x.sum() > 0, lambda x: linear(x).tanh(), lambda x: x + 1, (x,)))  # noqa: E731
    return while_loop(lambda i, _: i < n, step, (torch.tensor(0), x))


def counted_down(_linear, x):
    """The number of a loop is an integer of Python, and -1 in the end."""
    last, y = while_loop(lambda i, _: i >= 0, lambda i, x: (i - 1, x.tanh() * 2 - i), (x.shape[0] - 1, x))
    return y + last


def scanned(_linear, x):
    return scan(lambda c, row: (c * 0.5 + row, c * row + 1), torch.zeros(3), x)


def scanned_backwards(_linear, x):
    return scan(lambda c, row: (c * 0.5 + row, c * 1.0), torch.zeros(3), x.T, dim=1, reverse=True)


def of_different_sizes(_linear, x):
    y = torch.cond(x.sum() > 0, lambda x: x[:1] * 3, lambda x: x[:2] * 2, (x,))
    return y, y.sum(0)


def mapped(_linear, x):
    from torch._higher_order_ops.map import map as each

    return each(lambda row, shift: row.sin().cumsum(0) + shift, x, x.sum())


FUNCTIONS = (
    chosen_by_values,
    chosen_by_a_size,
    repeated,
    counted_down,
    scanned,
    scanned_backwards,
    mapped,
    of_different_sizes,
)


def inputs(function, rows: int) -> tuple[torch.Tensor, ...]:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
    return (x, torch.tensor(rows + 1)) if function is repeated else (x,)


def compare(model: ImportedModel, module: Module, *sizes: int) -> None:
    program = compile_in_process(model, threads=1, level=1)
    for rows in sizes:
        given = inputs(module.function, rows)
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_flatten(module(*given))[0]
        found = program(*(x.numpy() for x in given))
        for value, want in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(value, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.sampled(1, 5)
def test_graphs_inside_are_computed_as_torch_computes_them(tmp_path: Path, function) -> None:
    module = Module(function).eval()
    shapes = ROWS if function is not repeated else (*ROWS, None)
    program = torch.export.export(module, inputs(function, 4), dynamic_shapes=(shapes,), strict=False)
    if function is chosen_by_a_size:
        compare(import_program(program, name="m"), module, 3, 4, 5)
    else:
        compare(import_program(program, name="m"), module, 1, 4, 7)
    if function in (repeated, counted_down, scanned, mapped):
        torch.export.save(program, str(tmp_path / "m.pt2"))
        model = import_unrestricted(tmp_path / "m.pt2", {})
        assert model.inputs[0].shape == ("batch", 3)


def test_a_scan_of_few_steps_is_written_out() -> None:
    model = import_module(Module(scanned).eval(), inputs(scanned, 5))
    assert not [name for name in model.mod.get_global_vars() if "scan" in name.name_hint]
    compare(model, Module(scanned), 5)


def test_steps_that_draw_are_refused() -> None:
    def drawn(_linear, x):
        return while_loop(lambda i, _: i < 6, lambda i, x: (i + 1, x + torch.rand_like(x)), (torch.tensor(0), x))

    with pytest.raises(UnsupportedModel, match=r"higher_order\.while_loop with random numbers .* \(1: while_loop\)"):
        import_module(Module(drawn).eval(), inputs(drawn, 4))


def test_operators_inside_are_listed_with_the_others() -> None:
    def unknown(_linear, x):
        y = torch.cond(x.sum() > 0, lambda x: torch.linalg.eigvals(x).abs(), lambda x: x[0] * 2, (x,))
        return torch.linalg.eigvals(y.outer(y)).abs()

    with pytest.raises(UnsupportedModel, match=r"eig.*\(2: "):
        import_module(Module(unknown).eval(), (torch.ones(3, 3),))


def test_branches_that_torch_refuses_are_explained() -> None:
    seen = []

    def keeps(_linear, x):
        return torch.cond(x.sum() > 0, lambda x: seen.append(x) or x * 3, lambda x: x * 2, (x,))

    with pytest.raises(UnsupportedModel, match="Explanation: Mutating a variable from outside"):
        import_module(Module(keeps).eval(), inputs(keeps, 4))
