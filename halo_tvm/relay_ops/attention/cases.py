"""Test cases of `halo.attention`: several of each feature, odd lengths, both argument forms."""

from __future__ import annotations

import numpy as np

from ..parts.kept_rows import NARROW, kept

D = 16
SCALE = D**-0.5


def _attrs(h: int, h_kv: int, **more: object) -> dict[str, object]:
    return {"num_heads": h, "num_kv_heads": h_kv, "head_dim": D, "scale": SCALE, **more}


def _separate(b: int, s: int, t: int, h: int, h_kv: int) -> list[object]:
    return [(b, s, h, D), (b, t, h_kv, D), (b, t, h_kv, D)]


def _packed(b: int, s: int, h: int, h_kv: int) -> list[object]:
    return [(b, s, (h + 2 * h_kv) * D)]


def _mask(b: int, t: int, dtype: str) -> np.ndarray:
    """The first batch row sees nothing, each later one a key less than the one before."""
    lengths = np.array([0] + [max(t - n, 1) for n in range(b - 1)])
    return (np.arange(t) < lengths[:, None]).astype(dtype)


def _lengths(*lengths: int) -> np.ndarray:
    return np.array(lengths, "int32")


def _cache(b: int, t: int, h: int, d: int, lengths: np.ndarray, dtype: str) -> np.ndarray:
    """Keys or values with nothing but NaN behind the lengths."""
    cache = kept(np.random.default_rng(t).standard_normal((b, t, h, d)), np.dtype(dtype))
    nan = -1 if dtype == "int8" else np.nan  # four bytes of all ones are a scale of NaN
    return np.where(np.arange(t)[:, None, None] < lengths[:, None, None, None], cache, cache.dtype.type(nan))


def _unwritten(d: int, s: int, dtype: str) -> dict[str, object]:
    lengths = _lengths(3 + s, 0)
    caches = [_cache(2, 7 + s, 2, d, lengths, dtype)] * 2
    attrs = {"num_heads": 4, "num_kv_heads": 2, "head_dim": d, "scale": SCALE, "causal": True, "has_lengths": True}
    return {"args": [(2, s, 4, d), *caches, lengths], "attrs": attrs}


def cases() -> tuple[dict[str, object], ...]:
    plain = [
        {"args": _separate(1, 1, 1, 1, 1), "attrs": _attrs(1, 1)},
        {"args": _separate(2, 7, 9, 3, 3), "attrs": _attrs(3, 3)},
        {"args": _packed(2, 17, 2, 2), "attrs": _attrs(2, 2, packed=True)},
    ]
    grouped = [
        {"args": _separate(2, 5, 11, 4, 2), "attrs": _attrs(4, 2)},
        {"args": _separate(1, 6, 6, 4, 1), "attrs": _attrs(4, 1, causal=True)},
        {"args": _packed(3, 7, 4, 2), "attrs": _attrs(4, 2, packed=True, causal=True)},
    ]
    positions = [
        {"args": _separate(1, 3, 8, 2, 2), "attrs": _attrs(2, 2, causal=True)},
        {"args": _separate(1, 8, 3, 2, 2), "attrs": _attrs(2, 2, causal=True)},  # the first five rows see nothing
        {"args": _packed(1, 9, 2, 2), "attrs": _attrs(2, 2, packed=True, causal=True, window=4)},
        {"args": _separate(1, 9, 12, 2, 2), "attrs": _attrs(2, 2, window=3)},
    ]
    capped = [
        {"args": _packed(1, 9, 2, 1), "attrs": _attrs(2, 1, packed=True, softcap=0.5)},
        {"args": _separate(2, 4, 5, 2, 2), "attrs": _attrs(2, 2, causal=True, softcap=30.0)},
    ]
    masked = [
        {"args": [*_packed(3, 7, 2, 2), _mask(3, 7, dtype)], "attrs": _attrs(2, 2, packed=True, has_key_mask=True)}
        for dtype in ("bool", "int32", "int64", "float32")
    ]
    biased = [
        {"args": [*_separate(2, 3, 7, 2, 2), shape], "attrs": _attrs(2, 2, has_bias=True)}
        for shape in ((1, 2, 3, 7), (2, 1, 1, 7), (2, 2, 3, 7))
    ]
    both = [
        {
            "args": [*_packed(2, 5, 2, 1), _mask(2, 5, "int64"), (1, 2, 1, 5)],
            "attrs": _attrs(2, 1, packed=True, causal=True, has_key_mask=True, has_bias=True),
        }
    ]
    cached = [
        {"args": [*_separate(3, 1, 9, 4, 2), _lengths(9, 0, 4)], "attrs": _attrs(4, 2, causal=True, has_lengths=True)},
        {"args": [*_separate(2, 5, 12, 2, 2), _lengths(12, 7)], "attrs": _attrs(2, 2, causal=True, has_lengths=True)},
        # Fewer keys than queries, and more than there is room for.
        {"args": [*_separate(2, 5, 12, 2, 1), _lengths(3, 99)], "attrs": _attrs(2, 1, causal=True, has_lengths=True)},
        {"args": [*_separate(2, 3, 40, 2, 2), _lengths(33, 2)], "attrs": _attrs(2, 2, has_lengths=True)},
        {
            "args": [*_separate(2, 2, 20, 2, 2), _mask(2, 20, "int32"), (2, 1, 1, 20), _lengths(20, 11)],
            "attrs": _attrs(
                2, 2, causal=True, window=6, softcap=3.0, has_key_mask=True, has_bias=True, has_lengths=True
            ),
        },
        {
            "args": [*_separate(2, 1, 40, 4, 2), (4,), _lengths(33, 0)],
            "attrs": _attrs(4, 2, causal=True, window=20, has_sinks=True, has_lengths=True),
        },
        # A head of 8 is what no schedule rule takes; nine queries are too many for a decode step.
        *(_unwritten(d, s, dtype) for d, s in ((D, 1), (8, 1), (D, 9)) for dtype in ("float32", *NARROW)),
    ]
    sunk = [
        {"args": [*_packed(2, 37, 4, 2), np.array([-50, -1, 2, 9], "float32")]}
        | {"attrs": _attrs(4, 2, packed=True, causal=True, window=9, has_sinks=True)},
        {"args": [*_separate(1, 3, 9, 2, 2), (1, 2, 3, 9), (2,)], "attrs": _attrs(2, 2, has_bias=True, has_sinks=True)},
    ]
    return (*sunk, *plain, *grouped, *positions, *capped, *masked, *biased, *both, *cached)
