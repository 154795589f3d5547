"""Long short-term memory over a sequence, in one or both directions.

Shapes
    x [s, b, i]   w [dirs, 4h, i]   r [dirs, 4h, h]   rows of w and r by gate: i, o, f, c;   with has_<name>, in order:
    bias [dirs, 8h]: of w, then of r      lengths [b] int32 or int64      initial_h, initial_c [dirs, b, h]
    peepholes [dirs, 3h]: of i, o, f
    ->   y [s, dirs, b, h], y_h [dirs, b, h], y_c [dirs, b, h]
Computation
    i = f(x w_i + h r_i + p_i c + b_i)      f = f(x w_f + h r_f + p_f c + b_f), or 1 - i with input_forget
    c' = f c + i g(x w_c + h r_c + b_c)     o = f(x w_o + h r_o + p_o c' + b_o)     h' = o h(c')
    activations f, g, h: sigmoid, tanh, tanh unless named; `clip` bounds what f and g are given to [-clip, clip],
    `cell_clip` c' to [-cell_clip, cell_clip]
    A row behind its length keeps its state and gives zeros; the reverse direction begins at the row's last step.
    With `quantised` x as a whole, and a row's h in every step, are rounded to the 256 levels between their extremes
    before they are multiplied, as dynamic quantisation does.
    A row of length 0 ends in zeros, whatever its initial state.
Lifts
    none: importers call it
Rejects
    hidden below 1; arguments that are not those the attributes announce, or of other shapes and dtypes
Numerics
    float32 and float64 at their own precision; float16 computes in float32
References
    S. Hochreiter, J. Schmidhuber: Long Short-Term Memory (1997); F. Gers, J. Schmidhuber: Recurrent Nets that Time
    and Count (2000), for the peepholes
"""

from __future__ import annotations

from .operator import Operator
from .parts.recurrent import cases
from .parts.recurrent.layer import Layer


class LSTM(Layer, Operator):
    """A layer of long short-term memory."""

    name = "lstm"

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        return cases.cases("lstm")
