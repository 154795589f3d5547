"""Gated recurrent unit over a sequence, in one or both directions.

Shapes
    x [s, b, i]   w [dirs, 3h, i]   r [dirs, 3h, h]   rows of w and r by gate: z, r, h;   with has_<name>, in order:
    bias [dirs, 6h]: of w, then of r      lengths [b] int32 or int64      initial_h [dirs, b, h]
    ->   y [s, dirs, b, h], y_h [dirs, b, h]
Computation
    z = f(x w_z + h r_z + b_z)   r = f(x w_r + h r_r + b_r)   h' = (1 - z) g(n) + z h
    n = x w_h + wb_h + (r h) r_h + rb_h,   or with linear_before_reset   x w_h + wb_h + r (h r_h + rb_h)
    activations f, g: sigmoid, tanh unless named; `clip` bounds their arguments to [-clip, clip]
    A row behind its length keeps its state and gives zeros; the reverse direction begins at the row's last step.
    A row of length 0 ends in zeros, whatever its initial state.
Lifts
    none: importers call it
Rejects
    hidden below 1; arguments that are not those the attributes announce, or of other shapes and dtypes
Numerics
    float32 and float64 at their own precision; float16 computes in float32
References
    arXiv:1406.1078
"""

from __future__ import annotations

from .operator import Operator
from .parts.recurrent import cases
from .parts.recurrent.layer import Layer


class GRU(Layer, Operator):
    """A layer of gated recurrent units."""

    name = "gru"

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        return cases.cases("gru")
