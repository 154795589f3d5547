"""Write the newest keys or values into a cache, in place.

Shapes
    cache [b, capacity, h_kv, d]   new [b, s, h_kv, d]   lengths int32 [b]   ->   the cache
    new has the cache's dtype, or is float32 over a cache of float16, or of int8 with rows of d + 4 (`parts/kept_rows`)
Computation
    cache[n, lengths[n] + i] = new[n, i]   for 0 <= i < s;   a row that falls outside the capacity is left out
    The result is the cache itself: it is lowered to `call_tir_inplace`, so only the new rows move. Whatever
    reads keys takes the result; the pass `check_caches` refuses a graph that reads the old value afterwards.
    Attention takes the lengths after the call, lengths + s.
Lifts
    none: a cache is what a model's definition, or a session, asks for
Numerics
    exact; float16 is rounded to nearest even, beyond 65504 to infinity; eight bits by `parts/kept_rows`
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ..dimensions import differ
from ..prim_text import prim_func
from .operator import Operator, attrs_of, shaped
from .parts.kept_rows import NARROW, kept, kept_columns, narrow_stores, scratch, within

_TEXT = """
@T.prim_func(s_tir=True, private=True)
def kv_append(p_cache: T.handle, p_new: T.handle, p_lengths: T.handle):
    {variables}
    cache = T.match_buffer(p_cache, ({b}, {capacity}, {h}, {d}), "{dtype}")
    new = T.match_buffer(p_new, ({b}, {s}, {h}, {d}), "{new_dtype}")
    lengths = T.match_buffer(p_lengths, ({b},), "int32")
    for n, i, e, x in T.grid({b}, {s}, {h}, {d}):
        with T.sblock("kv_append"):
            vn, vi, ve, vx = T.axis.remap("SSSS", [n, i, e, x])
            T.sblock_attr({{"halo.op": "kv_append"}})
            at: T.let[T.int64] = T.cast(lengths[vn], "int64") + vi
            if T.int64(0) <= at and at < {capacity}:
                cache[vn, at, ve, vx] = T.cast(new[vn, vi, ve, vx], "{dtype}")
"""
_TEXT_INT8 = """
@T.prim_func(s_tir=True, private=True)
def kv_append(p_cache: T.handle, p_new: T.handle, p_lengths: T.handle):
    {variables}
    cache = T.match_buffer(p_cache, ({b}, {capacity}, {h}, {kept}), "{dtype}")
    new = T.match_buffer(p_new, ({b}, {s}, {h}, {d}), "{new_dtype}")
    lengths = T.match_buffer(p_lengths, ({b},), "int32")
    for n, i, e in T.grid({b}, {s}, {h}):
        with T.sblock("kv_append"):
            vn, vi, ve = T.axis.remap("SSS", [n, i, e])
            T.sblock_attr({{"halo.op": "kv_append"}})
            {scratch}
            at: T.let[T.int64] = T.cast(lengths[vn], "int64") + vi
            {stores}
