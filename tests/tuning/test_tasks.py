"""Tasks: unique workloads with counts, sizes within the declared ranges, and a reason for what is skipped."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import toy_rules
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te, tirx

from halo_tvm.config import TuneConfig
from halo_tvm.records import Size
from halo_tvm.targets import resolve
from halo_tvm.tuning.model import imported_of, tasks_of_model
from halo_tvm.tuning.model_list import ListedModel
from halo_tvm.tuning.sizes import MOST_BYTES, bytes_at, checked_sizes, iterations, symbols, timed_sizes, value
from halo_tvm.tuning.task import tasks_of


@pytest.fixture(autouse=True)
def space(monkeypatch):
    monkeypatch.setattr(toy_rules.Toy, "decisions", (toy_rules.Decision("plain", 1), toy_rules.Decision("vector", 8)))


def model(inputs=None):
    """Three calls of two workloads, one of them under two names, and a function no rule serves."""
    bb = relax.BlockBuilder()
    rows = tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((rows, 64), "float32"))
    w = relax.Var("w", relax.TensorType((rows, 64), "float32"))
    with bb.function("main", [x, w], attrs={"num_input": 1}):
        with bb.dataflow():
            names = [bb.add_func(f, n) for n, f in functions().items()]
            y = x
            for name in names[:3]:
                y = bb.emit(relax.call_tir(name, [y], out_ty=relax.TensorType((rows, 64), "float32")))
            y = bb.emit(relax.call_tir(names[3], [y, w], out_ty=relax.TensorType((rows, 64), "float32")))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return bb.get()


def functions():
    rows = tirx.Var("rows", "int64")
    a, b = (te.placeholder((rows, 64), name=n) for n in "ab")
    add = te.create_prim_func([a, b, te.compute(a.shape, lambda i, j: a[i, j] + b[i, j])])
    return {
        "one": toy_rules.function(64),
        "two": toy_rules.function(64, name="toy"),
        "three": toy_rules.function(64, factor=5.0),
        "four": add,
    }


def test_extraction():
    found = tasks_of(model(), toy_rules.target(), {"rows": (1, 64)})
    assert [t.count for t in found.tasks] == [2, 1]
    task = found.tasks[0]
    assert (task.rule.name, task.outputs, task.weights) == ("toy", (1,), ())
    assert task.sizes == tuple(Size((m,), 0.25) for m in (1, 8, 32, 64))
    (skipped,) = found.skipped
    assert skipped.count == 1 and "gemm: no block is annotated" in skipped.reason
    assert "serves one input and one output" in skipped.reason


def test_skipped_with_a_reason(monkeypatch):
    func = toy_rules.function(64)
    scheduled = func.with_attr("tirx.is_scheduled", True)
    (skipped,) = tasks_of(tvm.IRModule({"f": scheduled}), toy_rules.target()).skipped
    assert "scheduled already" in skipped.reason
    monkeypatch.setattr(toy_rules.Toy, "decisions", (toy_rules.Decision("plain", 1),))
    (skipped,) = tasks_of(tvm.IRModule({"f": func}), toy_rules.target()).skipped
    assert "single decision" in skipped.reason


def test_sizes():
    func = toy_rules.function(64)
    assert [s.dims for s in timed_sizes(func, {})] == [(1,), (8,), (32,), (128,), (512,)]
    assert [s.dims for s in timed_sizes(func, {"rows": (16, 100)})] == [(16,), (32,), (100,)]
    assert checked_sizes(func, {"rows": (1, 20)}) == ((20,), (7,))
    assert timed_sizes(toy_rules.function(64, rows=8), {}) == (Size((), 1.0),)
    assert sum(s.weight for s in timed_sizes(func, {"rows": (2, 9)})) == pytest.approx(1)


def test_only_the_widest_dimensions_vary():
    b, s, t = (tirx.Var(n, "int64") for n in "bst")
    x, y = te.placeholder((b, s, 8), name="x"), te.placeholder((b, t, 8), name="y")
    func = te.create_prim_func([x, y, te.compute((b, s), lambda i, j: x[i, j, 0] + y[i, 0, 0])])
    ranges = {"b": (1, 8), "s": (1, 1024), "t": (1, 1024)}
    assert [d.dims for d in timed_sizes(func, ranges)] == [(1, m, m) for m in (1, 8, 32, 128, 512)]


def test_shapes_are_evaluated():
    m, n = tirx.Var("m", "int64"), tirx.Var("n", "int64")
    env = {m: 7, n: 3}
    assert value(tirx.ceildiv(m, 2) * n + tirx.max(m, n) - 1, env) == 4 * 3 + 7 - 1
    with pytest.raises(ValueError, match="a shape is made of dimensions"):
        value(tirx.exp(tirx.const(1.0)), env)


def test_iterations():
    func = toy_rules.function(64)
    assert iterations(func, {symbols(func)[0]: 7}) == 7 * 64


def test_sizes_of_open_dimensions_fit_the_memory():
    """A batch, a height and a width of 512 each are 34 GB of this tensor: no run is like that."""
    dims = [tirx.Var(n, "int64") for n in "nhw"]
    x = te.placeholder((*dims, 64), name="x")
    func = te.create_prim_func([x, te.compute(x.shape, lambda *i: x[i] + 1.0)])
    sizes = timed_sizes(func, {})
    assert [s.dims for s in sizes] == [(1,) * 3, (8,) * 3, (32,) * 3]
    assert all(bytes_at(func, dict(zip(dims, s.dims))) <= MOST_BYTES for s in sizes)
    ranges = {"rows": (0, 1 << 20)}
    assert [t.sizes for t in tasks_of(model(), toy_rules.target(), ranges, {"rows": 3}).tasks] == [
        (Size((3,), 1.0),)
    ] * 2
    assert [s.dims for s in timed_sizes(func, {"n": (600, 600), "h": (600, 600), "w": (600, 600)})] == [(600,) * 3]


def test_example_inputs_say_at_which_sizes_a_net_is_timed(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "t", 64])
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 24, 64), np.float32))

    def rows(**options: str) -> set[int]:
        config = TuneConfig(model=(str(tmp_path / "net.onnx"),), **options)
        entry = ListedModel(config.model[0], config.shape, config.inputs)
        (task,) = tasks_of_model(imported_of(entry, config), entry, resolve("x86:avx512", cores=2), config)[0].tasks
        return {size.dims[-1] for size in task.sizes}

    assert rows() == {1, 8, 32, 128, 512}
    assert rows(inputs=str(tmp_path / "x.npz")) == {2 * 24}
