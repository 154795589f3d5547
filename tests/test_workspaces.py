"""Memory between kernels becomes tensors of main: planned, shared, in graphs; what is left alone stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from checkpoints import tiny_llama
from emulation import emulate
from tvm import relax, te, tirx
from tvm.script import tirx as T

from halo_tvm.build import can_capture, planned_bytes
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.importers.shapes import apply_shapes
from halo_tvm.models import FAMILIES
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.phases import lower, schedule
from halo_tvm.targets import resolve
from halo_tvm.workspaces import LiftWorkspaces, keeps_workspace

TARGET = resolve("cuda:sm_80")
COLUMNS = 8
CONFIG = CompileConfig("model", target="cuda:sm_80")


def doubled_rows(rows: int | None, *, lifted: bool, results: int = 1) -> tirx.PrimFunc:
    """(x [m, 8]) -> 2 x + 1, and what follows of it; 2 x, [m, 8], is the last parameter where it is lifted."""
    m = tirx.Var("m", "int64") if rows is None else rows
    x = te.placeholder((m, COLUMNS), "float32", name="x")
    double = te.compute((m, COLUMNS), lambda i, j: x[i, j] * 2, name="double")
    outs = [_plus(double, r) for r in range(1, 1 + results)]
    return te.create_prim_func([x, *outs, *([double] if lifted else [])])


def _plus(x: te.Tensor, number: int) -> te.Tensor:
    return te.compute(x.shape, lambda i, j: x[i, j] + number, name=f"out{number}")


def tensor(*shape: object) -> relax.TensorType:
    return relax.TensorType(shape, "float32")


def module(rows: int | None, *, lifted: bool, results: int = 1, calls: int = 1) -> tvm.IRModule:
    """main(x [2 n, 8], [n]), n symbolic where `rows` is None, calls the function one time after the other."""
    n = tirx.Var("n", "int64")
    size, counted = (2 * n, [relax.Var("counted", tensor(n))]) if rows is None else (rows, [])
    kind = tensor(size, COLUMNS)
    builder = relax.BlockBuilder()
    gvar = builder.add_func(doubled_rows(rows, lifted=lifted, results=results), "double")
    x = y = relax.Var("x", kind)
    with builder.function("main", [x, *counted]):
        with builder.dataflow():
            for _ in range(calls):
                made = builder.emit(relax.op.call_tir(gvar, relax.Tuple([y]), [kind] * (results + lifted)))
                if lifted and results > 1:
                    made = builder.emit(
                        relax.Tuple([builder.emit(relax.TupleGetItem(made, i)) for i in range(results)])
                    )
                y = builder.emit(relax.TupleGetItem(made, 0)) if lifted or results > 1 else made
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("results", [1, 2])
@pytest.mark.parametrize("rows", [6, None])
def test_before_and_after(rows: int | None, results: int) -> None:
    before, after = (module(rows, lifted=lifted, results=results, calls=2) for lifted in (False, True))
    found = LiftWorkspaces()(before)
    assert relax.analysis.check_well_formed(found)
    tvm.ir.assert_structural_equal(found, after)
    assert keeps_workspace(before["double"]) and not keeps_workspace(found["double"])
    tvm.ir.assert_structural_equal(LiftWorkspaces()(found), found)


def test_bytes_are_counted_and_shared() -> None:
    before = module(6, lifted=False, calls=5)
    after = LiftWorkspaces()(before)
    one = 6 * COLUMNS * 4
    assert planned_bytes(after, False, {}, {}) == planned_bytes(before, False, {}, {}) + 5 * one
    assert planned_bytes(after, True, {}, {}) == planned_bytes(before, True, {}, {}) + one


def test_bytes_of_symbolic_sizes_are_those_of_the_largest() -> None:
    after, ranges = LiftWorkspaces()(module(None, lifted=False)), {"n": (1, 7)}
    assert planned_bytes(after, False, ranges, {}) == 2 * (2 * 7) * COLUMNS * 4


def test_calls_in_branches_follow() -> None:
    builder = relax.BlockBuilder()
    gvar = builder.add_func(doubled_rows(6, lifted=False), "double")
    x, chosen = relax.Var("x", tensor(6, COLUMNS)), relax.Var("chosen", relax.TensorType((), "bool"))
    arms = []
    for given in (1, 2):
        y = relax.Var(f"y{given}", tensor(6, COLUMNS))
        made = relax.op.call_tir(gvar, relax.Tuple([x]), tensor(6, COLUMNS))
        arms.append(relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, builder.normalize(made))])], y))
    with builder.function("main", [x, chosen]):
        builder.emit_func_output(builder.emit(relax.If(chosen, *arms)))
    mod = LiftWorkspaces()(builder.get())
    assert relax.analysis.check_well_formed(mod) and len(mod["double"].params) == 3
    assert mod.script().count("out_ty=[") == 2


def in_place() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    gvar = builder.add_func(doubled_rows(6, lifted=False), "double")
    x, y = (relax.Var(name, tensor(6, COLUMNS)) for name in "xy")
    with builder.function("main", [x, y]):
        call = relax.op.call_tir_inplace(gvar, relax.Tuple([x, y]), [1], tensor(6, COLUMNS))
        builder.emit_func_output(builder.emit(call))
    return builder.get()


def of_a_size_that_is_computed() -> tvm.IRModule:
    @T.prim_func(s_tir=True, private=True)
    def func(x: T.Buffer((6,), "int64"), out: T.Buffer((6,), "int64")) -> None:
        for n in T.serial(6):
            with T.sblock("b"):
                held = T.sblock_alloc_buffer((n + 1,), "int64")
                held[n] = x[n]
                out[n] = held[n]

    return tvm.IRModule({"func": func})


def inside_of_kernels() -> tvm.IRModule:
    @T.prim_func(s_tir=True, private=True)
    def func(x: T.Buffer((6,), "int64"), out: T.Buffer((6,), "int64")) -> None:
        for n in T.thread_binding(6, thread="blockIdx.x"):
            with T.sblock("b"):
                held = T.sblock_alloc_buffer((6,), "int64")
                held[n] = x[n]
                out[n] = held[n]

    return tvm.IRModule({"func": func})


@pytest.mark.parametrize("made", [in_place, of_a_size_that_is_computed, inside_of_kernels])
def test_what_no_caller_can_allocate_is_left_alone(made) -> None:
    mod = made()
    (func,) = (func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc))
    assert LiftWorkspaces()(mod).same_as(mod) and keeps_workspace(func)


@pytest.mark.parametrize("rows", [6, None])
def test_kernels_meet_in_what_they_are_given(rows: int | None) -> None:
    mod = LiftWorkspaces()(schedule_functions(module(rows, lifted=False), TARGET)[0])
    x = np.random.default_rng(0).standard_normal((6, COLUMNS), dtype=np.float32)
    out, double = np.full_like(x, np.nan), np.full_like(x, np.nan)
    emulate(mod["double"], TARGET, [x, out, *([double] if len(mod["double"].params) == 3 else [])])
    np.testing.assert_array_equal(out, x * 2 + 1)


_SIZES = {"layers": 1, "hidden": 64, "heads": 4, "vocabulary": 67, "feed_forward": 128, "positions": 64}
_LLAMA = tiny_llama(**_SIZES, kv_heads=2, head_dim=16, query_key_norm="head")


@pytest.mark.parametrize(
    ("family", "config", "sizes", "workspaces"),
    [
        ("gpt2", gpt2(layers=2), "1x1", False),  # one row is not rounded, and its one key is not divided
        ("gpt2", gpt2(layers=2), "1x16", True),
        ("llama", _LLAMA, "1x1", True),
    ],
)
def test_models_of_fixed_sizes_are_captured(family: str, config: object, sizes: str, workspaces: bool) -> None:
    model = FAMILIES[family].build(family, config, RandomWeights(0), {})
    model = apply_shapes(model, (f"input_ids={sizes}",))
    compilation = Compilation.of(CONFIG, TARGET)
    mod, _ = lower(model, compilation)
    mod, _ = schedule(mod, compilation)
    lifted = LiftWorkspaces()(mod)
    assert can_capture(mod, TARGET) != workspaces and can_capture(lifted, TARGET)
    assert (planned_bytes(mod, False, {}, {}) < planned_bytes(lifted, False, {}, {})) == workspaces
