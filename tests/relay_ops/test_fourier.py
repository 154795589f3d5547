"""Fourier transforms in other words, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
import tvm_ffi
from executables import executable_of
from tvm import relax, tirx

from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.relay_ops.fourier import _Constants
from halo_tvm.relay_ops.parts.fourier_products import by_products
from halo_tvm.relay_ops.parts.fourier_transform import Transform
from halo_tvm.targets import resolve

FOURIER = OPERATORS["fourier"]
REAL = Transform(length=96, given=96, used=96, parts=1, outputs=49, results=2, inverse=False)


@pytest.mark.parametrize("index", range(len(FOURIER.cases())))
def test_products_of_waves_are_the_same(index: int) -> None:
    """As targets without vectors compute it, and references."""
    case = FOURIER.cases()[index]
    shape, table = case["args"]
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    bb, given = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [given]):
        with bb.dataflow():
            call = FOURIER.call(given, relax.const(table), **case["attrs"])
            call = bb.lookup_binding(bb.emit(call))
            out = bb.emit_output(FOURIER.expand(bb, call))
        bb.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(relax.transform.DeadCodeElimination()(bb.get()))
    mod, _ = schedule_functions(mod, resolve("cpu"))
    found = relax.VirtualMachine(executable_of(mod, resolve("cpu"), plan_memory=False), tvm.cpu())["main"](
        tvm.runtime.tensor(x)
    )
    wanted = FOURIER.reference(x.astype("float64"), table, **case["attrs"])
    np.testing.assert_allclose(found.numpy(), wanted, atol=3e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("shape", "transform", "sentence"),
    [
        ((4, 95), REAL, "expected a length of small factors, .*96.* elements"),
        ((4, 96, 7), REAL, "at least 8 columns"),
        ((4, 17, 34), dataclasses.replace(REAL, length=34, given=17), "a length of small factors"),
        ((96,), REAL, "expected float32 x of rank 2 or 3"),
    ],
)
def test_what_it_does_not_take(shape: tuple[int, ...], transform: Transform, sentence: str) -> None:
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    table = relax.Var("table", relax.TensorType((transform.table_size,), "float32"))
    with pytest.raises(ValueError, match=sentence):
        FOURIER.infer_type(FOURIER.call(x, table, **transform.attributes))


def test_no_kernel_reads_beyond_its_tensors() -> None:
    """In whatever a `Select` does not choose, either: it is read all the same."""
    t = Transform(length=512, given=512, used=512, parts=2, outputs=512, results=2, inverse=False)
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3, 578, 2), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(by_products(_Constants(bb), x, t))
        bb.emit_func_output(out)
    mod, _ = schedule_functions(relax.transform.LegalizeOps()(bb.get()), resolve("cpu"))
    seen = 0
    for gvar, func in mod.functions_items():
        if not gvar.name_hint.startswith("dft"):
            continue
        loops, found = [], []
        tvm_ffi.structural_walk(func.body, ((tirx.For, loops.append), (tvm.ir.TensorLoad, found.append)))
        analyzer = tvm.sym.Analyzer()
        for loop in loops:
            analyzer.bind(loop.loop_var, tvm.ir.Range(loop.min, loop.min + loop.extent))
        for load in found:
            for index, size in zip(load.indices, load.source.shape):
                seen += 1
                assert analyzer.const_int_bound(index).max_value < int(size), f"{gvar.name_hint}: {load}"
    assert seen > 10
