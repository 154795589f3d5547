"""Rows of a table by index.

Shapes
    ids [...] integer   table, by `layout`:
        "nk"      [n, d]
        "packed"  [d/kc, ceil(n/nr), kc, nr]: the packed language-model head, so tied weights are stored once
    ->   y [..., d]
Computation
    y[..., j] = table(ids[...], j)
Lifts
    take(table, ids, axis=0)   =>   halo.embedding(ids, table, layout="nk")
Rejects
    table that is no function parameter of rank 2; modes that make something of an index outside the table
Numerics
    exact. An id outside 0..n-1 is clamped, so that no kernel reads foreign memory; the executor refuses it before.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te
from tvm.relax.dpl import is_op, wildcard

from ..errors import NoMatch, Rejected
from ._operator import Lift, Operator, attrs_of, clamped


class Embedding(Operator):
    """Gather rows of a table."""

    name = "embedding"
    injective = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        ids, table = call.args[0].ty, call.args[1].ty
        packed = attrs_of(call)["layout"] == "packed"
        if table.ndim != (4 if packed else 2) or not str(ids.dtype).startswith(("int", "uint")):
            raise ValueError(
                f"halo.embedding: expected integer ids and a table of rank {4 if packed else 2}, got {ids} and {table}"
            )
        depth = table.shape.values[0] * table.shape.values[2] if packed else table.shape.values[1]
        return relax.TensorType([*ids.shape.values, depth], table.dtype)

    @staticmethod
    def compute(ids: te.Tensor, table: te.Tensor, *, layout: str, n: int) -> te.Tensor:
        if layout == "packed":
            kc, nr = int(table.shape[2]), int(table.shape[3])
            depth = int(table.shape[0]) * kc

            def at(row, j):
                return table[j // kc, row // nr, j % kc, row % nr]

        else:
            depth = table.shape[1]

            def at(row, j):
                return table[row, j]

        def value(*i):
            return at(clamped(ids[i[:-1]], n), i[-1])

        return te.compute([*ids.shape, depth], value, name="embedding", attrs={"halo.op": "embedding"})

    @staticmethod
    def reference(ids: np.ndarray, table: np.ndarray, *, layout: str, n: int) -> np.ndarray:
        ids = np.clip(ids, 0, n - 1)
        if layout == "packed":
            nr = table.shape[3]
            rows = table[:, ids // nr, :, ids % nr]  # the advanced indices move to the front: [..., d/kc, kc]
            return rows.reshape(*ids.shape, -1)
        return table[ids]

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], layout: str, n: int) -> int:
        return 0

    @staticmethod
    def bytes_moved(shapes: list[tuple[int, ...]], layout: str, n: int, itemsize: int = 4) -> int:
        table = shapes[1]
        depth = table[0] * table[2] if layout == "packed" else table[1]
        return int(np.prod(shapes[0])) * (8 + 2 * depth * itemsize)

    @staticmethod
    def cases():
        def ids(*shape):
            return np.random.default_rng(0).integers(0, 131, shape)

        return (
            {"args": [ids(2, 7), (131, 24)], "attrs": {"layout": "nk", "n": 131}},
            {"args": [ids(5), (2, 3, 32, 48)], "attrs": {"layout": "packed", "n": 131}},
            {"args": [np.array([[-1, 130, 200]]), (131, 24)], "attrs": {"layout": "nk", "n": 131}},
        )

    @staticmethod
    def lifts():
        table, ids = wildcard(), wildcard()
        pattern = is_op("relax.take")(table, ids)

        def build(match):
            if not match.is_param(match[table]):
                raise NoMatch("a lookup in something else than a weight")
            if match[table].ty.ndim != 2:
                raise Rejected(f"the table must be a parameter of rank 2, found {match[table].ty}")
            axis = match[pattern].attrs.axis
            if axis is None or int(axis) != 0 or not str(match[ids].ty.dtype).startswith("int"):
                raise Rejected(f"expected integer indices into axis 0, found {match[ids].ty.dtype} into axis {axis}")
            mode = str(match[pattern].attrs.mode)
            if mode not in ("fast", "clip"):  # fast promises indices within the table, clip clamps them
                raise Rejected(f"indices outside the table must be clamped or absent, found mode {mode}")
            rows = int(match[table].ty.shape.values[0])
            return Embedding.call(match[ids], match[table], layout="nk", n=rows)

        return (Lift("embedding.take", pattern, build, benefit=1),)
