"""A batch in parts: the same numbers as in one, of known and open size, and only where images are computed apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te, tirx

from halo_tvm.compilation import Compilation
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import Declined
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.importers.onnx import import_proto
from halo_tvm.in_process import Program, compile_in_process
from halo_tvm.params import ParamTable
from halo_tvm.passes._batch_axis import BatchAxis, batch_axis, of_images
from halo_tvm.passes._batch_graph import Batch, Graph
from halo_tvm.passes._batch_stretches import Kernel, Tensor, stretches
from halo_tvm.passes.kernel_count import count_kernels
from halo_tvm.phases import lower
from halo_tvm.runtime import load
from halo_tvm.tuning.task import tasks_of

MIB = 1 << 20
SIZE = 48  # of images: 32 channels of 8 of them have 2.25 MiB, more than twice the second-level cache of a core


def net(batch: int | str):
    """Convolutions with a shortcut, and a result beside the last one that is made in the middle."""
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.standard_normal((32, 3, 3, 3)) * 0.3,
        "b0": rng.standard_normal(32),
        "w1": rng.standard_normal((32, 1, 3, 3)) * 0.3,
        "w2": rng.standard_normal((32, 32, 1, 1)) * 0.2,
        "w3": rng.standard_normal((10, 32)) * 0.2,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], group=32),
        helper.make_node("Sigmoid", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "w2"], ["e"]),
        helper.make_node("Add", ["e", "b"], ["f"]),
        helper.make_node("MaxPool", ["f"], ["pooled"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("GlobalAveragePool", ["f"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "w3"], ["y"], transB=1),
    ]
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, *dims])
        for name, dims in (("x", (3, SIZE, SIZE)), ("y", (10,)), ("pooled", (32, SIZE // 4, SIZE // 4)))
    ]
    held = [numpy_helper.from_array(value.astype("float32"), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return import_proto(proto, name="batch")


def parts_of(program: Program) -> Sequence[dict[str, object]]:
    return program.reports.optimise.others["tile_batch"]["stretches"]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, "n"])
def test_parts_of_a_batch_compute_what_the_whole_does(batch: int | str) -> None:
    program = compile_in_process(net(batch), threads=1)
    whole = compile_in_process(net(batch), threads=1, disable=("tile_batch",))
    (part,) = parts_of(program)
    assert part["of"] == str(batch) and part["kernels"] >= 3 and part["images"] < 8
    assert "tile_batch" not in whole.reports.optimise.others
    for count in (batch,) if isinstance(batch, int) else (1, 2, 7, 8, 33):
        x = np.random.default_rng(1).standard_normal((count, 3, SIZE, SIZE)).astype("float32")
        found, wanted = program(x=x), whole(x=x)
        for name in ("y", "pooled"):
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)


def test_a_few_images_stay_whole() -> None:
    program = compile_in_process(net(2), threads=1)
    assert not parts_of(program), "what fits the caches is not cut"


@pytest.mark.parametrize("batch", [8, "n"])
def test_kernels_of_parts_are_counted_once_and_tuned(batch: int | str) -> None:
    config = CompileConfig("batch", threads=1)
    compilation = Compilation.of(config)
    parts, reports = lower(net(batch), compilation)
    whole, _ = lower(net(batch), Compilation.of(CompileConfig("batch", threads=1, disable=("tile_batch",))))
    assert count_kernels(parts).kernels == count_kernels(whole).kernels
    tasks = tasks_of(parts, compilation.target)
    assert not [s for s in tasks.skipped if "in place" in s.reason or "never called" in s.reason]
    (part,) = reports.optimise.others["tile_batch"]["stretches"]
    if isinstance(batch, int):
        assert max(task.count for task in tasks.tasks) == batch / part["images"] > 1


def test_a_trace_has_the_calls_of_every_part(tmp_path: Path) -> None:
    config = CompileConfig("batch", output=str(tmp_path / "batch.halo"), threads=1)
    result = compile_model(config, net(8))
    (part,) = result.reports.optimise.others["tile_batch"]["stretches"]
    with load(result.path, threads=1) as module:
        calls = Counter(call.function for call in module.trace(rounds=2).calls if not call.builtin)
    assert sum(calls.values()) == result.reports.schedule.kernels.kernels + part["kernels"] * (8 // part["images"] - 1)
    assert set(calls) == {report.function for report in result.reports.schedule.functions}, "kernels, no parts"


N, ROWS, WIDE = 8, 6, 5


def _axis(*tensors: te.Tensor) -> tuple[tirx.PrimFunc, BatchAxis]:
    func = te.create_prim_func(tensors)
    return func, batch_axis(func, N)


def test_rows_of_an_image_stay_together() -> None:
    x = te.placeholder((N * ROWS, WIDE), name="x")
    table = te.placeholder((ROWS, WIDE), name="table")
    y = te.compute((N * ROWS, WIDE), lambda r, c: x[r, c] + table[tirx.floormod(r, ROWS), c], name="y")
    func, axis = _axis(x, table, y)
    params = dict(zip("xty", func.params))
    assert axis.tensors == {params["x"]: ROWS, params["y"]: ROWS}, "the table is the same for all"
    assert [int(p.shape[0]) for p in of_images(func, axis, 2).params] == [2 * ROWS, ROWS, 2 * ROWS]


x = te.placeholder((N, WIDE), name="x")
over = te.reduce_axis((0, N), "over")
REFUSED = {
    "a sum over the batch": te.compute((N, WIDE), lambda n, c: te.sum(x[over, c], axis=over)),
    "reversed": te.compute((N, WIDE), lambda n, c: x[N - 1 - n, c]),
    "the image before": te.compute((N, WIDE), lambda n, c: te.if_then_else(n > 0, x[n - 1, c], 0.0)),
    "its number": te.compute((N, WIDE), lambda n, c: x[n, c] + n.astype("float32")),
    "the first row of all": te.compute((N, WIDE), lambda n, c: x[n, c] + x[0, c]),
    "turned": te.compute((WIDE, N), lambda c, n: x[n, c]),
}


@pytest.mark.parametrize("y", REFUSED.values(), ids=REFUSED)
def test_images_that_need_others_are_no_batch(y: te.Tensor) -> None:
    func = te.create_prim_func([x, y])
    try:
        axis = batch_axis(func, N)
    except Declined:
        return
    assert func.params[1] not in axis.tensors or func.params[0] not in axis.tensors


def _chain(sizes: Sequence[int], weights: int) -> list[Kernel | None]:
    """One kernel after the other, each of which reads what the one before wrote."""
    tensors = [Tensor(size, maker, [maker + 1]) for maker, size in enumerate(sizes, -1)]
    return [Kernel((before,), (after,), weights) for before, after in zip(tensors, tensors[1:])]


def test_stretches_end_where_weights_outweigh_images() -> None:
    large = _chain([16 * MIB] * 5, weights=10_000)
    (found,) = stretches(large, 8, 2 * MIB)
    assert (found.first, found.last, found.images) == (0, 3, 1)
    assert not stretches(_chain([16 * MIB] * 5, weights=1024 * MIB), 8, 2 * MIB)
    assert not stretches(_chain([3 * MIB] * 5, weights=10_000), 8, 2 * MIB), "these stay near as they are"
    (few,) = stretches(_chain([8 * MIB] * 5, weights=10_000), 16, 2 * MIB)
    assert few.images > 1, "as many images as the caches hold"
    broken = [*large[:2], None, *large[2:]]
    assert all(s.last < 2 or s.first > 2 for s in stretches(broken, 8, 2 * MIB))


def _kernels(batch: int | str) -> ImportedModel:
    """Kernels of two results, one of which turns the batch round, and a tensor that is read whole beside its images."""
    size = batch if isinstance(batch, int) else tirx.Var(batch, "int64")
    builder, dims = relax.BlockBuilder(), (WIDE * 16, 1024)
    x, table = (relax.Var(name, relax.TensorType(s, "float32")) for name, s in (("x", (size, *dims)), ("table", dims)))

    def turned(x: te.Tensor) -> list[te.Tensor]:
        back = te.compute(x.shape, lambda i, *at: x[(x.shape[0] - 1 - i, *at)])
        return [te.compute(x.shape, lambda *at: back[at] * 2.0), te.compute(x.shape, lambda *at: back[at] * 3.0)]

    def both(x: te.Tensor, y: te.Tensor) -> list[te.Tensor]:
        return [te.compute(x.shape, lambda *at: x[at] + y[at]), te.compute(x.shape, lambda *at: x[at] - y[at])]

    def beside(x: te.Tensor, whole: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: x[at] + whole[0, at[1], at[2]])

    with builder.function("main", [x, table], attrs={"num_input": 2, "halo.params": []}):
        with builder.dataflow():
            pair = builder.emit_te(turned, x)
            a = builder.emit_te(lambda x, t: te.compute(x.shape, lambda i, *at: x[(i, *at)] * t[at]), x, table)
            b, c = (builder.emit(relax.TupleGetItem(pair, i)) for i in range(2))
            sums = builder.emit_te(both, a, b)
            d, e = (builder.emit(relax.TupleGetItem(sums, i)) for i in range(2))
            f = builder.emit_te(lambda x, y: te.compute(x.shape, lambda *at: x[at] * y[at]), d, c)
            g = builder.emit_te(beside, f, x)
            outs = builder.emit_output(relax.Tuple([g, e]))
        builder.emit_func_output(outs)
    inputs = (InputSpec("x", (batch, *dims), "float32"), InputSpec("table", dims, "float32"))
    ranges = {} if isinstance(batch, int) else {batch: (1, 64)}
    return ImportedModel("net", builder.get(), ParamTable({}), inputs, ("g", "e"), ranges, {}, {}, {})


@pytest.mark.parametrize("batch", [8, "n"])
def test_kernels_of_two_results_and_tensors_read_in_two_ways(batch: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halo_tvm.passes._batch_stretches._LEAST", 0)
    program = compile_in_process(_kernels(batch), threads=1)
    if isinstance(batch, int):  # of an open one a tensor that is read whole ends the stretch
        assert parts_of(program), "a stretch begins behind the kernel that turns the batch round"
    rng = np.random.default_rng(0)
    for count in (8,) if isinstance(batch, int) else (1, 5, 16):
        x, table = (rng.standard_normal(s).astype("float32") for s in ((count, WIDE * 16, 1024), (WIDE * 16, 1024)))
        a, b, c = x * table, x[::-1] * 2, x[::-1] * 3
        found = program(x=x, table=table)
        np.testing.assert_allclose(found["e"], a - b, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["g"], (a + b) * c + x[:1], rtol=1e-5, atol=1e-4)


def test_what_depends_on_the_number_of_images_is_no_batch() -> None:
    """Of a known number it is a constant, of an open one it would become that of the part."""
    n = te.var("n", "int64")
    x = te.placeholder((n, WIDE), name="x")
    over = te.reduce_axis((0, n), "over")
    total = te.compute((WIDE,), lambda c: te.sum(x[over, c], over))
    refused = {
        "a value depends on the number of images": te.compute((n, WIDE), lambda i, c: x[i, c] / n.astype("float32")),
        "a loop beside those over images": te.compute((n, WIDE), lambda i, c: total[c]),
        "a tensor that is read as a whole is as long": te.compute((n, WIDE), lambda i, c: x[0, c] * 2.0),
    }
    for reason, y in refused.items():
        with pytest.raises(Declined, match=reason):
            batch_axis(te.create_prim_func([x, y]), n)
    assert batch_axis(te.create_prim_func([x, te.compute((n, WIDE), lambda i, c: x[i, c] * 2.0)]), n).tensors


def test_a_tensor_that_is_read_whole_later_leaves_its_stretch() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((N, WIDE), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1, "halo.params": []}):
        with builder.dataflow():
            a = builder.emit_te(lambda x: te.compute(x.shape, lambda n, c: x[n, c] * 2.0), x)
            out = builder.emit_te(lambda x, a: te.compute(x.shape, lambda n, c: x[n, c] + a[0, c]), x, a)
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    first, second, *_ = Graph(builder.get(), Batch(N)).steps
    assert first.writes[0].readers == [1], "its images must begin where vectors do"
    assert second.first == 1 and second.reads == first.reads


def test_a_stretch_of_rows_alone_is_told_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `n` images it is given [n * 512, 128] alone: no size of a tensor says n."""
    monkeypatch.setattr("halo_tvm.passes._batch_stretches._LEAST", 0)
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal(s).astype("float32") * 0.1 for i, s in enumerate([(128, 512), (512, 128)])}
    held = {"shape": [-1, 128], "from": [-1], "to": [np.iinfo(np.int64).min], "along": [0], "pace": [-1]}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["rows"]),
        helper.make_node("Slice", ["rows", "from", "to", "along", "pace"], ["turned"]),
        helper.make_node("MatMul", ["turned", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    values = weights | {name: np.array(value, np.int64) for name, value in held.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    program = compile_in_process(import_proto(helper.make_model(graph), name="rows"), threads=1)
    assert parts_of(program)
    for count in (1, 9):
        x = rng.standard_normal((count, 512, 128)).astype("float32")
        wanted = np.maximum(x.reshape(-1, 128)[::-1] @ weights["w0"], 0) @ weights["w1"]
        np.testing.assert_allclose(program(x=x)["y"], wanted, rtol=1e-4, atol=1e-4)
