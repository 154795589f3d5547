"""Open sizes of ONNX files by name: any name, sums of others, and the bounds that `--shape` gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halo_tvm.errors import InputError, UsageError
from halo_tvm.imported import ImportedModel
from halo_tvm.importers.onnx import import_proto
from halo_tvm.importers.shapes import apply_shapes
from halo_tvm.in_process import compile_in_process
from halo_tvm.reference import cases_of
from halo_tvm.runtime.inputs import generate_inputs

Shapes = dict[str, tuple[tuple[int, int], ...]]
value = helper.make_tensor_value_info


def tables(dims: Sequence[str], shapes: Shapes | None = None) -> ImportedModel:
    """y = softmax(exp(x)), of the shape of x."""
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Softmax", ["e"], ["y"], axis=-1)]
    x, y = (value(name, TensorProto.FLOAT, dims) for name in "xy")
    return imported(helper.make_graph(nodes, "g", [x], [y]), shapes)


def vectors(dims: Sequence[str], shapes: Shapes | None = None) -> ImportedModel:
    """y = the sum of all elements of a, b and c."""
    nodes = [helper.make_node("ReduceSum", [n], ["s" + n], keepdims=0) for n in "abc"]
    nodes.append(helper.make_node("Sum", ["sa", "sb", "sc"], ["y"]))
    inputs = [value(n, TensorProto.FLOAT, [d]) for n, d in zip("abc", dims)]
    return imported(helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, [])]), shapes)


def imported(graph: onnx.GraphProto, shapes: Shapes | None) -> ImportedModel:
    return import_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), name="g", shapes=shapes
    )


def ones(*sizes: int) -> list[np.ndarray]:
    return [np.ones(n, np.float32) for n in sizes]


@pytest.mark.parametrize("dims", [("N", "T"), ("R", "I"), ("T", "T_1"), ("高度", "宽度"), ("größe", "k")], ids=str)
def test_names_are_the_files_own_and_their_bounds_hold(dims: tuple[str, str]) -> None:
    model = tables(dims, {"x": ((2, 4), (1, 8))})
    assert model.inputs[0].shape == dims and model.ranges == {dims[0]: (2, 4), dims[1]: (1, 8)}
    program = compile_in_process(model)
    assert program.spec.inputs[0].shape == program.spec.outputs[0].shape == dims
    for case, (rows, columns) in enumerate(((2, 8), (4, 3))):
        x = np.random.default_rng(case).standard_normal((rows, columns)).astype(np.float32)
        e = np.exp(np.exp(x))
        np.testing.assert_allclose(program(x=x)["y"], e / e.sum(-1, keepdims=True), rtol=1e-5)
    for rows, columns, wrong in ((1, 8, 0), (200, 8, 0), (4, 9, 1)):
        with pytest.raises(InputError, match=f"for dimension '{dims[wrong]}', found"):
            program(x=np.ones((rows, columns), np.float32))
    assert generate_inputs(program.spec, sizes={dims[1]: 5})["x"].shape[1] == 5
    assert cases_of(model, 0)["case0.output.y"].shape == cases_of(model, 0)["case0.input.x"].shape


def test_names_that_are_written_alike_stay_apart() -> None:
    assert tables(("n'", 'n"')).inputs[0].shape == ("n_", "n__1")
    assert tables(("2", "3")).inputs[0].shape == ("_2", "_3")  # 2 + n has the number 2


@pytest.mark.parametrize(
    ("dims", "text", "sizes"),
    [
        (("T", "S", "T+S"), "T + S", (2, 3, 5)),
        (("p", "s", "2 + p + 1"), "2 + p + 1", (4, 1, 7)),
        (("b", "h", "b*h"), "b * h", (2, 3, 6)),
        (("p", "s", "p - s"), "p - s", (5, 2, 3)),
        (("h", "s", "floor(h/2) + 1"), "h // 2 + 1", (7, 2, 4)),
        (("h", "s", "2*(h + s)"), "2 * (h + s)", (1, 2, 6)),
    ],
)
def test_computed_dimensions_are_sizes_of_seeded_inputs(dims: Sequence[str], text: str, sizes: Sequence[int]) -> None:
    model = vectors(dims)
    assert [s.shape for s in model.inputs] == [(dims[0],), (dims[1],), (text,)]
    assert set(model.ranges) == set(dims[:2])
    program = compile_in_process(model)
    assert program(*ones(*sizes))["y"] == sum(sizes)
    with pytest.raises(InputError, match="sizes do not fit each other"):
        program(*ones(*sizes[:2], sizes[2] + 1))
    named = dict(zip(dims, sizes[:2]))
    assert [x.size for x in generate_inputs(program.spec, sizes=named).values()] == list(sizes)
    cases = cases_of(model, 0)  # NumPy would refuse inputs that do not fit
    assert {name.rpartition(".")[2] for name in cases if ".input." in name} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [((1, 4), (8, 16), "p of input b may lie in 1..4, as another input has it, found 8..16"), ((4, 4), (8, 8), "4..4")],
)
def test_bounds_of_one_dimension_that_leave_nothing(a: tuple[int, int], b: tuple[int, int], found: str) -> None:
    with pytest.raises(UsageError, match=found):
        vectors(("p", "p", "p"), {"a": (a,), "b": (b,)})


@pytest.mark.parametrize("text", ["p / s", "p // s", "p % 0", "p * q", "p.s", "floor(p)"])
def test_texts_that_say_no_size_of_names_are_names(text: str) -> None:
    assert len(vectors(("p", "s", text)).ranges) == 3


def test_bounds_of_one_dimension_meet() -> None:
    assert vectors(("p", "p", "p"), {"a": ((1, 4),), "b": ((3, 16),)}).ranges == {"p": (3, 4)}
    assert [s.shape for s in vectors(("p", "p", "q"), {"a": ((1, 4),), "b": ((4, 9),)}).inputs[:2]] == [(4,), (4,)]


# What is said of a, b and c, and the size that c has, or None where it is refused.
SAID = [
    ({"c": (1, 4)}, None),
    ({"c": (4, 4)}, None),
    ({"a": (1, 4), "b": (1, 6), "c": (1, 9)}, None),
    ({"a": (1, 4), "b": (1, 6), "c": (1, 10)}, "p + s"),
    ({"a": (4, 4), "b": (1, 6), "c": (5, 10)}, "4 + s"),
    ({"a": (4, 4), "b": (6, 6), "c": (10, 10)}, 10),
    ({"a": (4, 4), "b": (6, 6), "c": (9, 9)}, None),
    ({"a": (4, 4), "b": (6, 6)}, 10),
]


@pytest.mark.parametrize("when", ["imported", "afterwards"])
@pytest.mark.parametrize(("said", "size"), SAID)
def test_bounds_of_a_sum(said: dict[str, tuple[int, int]], size: int | str | None, when: str) -> None:
    """They may say what follows from the bounds of its terms, and no more; for every format alike."""

    def bounded() -> ImportedModel:
        if when == "imported":
            return vectors(("p", "s", "p + s"), {name: (bound,) for name, bound in said.items()})
        return apply_shapes(vectors(("p", "s", "p + s")), tuple(f"{n}={a}..{b}" for n, (a, b) in said.items()))

    if size is None:
        with pytest.raises(UsageError, match=r"dimension p \+ s of input c follows from others and lies in \d+\.\.\d+"):
            bounded()
        return
    model = bounded()
    assert set(str(model.inputs[2].shape[0]).split(" + ")) == set(str(size).split(" + "))
    assert set(model.ranges) == {name for name, dim in (("p", "a"), ("s", "b")) if said[dim][0] < said[dim][1]}
    if size != "p + s":
        assert compile_in_process(model)(*ones(4, 6, 10))["y"] == 20
