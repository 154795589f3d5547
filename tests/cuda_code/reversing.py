"""A kernel whose threads exchange numbers through shared memory."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T


def reverse(rows: int, columns: int, scope: str) -> tirx.PrimFunc:
    """(x, y [rows, columns]): y[i, j] = x[i, columns - 1 - j], a block to a row, its numbers kept in `scope`."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((rows, columns), "float32"), y: T.Buffer((rows, columns), "float32")):
        for b in T.thread_binding(rows, thread="blockIdx.x"):
            with T.sblock("row"):
                vb = T.axis.spatial(rows, b)
                kept = T.sblock_alloc_buffer((columns,), "float32", scope=scope)
                for t in T.thread_binding(columns, thread="threadIdx.x"):
                    with T.sblock("load"):
                        vt = T.axis.spatial(columns, t)
                        kept[vt] = x[vb, vt]
                for t in T.thread_binding(columns, thread="threadIdx.x"):
                    with T.sblock("store"):
                        vt = T.axis.spatial(columns, t)
                        y[vb, vt] = kept[columns - 1 - vt]

    return main
