"""Modules that a confined process hands over: what is not on the list is refused before it is parsed."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers._allowed import refuse_foreign
from halo_tvm.importers.loops import allocate_rows, first_rows, not_negative, while_loop, write_row


def module(kernel: tirx.PrimFunc | None = None, wrap=None) -> tvm.IRModule:
    """main(x) = exp of x, by an operator, by `kernel`, or by what `wrap` makes of x."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            if kernel is not None:
                out = bb.emit(relax.op.call_tir(bb.add_func(kernel, "kernel"), [x], x.ty))
            else:
                out = bb.emit(wrap(x) if wrap else relax.op.exp(x))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    return bb.get()


@T.prim_func(private=True, s_tir=True)
def calls(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("y"):
            v = T.axis.spatial(4, i)
            y[v] = x[v] + T.Cast("float32", T.call_extern("int32", "system", "true"))


@T.prim_func(private=True, s_tir=True)
def pragma(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in T.serial(4, annotations={"pragma_import_llvm": "define void @f() { ret void }"}):
        with T.sblock("y"):
            v = T.axis.spatial(4, i)
            y[v] = x[v]


@T.prim_func(private=True, s_tir=True)
def statement(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    T.attr("default", "pragma_import_c", "int f() { return 0; }")
    for i in range(4):
        with T.sblock("y"):
            v = T.axis.spatial(4, i)
            y[v] = x[v]


@T.prim_func(private=True, s_tir=True)
def sound(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("y"):
            T.sblock_attr({"halo.op": "pooling"})
            v = T.axis.spatial(4, i)
            y[v] = T.if_then_else(v < 2, T.exp(x[v]), T.max(x[v], T.float32(0)))


def packed(x: relax.Var) -> relax.Expr:
    return relax.op.call_pure_packed("runtime.ModuleLoadFromFile", x, ty_args=x.ty)


@pytest.mark.parametrize(
    ("mod", "message"),
    [
        (module(calls), "a call of tirx.call_extern"),
        (module(pragma), "the annotation pragma_import_llvm"),
        (module(statement), "the statement pragma_import_c"),
        (module(wrap=packed), "a call of relax.call_pure_packed|relax.expr.ExternFunc"),
        (module().with_attr("Codegen", "c"), "the attribute Codegen"),
    ],
)
def test_what_runs_code_of_its_own_is_refused(mod: tvm.IRModule, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"tensor operators and arithmetic .*, found ({message})"):
        refuse_foreign(tvm.ir.save_json(mod))


def test_operators_and_arithmetic_pass() -> None:
    refuse_foreign(tvm.ir.save_json(module()))
    refuse_foreign(tvm.ir.save_json(module(sound.with_attr("tirx.is_scheduled", True))))


def test_the_kernels_of_loops_are_handed_over():
    """Rows written in place, and sizes that are checked as the model runs: kernels written by hand, not scheduled."""
    bb = relax.BlockBuilder()
    x, n = (relax.Var(name, relax.TensorType(s, d)) for name, s, d in (("x", [4], "float32"), ("n", [1], "int64")))
    with bb.function("main", [x, n]):
        zero, one = relax.const(0, "int64"), relax.const(1, "int64")
        count = bb.emit(relax.op.squeeze(not_negative(bb, n, "a size below 0"), [0]))
        steps, rows = while_loop(
            bb,
            [zero, allocate_rows(bb, 8, [4], "float32")],
            lambda s: relax.op.less(s[0], count),
            lambda s: [relax.op.add(s[0], one), write_row(bb, s[1], s[0], x)],
        )
        bb.emit_func_output(first_rows(bb, rows, steps))
    refuse_foreign(tvm.ir.save_json(bb.get()))
