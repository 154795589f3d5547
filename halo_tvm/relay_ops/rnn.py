"""Plain recurrent layer over a sequence, in one or both directions.

Shapes
    x [s, b, i]   w [dirs, h, i]   r [dirs, h, h];   with has_<name>, in order:
    bias [dirs, 2h]: of w, then of r      lengths [b] int32 or int64      initial_h [dirs, b, h]
    ->   y [s, dirs, b, h], y_h [dirs, b, h]
Computation
    h' = f(x w + h r + b),   f is tanh unless named; `clip` bounds its argument to [-clip, clip]
    A row behind its length keeps its state and gives zeros; the reverse direction begins at the row's last step.
    A row of length 0 ends in zeros, whatever its initial state.
Lifts
    none: importers call it
Rejects
    hidden below 1; arguments that are not those the attributes announce, or of other shapes and dtypes
Numerics
    float32 and float64 at their own precision; float16 computes in float32
References
    J. Elman: Finding Structure in Time (1990)
"""

from __future__ import annotations

from .operator import Operator
from .parts.recurrent import cases
from .parts.recurrent.layer import Layer


class RNN(Layer, Operator):
    """A plain recurrent layer."""

    name = "rnn"

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        return cases.cases("rnn")
