"""Constants that stay themselves in C source, where TVM writes seven digits of each.

Before -> after
    x + 12582912.0    ->    x + (12582910.0 + 2.0)     which the C compiler adds, to the bit
    x < 1.0           ->    x < 1.0                    seven digits are enough
    NaN               ->    inf - inf                  TVM writes a name that C gives to a function
Serves
    functions for target `c`, behind TVM's simplifier, which would add the parts
Without it exp, tanh and whatever else rounds by adding a constant are wrong, and weights inside functions inexact.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

PIPELINE = "halo_tvm_c"  # the name to give to `tirx.build` and `relax.build`
_TYPES: dict[str, type[np.floating]] = {"float32": np.float32, "float64": np.float64}
_MOST_PARTS = 4  # of float64, whose sixteen digits three parts have, but for the rounding of their sums


def _pipeline() -> tuple[tvm.transform.Pass, object, object]:
    passes, of_host, of_device = default_s_tir_pipeline()
    return passes, lambda: tvm.ir.transform.Sequential([of_host(), exact_constants]), of_device


register_tir_pipeline(PIPELINE, _pipeline)


@tirx.transform.prim_func_pass(opt_level=0, name="halo.ExactConstants")
def exact_constants(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """The pass, for lowered functions."""
    return func.with_body(tvm_ffi.structural_map(func.body, ((tirx.FloatImm, _exact),), order="post"))


def _exact(constant: tirx.FloatImm) -> Expr:
    dtype = str(constant.ty.dtype)
    if dtype not in _TYPES:
        return constant
    value = float(constant.value)
    if math.isnan(value):
        return tirx.Sub(tirx.FloatImm(dtype, math.inf), tirx.FloatImm(dtype, math.inf))
    # `+` would add them here.
    return reduce(tirx.Add, (tirx.FloatImm(dtype, part) for part in written_parts(value, dtype)))


def written_parts(value: float, dtype: str) -> list[float]:
    """Numbers of seven digits each whose sum in `dtype`, from the left, is `value` in `dtype`."""
    number = _TYPES[dtype]
    wanted = number(value)
    parts = [_written(float(wanted))]
    total = number(parts[0])
    while total != wanted and len(parts) < _MOST_PARTS:
        parts.append(_written(float(wanted) - float(total)))
        total = number(total + number(parts[-1]))
    return parts


def _written(value: float) -> float:
    return float(f"{value:.6e}")
