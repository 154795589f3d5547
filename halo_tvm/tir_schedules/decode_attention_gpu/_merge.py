"""The second kernel: the parts of every row, weighted by their largest scores, become its result."""

from __future__ import annotations

from ...targets import WARP
from .. import _online_softmax as _softmax
from .._attention_grid import launched
from ..flash_attention._softmax import START
from ..flash_attention._text import Source
from ._attend import divide
from ._plan import Plan


def merge(src: Source, plan: Plan) -> None:
    """A thread per column of a row."""
    problem, d = plan.problem, plan.problem.d
    threads = -(-d // WARP) * WARP
    with launched(src, "merge", {"n": problem.b, "row": plan.rows}, x=threads):
        names = ("m_best", "m_by", "m_sum", "m_mixed")
        src(*(f'{name} = T.alloc_buffer((1,), "float32", scope="local")' for name in names))
        divide(src, plan)
        src.let("parts", "T.max(1, (keys + span - 1) // span)", "int32")
        with src.under(f"if x < {d}:"):
            src(f"m_best[0] = T.float32({START})", "m_sum[0] = T.float32(0)", "m_mixed[0] = T.float32(0)")
            at = 'n, T.cast(part, "int64"), T.cast(row, "int64")'
            with src.under("for part in T.serial(parts):"):
                src(f"m_best[0] = T.max(m_best[0], part_peak[{at}])")
            with src.under("for part in T.serial(parts):"):
                src(_softmax.exp2("m_by[0]", f"part_peak[{at}] - m_best[0]"))
                src(f"m_sum[0] = m_sum[0] + m_by[0] * part_total[{at}]")
                src(f'm_mixed[0] = m_mixed[0] + m_by[0] * part_out[{at}, T.cast(x, "int64")]')
            # A row that saw nothing has a sum of 0; a sum that is NaN is not one.
            value = "T.if_then_else(m_sum[0] == T.float32(0), T.float32(0), m_mixed[0] / m_sum[0])"
            if problem.dtype != "float32":
                value = f'T.cast({value}, "{problem.dtype}")'
            query, head = f"row % {plan.s}", f"row // {plan.s}"
            src(f'O[n, T.cast({query}, "int64"), T.cast({head}, "int64"), T.cast(x, "int64")] = {value}')
