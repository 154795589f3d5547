"""A joined projection taken apart behind a cache: its keys and values into the caches, in place, its queries out.

Shapes
    x [b, s, h + 2 * h_kv, d], the queries' heads, then keys', then values'
    keys, values [b, capacity, h_kv, d] of x's dtype, or under x of float32 float16, or int8 with rows of d + 4
    (`parts/kept_rows`)
    lengths int32 [b]   cos, sin [p, d/2] (optional), d even
    ->   q [b, s, h, d], keys, values
Computation
    q, k, v = x[:, :, :h], x[:, :, h : h + h_kv], x[:, :, h + h_kv :]
    with tables, q and k are turned by halves at the positions lengths[n] + i, as halo.rotary turns them
    keys[n, lengths[n] + i] = k[n, i], values[n, lengths[n] + i] = v[n, i]; what falls outside the capacity is left out
    The results are the caches themselves, as those of halo.kv_append, and `check_caches` watches over both. One
    function reads every element of x once, where slices, two rotations and two appends were seven.
Lifts
    none: a model's definition asks for it
Numerics
    as halo.rotary; without tables exact; keys and values in float16 are rounded to nearest even, in
    eight bits as `parts/kept_rows` says
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ..dimensions import differ
from ..prim_text import prim_func
from .kv_append import KvAppend, rows_of
from .operator import Operator, attrs_of, shaped
from .parts.kept_rows import NARROW, kept_columns, narrow_stores, scratch, within
from .rotary import Rotary, rotary_tables

_TEXT = """
@T.prim_func(s_tir=True, private=True)
def append_heads(p_x: T.handle, p_keys: T.handle, p_values: T.handle, p_lengths: T.handle, {tables} p_q: T.handle):
    {variables}
    x = T.match_buffer(p_x, ({b}, {s}, {heads}, {d}), "{dtype}")
    keys = T.match_buffer(p_keys, ({b}, {capacity}, {h_kv}, {columns}), "{kept}")
    values = T.match_buffer(p_values, ({b}, {capacity}, {h_kv}, {columns}), "{kept}")
    lengths = T.match_buffer(p_lengths, ({b},), "int32")
    {match}
    q = T.match_buffer(p_q, ({b}, {s}, {h}, {d}), "{dtype}")
    for n, i, e, c in T.grid({b}, {s}, {h}, {part}):
        with T.sblock("append_heads"):
            vn, vi, ve, vc = T.axis.remap("SSSS", [n, i, e, c])
            T.sblock_attr({{"halo.op": "append_heads"}})
            {query}
    {keys}
    {values}
