"""Code in pieces: which function is in which, and that what lowering leaves out is not needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from checkpoints import tiny_llama
from tvm import ir, relax, s_tir, tirx
from tvm.script import tirx as T

from halo_tvm.code_generation import compiled, generating, pieces
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UnsupportedModel
from halo_tvm.imported import ImportedModel
from halo_tvm.importers import import_model
from halo_tvm.models import FAMILIES
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.phases import lower, schedule
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import has_exact_buffers

CONFIG = CompileConfig(model="", records=False, cache=False)
LLAMA = tiny_llama(layers=1, hidden=64, heads=4, vocabulary=67, feed_forward=128, positions=64, kv_heads=2, head_dim=16)
NET = """
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 3, h, w] x, float[n, 5, 7] q) => (float[n, 5, 5] z, float[n, 8, k, l] c)
    {
        a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1)
        b = Relu (a)
        d = Conv <pads = [1, 1, 1, 1], group = 8> (b, w2)
        c = Conv (d, w3)
        qt = Transpose <perm = [0, 2, 1]> (q)
        s = MatMul (q, qt)
        z = Softmax <axis = 1> (s)
    }
"""


def language_model(name: str) -> ImportedModel:
    return FAMILIES[name].build(name, {"gpt2": gpt2(layers=1), "llama": LLAMA}[name], RandomWeights(0), {})


def convolutional_net(directory: Path) -> ImportedModel:
    model = onnx.parser.parse_model(NET)
    for name, shape in {"w1": (8, 3, 3, 3), "w2": (8, 1, 3, 3), "w3": (8, 8, 1, 1)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(model, directory / "net.onnx")
    return import_model(str(directory / "net.onnx"))


def allocated(mod: tvm.IRModule) -> list[list[int | str]]:
    """The sizes of all that the one function of `mod` allocates, in order."""
    found: list[ir.Var] = []
    visits = [
        (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)),
        (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer)),
    ]
    tvm_ffi.structural_walk(mod["main"].body, visits, order="pre")
    return [[int(dim) if isinstance(dim, tirx.IntImm) else str(dim) for dim in buffer.ty.shape] for buffer in found]


@pytest.mark.slow
def test_exact_buffers_are_not_made_smaller(tmp_path: Path) -> None:
    """Each rule that says so: TVM's own pass, which lowering leaves out for them, finds nothing to take away."""
    t, rules, buffers = s_tir.transform, set(), 0
    steps = [t.LowerInitBlock(), t.PlanAndUpdateBufferAllocationLocation(), t.ConvertBlocksToOpaque()]
    for model in (language_model("gpt2"), language_model("llama"), convolutional_net(tmp_path)):
        compilation = Compilation.of(CONFIG)
        mod, report = schedule(lower(model, compilation)[0], compilation)
        rules |= set(report.rules)
        for _, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and has_exact_buffers(func):
                before = tvm.transform.Sequential(steps)(tvm.IRModule({"main": func}))
                found = allocated(before)
                assert allocated(t.CompactBufferAllocation()(before)) == found
                buffers += len(found)
    served = {"gemm", "elementwise", "row_reduction", "flash_attention", "convolution", "channelwise", "batched_matmul"}
    assert served <= rules and buffers > 50


@pytest.mark.parametrize(("loose", "exact", "sizes"), [(0, 3, [3]), (1, 3, [1, 3]), (2, 9, [2, 5, 4]), (0, 200, None)])
def test_pieces_are_cut_by_the_functions_alone(loose: int, exact: int, sizes: list[int] | None) -> None:
    @T.prim_func(s_tir=True)
    def nothing(x: T.Buffer((4,), "float32")) -> None:
        y = T.alloc_buffer((4,), "float32")
        y[0] = x[0]

    functions = {f"loose{i}": nothing for i in range(loose)}
    functions |= {f"exact{i}": nothing.with_attr("halo.exact_buffers", True) for i in range(exact)}
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        builder.emit_func_output(builder.emit(relax.op.zeros(relax.ShapeExpr([1]), "float32")))
    mod = builder.get()
    for name, func in functions.items():
        mod[ir.GlobalVar(name)] = func
    first, others = pieces(mod)
    found = [
        [g.name_hint for g, f in piece.functions_items() if isinstance(f, tirx.PrimFunc)] for piece in (first, *others)
    ]
    assert "main" in [gvar.name_hint for gvar in first.get_global_vars()]
    assert sorted(name for names in found for name in names) == sorted(functions), "each is in one piece"
    assert all(len({name[:5] for name in names}) == 1 for names in found), "of one kind"
    assert [len(names) for names in found] == (sizes or [13] * 8 + [12] * 8)


