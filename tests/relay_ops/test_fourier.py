"""Fourier transforms in other words, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from executables import executable_of
from tvm import relax

from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.relay_ops import OPERATORS
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
