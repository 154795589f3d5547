"""A kernel whose threads exchange numbers through shared memory."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T


def reverse(rows: int, columns: int, scope: str, stride: int = 1) -> tirx.PrimFunc:
    """(x, y [rows, columns]): y[i, j] = x[i, columns - 1 - j], a block to a row.

    Its numbers are kept in every `stride`th element of an array of `scope`.
    """

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((rows, columns), "float32"), y: T.Buffer((rows, columns), "float32")):
        for b in T.thread_binding(rows, thread="blockIdx.x"):
            with T.sblock("row"):
                vb = T.axis.spatial(rows, b)
                kept = T.sblock_alloc_buffer((columns * stride,), "float32", scope=scope)
                for t in T.thread_binding(columns, thread="threadIdx.x"):
                    with T.sblock("load"):
                        vt = T.axis.spatial(columns, t)
                        kept[vt * stride] = x[vb, vt]
                for t in T.thread_binding(columns, thread="threadIdx.x"):
                    with T.sblock("store"):
                        vt = T.axis.spatial(columns, t)
                        y[vb, vt] = kept[(columns - 1 - vt) * stride]

    return main