@pytest.mark.parametrize(
    ("dtype", "advice"), [("float16", "compile the model in float32"), ("float32", "export it at fixed sizes")]
)
def test_advice_where_tvm_gives_up(dtype: str, advice: str) -> None:
    """Float32 helps a model only that is not in float32."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((4,), dtype)) -> None:
        x[0] = T.cast(1, dtype)

    with pytest.raises(UnsupportedModel, match=f"found one that TVM gives up on .no such vector.: {advice}"):
        with generating(Compilation.of(CONFIG).target, [kernel]):
            raise tvm.error.InternalError("no such vector")


def test_a_number_that_is_needed_in_a_let_first() -> None:
    """TVM's common subexpressions define `i * 5 + j` between the two statements; without them both compute it."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((35,), "float32"), y: T.Buffer((35,), "float32"), z: T.Buffer((35,), "float32")) -> None:
        for i, j in T.grid(7, 5):
            named = T.float32()
            y[j] = T.Let(named * x[i * 5 + j], where={named: T.exp(x[j])})
            z[i * 5 + j] = x[i * 5 + j] + y[j]

    built = compiled(tvm.IRModule({"kernel": kernel}), Compilation.of(CONFIG).target)
    x = np.random.default_rng(0).standard_normal(35).astype("float32")
    y, z = tvm.runtime.empty((35,)), tvm.runtime.empty((35,))
    built["kernel"](tvm.runtime.tensor(x), y, z)
    np.testing.assert_allclose(z.numpy(), x + (np.exp(x[:5]) * x.reshape(7, 5)).ravel(), rtol=1e-5)


@T.prim_func(s_tir=True)
def mirrored(x: T.Buffer((T.int64(24), T.int64(24)), "float32"), y: T.Buffer((T.int64(26), T.int64(26)), "float32")):
    T.func_attr({"tirx.noalias": True})
    held = T.sblock_alloc_buffer((T.int64(24), T.int64(24)))
    for i in T.parallel(T.int64(576)):
        with T.sblock("twice"):
            v = T.axis.spatial(T.int64(24), i // T.int64(24))
            w = T.axis.spatial(T.int64(24), i % T.int64(24))
            held[v, w] = x[v, w] * T.float32(2)
    for i in T.parallel(T.int64(676)):
        with T.sblock("border"):
            v = T.axis.spatial(T.int64(26), i // T.int64(26))
            w = T.axis.spatial(T.int64(26), i % T.int64(26))
            y[v, w] = held[
                T.min((v + T.int64(45)) % T.int64(46), T.int64(46) - (v + T.int64(45)) % T.int64(46)),
                T.min((w + T.int64(45)) % T.int64(46), T.int64(46) - (w + T.int64(45)) % T.int64(46)),
            ]


def test_a_buffer_that_is_read_at_a_mirrored_border_keeps_its_size() -> None:
    """TVM would shrink it to what the variable of a later loop says."""
    x = np.random.default_rng(0).standard_normal((24, 24)).astype("float32")
    y = tvm.runtime.empty((26, 26), "float32")
    mod = tvm.IRModule({"main": mirrored.with_attr("global_symbol", "main")})
    compiled(mod, resolve("cpu")).jit()["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), np.pad(2 * x, 1, mode="reflect"))