"""
_APPEND = """for {loops} in T.grid({extents}):
        with T.sblock("append_{name}"):
            {variables} = T.axis.remap("{axes}", [{loops}])
            {scratch}
            at: T.let[T.int64] = T.cast(lengths[vn], "int64") + vi
            {stores}"""
_TURNED = (
    "row: T.let[T.int64] = T.max(T.min(T.cast(lengths[vn], 'int64') + vi, {last}), T.int64(0))",
    "{out}[{place}vc] = T.cast({a} * T.cast(cos[row, vc], 'float32') - {b} * T.cast(sin[row, vc], 'float32'), "
    "'{dtype}')",
    "{out}[{place}vc + {half}] = T.cast({b} * T.cast(cos[row, vc], 'float32') + "
    "{a} * T.cast(sin[row, vc], 'float32'), '{dtype}')",
)


class AppendHeads(Operator):
    """Queries of a joined projection, turned; its keys, turned, and values in the caches, in place."""

    name = "append_heads"
    fusible = False
    writes = {1: 1, 2: 2}

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TupleType:
        types = [arg.ty for arg in call.args]
        if len(types) not in (4, 6) or attrs_of(call).keys() - {"layer"}:
            raise ValueError(
                f"halo.append_heads: 4 or 6 arguments and no attributes expected, got {len(types)} and "
                f"{sorted(attrs_of(call))}: pass x, keys, values, lengths and perhaps cos and sin"
            )
        for name, ty, rank in zip(("x", "keys", "values", "lengths", "cos", "sin"), types, (4, 4, 4, 1, 2, 2)):
            if not shaped(ty) or ty.ndim != rank:
                raise ValueError(
                    f"halo.append_heads: {name} must be a tensor of rank {rank} of known shape, got {ty}: reshape it"
                )
        x, keys, values, lengths, *tables = types
        (b, s, heads, d), (b_cache, _, h_kv, columns) = x.shape.values, keys.shape.values
        d_cache = columns - kept_columns(0, str(keys.dtype))
        alike = all(not differ(a, c) for a, c in zip(keys.shape.values, values.shape.values))
        fits = not differ(b, b_cache) and not differ(d, d_cache) and int(heads) > 2 * int(h_kv)
        if not (alike and fits and str(x.dtype) in rows_of(keys) and str(keys.dtype) == str(values.dtype)):
            raise ValueError(
                f"halo.append_heads: keys and values must be {x.dtype}, or float16 under float32, of the shape "
                f"[{b}, ?, h_kv, {d}], or int8 under float32 in rows of {d} + 4, with fewer "
                f"than {heads} / 2 heads, got {keys} and {values}: cast or reshape them"
            )
        if str(lengths.dtype) != "int32" or differ(lengths.shape.values[0], b):
            raise ValueError(f"halo.append_heads: lengths must be int32 of the shape [{b}], got {lengths}: cast it")
        if any(2 * int(table.shape.values[1]) != int(d) for table in tables):
            raise ValueError(f"halo.append_heads: tables must be [p, {d} / 2], got {tables}: cut them")
        return relax.TupleType([relax.TensorType([b, s, int(heads) - 2 * int(h_kv), d], x.dtype), keys, values])

    @classmethod
    def _legalize(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        gvar = cls._added(bb, call, _in_place([arg.ty for arg in call.args]))
        out = list(cls.infer_type(call).fields)
        return relax.op.call_tir_inplace(gvar, relax.Tuple(list(call.args)), [-1, 1, 2], out)

    @staticmethod
    def compute(x: te.Tensor, keys: te.Tensor, *_others: te.Tensor) -> te.Tensor:
        """Only the lowering has the meaning: TE writes nothing in place."""
        raise AssertionError("halo.append_heads is lowered by itself")

    @staticmethod
    def reference(
        x: np.ndarray, keys: np.ndarray, values: np.ndarray, lengths: np.ndarray, *tables: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        h_kv = keys.shape[2]
        k = x.shape[2] - h_kv
        if tables:
            positions = lengths[:, None].astype(np.int64) + np.arange(x.shape[1])
            x = Rotary.reference(x, positions, *tables, interleaved=False, turned=k)
        parts = x[:, :, k - h_kv : k], x[:, :, k:]
        return x[:, :, : k - h_kv], *(KvAppend.reference(c, new, lengths) for c, new in zip((keys, values), parts))

    @staticmethod
    def flops(shapes: Sequence[tuple[int, ...]]) -> int:
        return 3 * int(np.prod(shapes[0])) if len(shapes) == 6 else 0

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        tables = rotary_tables(12, 16, 1e4)
        narrow = [[np.full((3, 9, 2, kept_columns(16, t)), number, t) for number in (2, 3)] for t in NARROW]
        return (
            {"args": [(1, 1, 6, 16), (1, 8, 1, 16), (1, 8, 1, 16), np.array([3], "int32"), *tables], "attrs": {}},
            # Ragged rows, no room for some, positions beyond the tables; then without rotation.
            {"args": [(3, 4, 8, 16), (3, 9, 2, 16), (3, 9, 2, 16), np.array([5, 0, 7], "int32"), *tables], "attrs": {}},
            {"args": [(3, 4, 8, 16), *narrow[0], np.array([5, 0, 7], "int32"), *tables], "attrs": {}},
            {"args": [(3, 4, 8, 16), *narrow[1], np.array([5, 0, 7], "int32")], "attrs": {}},
            {"args": [(2, 3, 6, 5), (2, 7, 2, 5), (2, 7, 2, 5), np.array([6, -1], "int32")], "attrs": {}},
        )


def _in_place(types: Sequence[relax.TensorType]) -> tirx.PrimFunc:
    """The function that writes into its second and third argument and its last; unknown dimensions are variables."""
    x, keys, _, _, *tables = types
    kept = str(keys.dtype)
    (b, s, heads, d), (_, capacity, h_kv, _) = x.shape.values, keys.shape.values
    names = {"b": b, "s": s, "capacity": capacity}
    texts = {k: f"T.int64({v.value})" if isinstance(v, tirx.IntImm) else k for k, v in names.items()}
    variables = [f"{k} = T.int64()" for k, text in texts.items() if text == k]
    h, h_kv, d, half = int(heads) - 2 * int(h_kv), int(h_kv), int(d), int(d) // 2
    match = ""
    if tables:
        rows = tables[0].shape.values[0]
        if not isinstance(rows, tirx.IntImm):
            raise ValueError(f"halo.append_heads: the number of rows of the tables must be known, got {rows}: cut them")
        match = "; ".join(
            f'{name} = T.match_buffer(p_{name}, (T.int64({rows}), T.int64({half})), "{table.dtype}")'
            for name, table in zip(("cos", "sin"), tables)
        )

    def stores(out: str, dtype: str, place: str, offset: int, turned: bool) -> list[str]:
        """Lines that write element vc of head `offset` + ve, and where it is turned its other one, to out[place]."""
        head = f"T.int64({offset}) + ve"
        if not turned:
            return [f'{out}[{place}vc] = T.cast(x[vn, vi, {head}, vc], "{dtype}")']
        a, other = (f"T.cast(x[vn, vi, {head}, {c}], 'float32')" for c in ("vc", f"vc + T.int64({half})"))
        words = {"out": out, "place": place, "a": a, "b": other, "half": f"T.int64({half})", "dtype": dtype}
        return [line.format(**words, last=f"T.int64({int(rows) - 1})") for line in _TURNED]

    def append(name: str, first: int, turned: bool) -> str:
        """The part that keeps the heads from `first` on, in eight bits a row at a time, else an element."""
        loops, extents = ["n", "i", "e"], [texts["b"], texts["s"], f"T.int64({h_kv})"]
        part = f"T.int64({half if turned else d})"
        head = []
        if kept == "int8":
            read = [f"x[vn, vi, T.int64({first}) + ve, T.int64(0):T.int64({d})]", "lengths[vn]"]
            if turned:
                read += [f"{table}[T.int64(0):T.int64({rows}), T.int64(0):T.int64({half})]" for table in ("cos", "sin")]
            head = scratch(name, texts["capacity"], d, read)
            fill = (f"    {line}" for line in stores("numbers", "float32", "", first, turned))
            lines = narrow_stores(name, d, [f"for vc in T.serial({part}):", *fill])
        else:
            lines = stores(name, kept, "vn, at, ve, ", first, turned)
            loops, extents = [*loops, "c"], [*extents, part]
        return _APPEND.format(
            name=name,
            loops=", ".join(loops),
            extents=", ".join(extents),
            variables=", ".join(f"v{loop}" for loop in loops),
            axes="S" * len(loops),
            scratch=f"\n{' ' * 12}".join(head) or "pass",
            stores=within(texts["capacity"], lines, 12),
        )

    text = _TEXT.format(
        **texts,
        variables="; ".join(variables) or "pass",
        tables="p_cos: T.handle, p_sin: T.handle," if tables else "",
        match=match or "pass",
        dtype=x.dtype,
        kept=kept,
        columns=f"T.int64({kept_columns(d, kept)})",
        heads=f"T.int64({int(heads)})",
        h=f"T.int64({h})",
        h_kv=f"T.int64({h_kv})",
        d=f"T.int64({d})",
        part=f"T.int64({half if tables else d})",
        query=f"\n{' ' * 12}".join(stores("q", str(x.dtype), "vn, vi, ve, ", 0, bool(tables))),
        keys=append("keys", h, bool(tables)),
        values=append("values", h + h_kv, False),
    )
    return prim_func(text)
