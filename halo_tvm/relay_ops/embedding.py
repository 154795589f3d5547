"""Rows of a table by index.

Shapes
    ids [...] integer   table, by `layout`:
        "nk"      [n, d]
        "packed"  [d/kc, ceil(n/nr), kc, nr], or [d/kc, ceil(n/nr), kc/g, nr, g] in groups of g: the packed
                  language-model head, so tied weights are stored once
    scale [n] float32 of a table of int8, which `halo.linear_w8a8` shares, or
          [ceil(n/nr), d/g, nr] float16 of a table of uint8 in groups, which `halo.linear_groups` shares
    ->   y [..., d], float32 where the table is in groups
Computation
    y[..., j] = table(ids[...], j) * scale[ids[...]], of uint8 (table(ids[...], j) - 128) * scale(ids[...], j / g)
Lifts
    take(table, ids, axis=0)   =>   halo.embedding(ids, table, layout="nk")
Rejects
    table that is no function parameter of rank 2; modes that make something of an index outside the table
Numerics
    exact, but for one product with the scale. An id outside 0..n-1 is clamped, so that no kernel reads foreign
    memory; the executor refuses it before.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx
from tvm.relax.dpl import is_op, wildcard

from ..errors import NoMatch, Rejected
from .operator import Lift, Operator, attrs_of, clamped, f32, same_shape


class Embedding(Operator):
    """Gather rows of a table."""

    name = "embedding"
    injective = True

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        ids, table = call.args[0].ty, call.args[1].ty
        packed = attrs_of(call)["layout"] == "packed"
        if table.ndim not in ((4, 5) if packed else (2,)) or not str(ids.dtype).startswith(("int", "uint")):
            raise ValueError(
                f"halo.embedding: expected integer ids and a table of rank {'4 or 5' if packed else 2}, "
                f"got {ids} and {table}"
            )
        scales = [arg.ty for arg in call.args[2:]]
        kind, n = str(table.dtype), attrs_of(call)["n"]
        wanted = {"int8": "float32", "uint8": "float16"}.get(kind)
        fits = [
            str(s.dtype) == wanted
            and (same_shape(s.shape.values, [n]) if kind == "int8" else s.ndim == 3 and table.ndim == 5)
            for s in scales
        ]
        if fits != ([True] if wanted else []):
            raise ValueError(
                "halo.embedding: expected a float32 scale for every row of an int8 table, float16 for every group "
                f"of a uint8 table, and of no other, got {table} and {scales or 'none'}"
            )
        if not packed:
            return relax.TensorType([*ids.shape.values, table.shape.values[1]], table.dtype)
        chunks, _, *inner = table.shape.values
        depth = chunks * inner[0] * (inner[2] if table.ndim == 5 else 1)
        return relax.TensorType([*ids.shape.values, depth], "float32" if table.ndim == 5 else table.dtype)

    @staticmethod
    def compute(ids: te.Tensor, table: te.Tensor, *scale: te.Tensor, layout: str, n: int) -> te.Tensor:
        if layout == "packed":
            group = int(table.shape[4]) if len(table.shape) == 5 else 1
            kc, nr = int(table.shape[2]) * group, int(table.shape[3])
            depth = int(table.shape[0]) * kc

            def at(row, j):
                if len(table.shape) == 4:
                    return table[j // kc, row // nr, j % kc, row % nr]
                value = f32(table[j // kc, row // nr, j % kc // group, row % nr, j % group])
                if table.dtype == "uint8":
                    length = depth // int(scale[0].shape[1])
                    return (value - tirx.const(128.0, "float32")) * f32(scale[0][row // nr, j // length, row % nr])
                return value * scale[0][row] if scale else value

        else:
            depth = table.shape[1]

            def at(row, j):
                return table[row, j]

        def value(*i):
            return at(clamped(ids[i[:-1]], n), i[-1])

        return te.compute([*ids.shape, depth], value, name="embedding", attrs={"halo.op": "embedding"})

    @staticmethod
    def reference(ids: np.ndarray, table: np.ndarray, *scale: np.ndarray, layout: str, n: int) -> np.ndarray:
        ids = np.clip(ids, 0, n - 1)
        if layout == "packed":
            nr = table.shape[3]
            rows = table[:, ids // nr, :, ids % nr]  # the advanced indices move to the front: [..., d/kc, kc(/g, g)]
            rows = rows.reshape(*ids.shape, -1)
            if table.dtype == np.uint8:
                steps = scale[0][ids // nr, :, ids % nr].astype(np.float64)
                return (rows.astype(np.float64) - 128) * np.repeat(steps, rows.shape[-1] // steps.shape[-1], axis=-1)
            return rows * scale[0][ids][..., None] if scale else rows
        return table[ids]

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], layout: str, n: int) -> int:
        return 0

    @staticmethod
    def cases():
        def ids(*shape):
            return np.random.default_rng(0).integers(0, 131, shape)

        import ml_dtypes  # a dependency of TVM

        pairs = np.random.default_rng(2).standard_normal((2, 3, 6, 48, 2)).astype(ml_dtypes.bfloat16)
        signed = np.random.default_rng(1).integers(-127, 128, (2, 3, 8, 48, 4)).astype("int8")
        groups = [np.random.default_rng(3).integers(1, 256, (1, 3, 16, 48, 4)).astype("uint8")]
        groups.append(np.random.default_rng(4).uniform(0.01, 0.1, (3, 2, 48)).astype("float16"))
        packed = {"layout": "packed", "n": 131}
        return (
            {"args": [ids(2, 7), (131, 24)], "attrs": {"layout": "nk", "n": 131}},
            {"args": [ids(5), (2, 3, 32, 48)], "attrs": packed},
            {"args": [ids(5), pairs], "attrs": packed},
            {"args": [ids(3, 4), signed, np.linspace(0.01, 0.1, 131, dtype="float32")], "attrs": packed},
            {"args": [ids(3, 4), *groups], "attrs": packed},
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
