"""The second kernel: the parts of every row, weighted by their largest scores, become its result."""

from __future__ import annotations

from ....targets import WARP
from .._grid import launched
from .._text import Source
from . import _join
from ._attend import divide
from ._plan import Plan


def merge(src: Source, plan: Plan) -> None:
    """A thread per column of a row."""
    problem, d = plan.problem, plan.problem.d
    threads = -(-d // WARP) * WARP
    with launched(src, "merge", {"n": problem.b, "row": plan.rows}, x=threads):
        _join.declare(src)
        divide(src, plan)
        src.let("parts", "T.max(1, (keys + span - 1) // span)", "int32")
        with src.under(f"if x < {d}:"):
            at = 'n, T.cast(part, "int64"), T.cast(row, "int64")'
            out = f'part_out[{at}, T.cast(x, "int64")]'
            _join.join(src, "for part in T.serial(parts):", f"part_peak[{at}]", f"part_total[{at}]", out)
            # A row that saw nothing has a sum of 0; a sum that is NaN is not one.
            value = "T.if_then_else(sum[0] == T.float32(0), T.float32(0), mixed[0] / sum[0])"
            if problem.dtype != "float32":
                value = f'T.cast({value}, "{problem.dtype}")'
            query, head = f"row % {plan.s}", f"row // {plan.s}"
            src(f'O[n, T.cast({query}, "int64"), T.cast({head}, "int64"), T.cast(x, "int64")] = {value}')
