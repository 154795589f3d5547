"""Attention kernels of GPU rules: emulated and compared with float64, also of what is not finite."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from attention_functions import Attention, function
from emulation import _run, emulate
from gpu_functions import TARGET
from tvm import tirx

from halo_tvm.passes.schedule import scheduled_by

DTYPES = ("float16", "bfloat16", "float32")
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6}  # of results of size 1, rounded to the dtype


def lower_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shapes of one function are lowered once."""
    plain, known = _run.lowered, []

    def lowered(func, target):
        for old, found in known:
            if old.same_as(func):
                return found
        known.append((func, plain(func, target)))
        return known[-1][1]

    monkeypatch.setattr(_run, "lowered", lowered)


def scheduled(rule, shapes, attrs, dtypes, decision=None, target=TARGET) -> tirx.PrimFunc:
    """The function of one call as `compile` schedules it, `dtypes` one for all or of each operand; by default where
    `decision` is None."""
    func = function(shapes, attrs, [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes)
    done = scheduled_by(rule, func, target, decision or rule.default(func, target))
    assert done.attrs["tirx.is_scheduled"]
    return done


def normal(dtype, *shapes):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype) for shape in shapes]


def check(func, arrays, attrs, tolerance=None, target=TARGET):
    """Compare with float64; the output starts as NaN so that unwritten elements show."""
    dtype = str(arrays[0].dtype)
    exact = exact_result(arrays, attrs)
    out = np.full(exact.shape, np.nan, arrays[0].dtype)
    done = emulate(func, target, [*arrays, out])
    assert np.abs(out.astype("float64") - exact).max() < (tolerance or TOLERANCE[dtype]), [x.shape for x in arrays]
    return done


def exact_result(arrays, attrs):
    """In float64."""
    return Attention.reference(*[x if x.dtype.kind in "bi" else x.astype("float64") for x in arrays], **attrs)


NAN = {4: np.uint32(0x7FFFFFFF), 2: np.uint16(0x7FFF)}  # the bits of those that NVIDIA's GPUs compute, by bytes


def check_nan_stays(func, arrays, attrs, tolerance):
    """One NaN in q, in k or in v, or an infinite query: the result is NaN where it is in float64, and nowhere else."""
    nan = NAN[arrays[0].itemsize].view(arrays[0].dtype)
    for which, value in ((0, nan), (1, nan), (2, nan), (0, np.inf)):
        given = [x.copy() for x in arrays]
        given[which][0, -1, 0, 3] = value
        exact = exact_result(given, attrs)
        out = np.zeros(exact.shape, arrays[0].dtype)
        emulate(func, TARGET, [*given, out])
        assert np.isnan(exact).any() and not np.isnan(exact).all()
        np.testing.assert_allclose(out.astype("float64"), exact, rtol=0, atol=tolerance)
