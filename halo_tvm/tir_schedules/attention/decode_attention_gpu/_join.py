"""Results of several online softmaxes of one row become one: each is weighted by its largest score."""

from __future__ import annotations

from .. import _online_softmax as _softmax
from .._softmax import START
from .._text import Source


def declare(src: Source) -> None:
    """A thread's registers: the largest score, one weight, the sum of weights, the weighted sum of one column."""
    src(*(f'{name} = T.alloc_buffer((1,), "float32", scope="local")' for name in ("best", "by", "sum", "mixed")))


def join(src: Source, each: str, peak: str, total: str, out: str) -> None:
    """best, sum and mixed over the results of the loop `each`, whose text names one's `peak`, `total` and `out`."""
    src(f"best[0] = T.float32({START})", "sum[0] = T.float32(0)", "mixed[0] = T.float32(0)")
    with src.under(each):
        src(f"best[0] = T.max(best[0], {peak})")
    with src.under(each):
        src(_softmax.exp2("by[0]", f"{peak} - best[0]"))
        src(f"sum[0] = sum[0] + by[0] * {total}", f"mixed[0] = mixed[0] + by[0] * {out}")