"""


class KvAppend(Operator):
    """The cache with new rows behind the valid ones, in place."""

    name = "kv_append"
    fusible = False
    writes = {0: 0}

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        if len(call.args) != 3 or attrs_of(call).keys() - {"layer"}:
            raise ValueError(
                f"halo.kv_append: 3 arguments and no attributes expected, got {len(call.args)} and "
                f"{sorted(attrs_of(call))}: pass cache, new, lengths"
            )
        types = [arg.ty for arg in call.args]
        for name, ty, rank in zip(("cache", "new", "lengths"), types, (4, 4, 1)):
            if not shaped(ty) or ty.ndim != rank:
                raise ValueError(
                    f"halo.kv_append: {name} must be a tensor of rank {rank} with a known shape, got {ty}: "
                    "reshape or match_cast it first"
                )
        cache, new, lengths = types
        (b, _, *row), (b_new, _, *row_new) = cache.shape.values, new.shape.values
        if str(cache.dtype) == "int8":
            row[1] = row[1] - kept_columns(0, "int8")
        if str(new.dtype) not in rows_of(cache) or any(differ(x, y) for x, y in zip([b, *row], [b_new, *row_new])):
            raise ValueError(
                f"halo.kv_append: new must be {rows_of(cache)} of the shape [{b}, ?, {row[0]}, {row[1]}], "
                f"got {new.dtype} {list(new.shape.values)}: cast or reshape it"
            )
        if str(lengths.dtype) != "int32" or differ(lengths.shape.values[0], b):
            raise ValueError(
                f"halo.kv_append: lengths must be int32 of the shape [{b}], "
                f"got {lengths.dtype} {list(lengths.shape.values)}: one number per batch row"
            )
        return cache

    @classmethod
    def _legalize(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        cache, new, _ = call.args
        gvar = cls._added(bb, call, _in_place(cache.ty, new.ty))
        return relax.op.call_tir_inplace(gvar, relax.Tuple(list(call.args)), [0], cache.ty)

    @staticmethod
    def compute(cache: te.Tensor, new: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        """The meaning, as a copy; the lowering writes in place."""

        def row(n, j, e, x):
            at = j - lengths[n].astype("int64")
            seen = tirx.all(at >= 0, at < new.shape[1])
            return tirx.if_then_else(seen, new[n, at, e, x].astype(cache.dtype), cache[n, j, e, x])

        assert str(cache.dtype) != "int8", "a row of eight bits has a meaning as a whole only"

        return te.compute(cache.shape, row, name="kv_append")

    @staticmethod
    def reference(cache: np.ndarray, new: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        out = cache.copy()
        for n, length in enumerate(lengths):
            for i in range(new.shape[1]):
                if 0 <= length + i < cache.shape[1]:
                    out[n, length + i] = kept(new[n, i], cache.dtype)
        return out

    @staticmethod
    def flops(shapes: Sequence[tuple[int, ...]]) -> int:
        return 0

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        def lengths(*values: int) -> np.ndarray:
            return np.array(values, "int32")

        return (
            {"args": [(1, 8, 2, 16), (1, 1, 2, 16), lengths(0)], "attrs": {}},
            {"args": [(3, 9, 1, 4), (3, 4, 1, 4), lengths(5, 0, 2)], "attrs": {}},
            *(
                {"args": [np.zeros((3, 9, 1, kept_columns(40, t)), t), (3, 4, 1, 40), lengths(5, 0, 2)], "attrs": {}}
                for t in NARROW
            ),
            # No room for some rows, for any row, and a length below zero.
            {"args": [(3, 5, 2, 3), (3, 4, 2, 3), lengths(3, 7, -2)], "attrs": {}},
        )


def rows_of(cache: relax.TensorType) -> str:
    """The element types of rows that a cache takes, in words: its own, and float32 that it keeps narrow."""
    return {"float16": "float32 or float16", "int8": "float32"}.get(str(cache.dtype), str(cache.dtype))


def _in_place(cache: relax.TensorType, new: relax.TensorType) -> tirx.PrimFunc:
    """The function that writes into its first argument; each unknown dimension is a variable of its own."""
    b, capacity, h, d = cache.shape.values
    row, int8 = new.shape.values[3], str(cache.dtype) == "int8"
    names = {"b": b, "capacity": capacity, "h": h, "d": row, "s": new.shape.values[1], "kept": d}
    texts = {k: f"T.int64({v.value})" if isinstance(v, tirx.IntImm) else k for k, v in names.items()}
    variables = [f"{k} = T.int64()" for k, text in texts.items() if text == k]
    stores, reads = "", (f"lengths[vn], new[vn, vi, ve, T.int64(0):{texts['d']}]",)
    if int8:
        fill = [f"for c in T.serial({texts['d']}):", "    numbers[c] = new[vn, vi, ve, c]"]
        stores = within(texts["capacity"], narrow_stores("cache", int(row), fill), 12)
    text = (_TEXT_INT8 if int8 else _TEXT).format(
        variables="; ".join(variables) or "pass",
        dtype=cache.dtype,
        new_dtype=new.dtype,
        scratch=f"\n{' ' * 12}".join(scratch("cache", texts["capacity"], int(row), reads)) if int8 else "",
        stores=stores,
        **texts,
    )
    return prim_func(text)
