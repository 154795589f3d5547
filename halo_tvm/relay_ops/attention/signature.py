"""The type rule of `halo.attention`: argument forms, attributes, and the messages for what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax, tirx

from ...dimensions import differ, is_one, text_of
from ..operator import shaped
from ..parts.kept_rows import NARROW, kept_columns

REQUIRED = ("num_heads", "num_kv_heads", "head_dim", "scale")
KNOWN = (
    *REQUIRED,
    "packed",
    "causal",
    "window",
    "softcap",
    "has_key_mask",
    "has_bias",
    "has_sinks",
    "has_lengths",
    "products",
    "layer",
)
PRODUCTS = ("float32", "tf32", "bfloat16")  # what the operands of both products may be rounded to
FLOATS = ("float32", "float16", "bfloat16", "float64")
MASK_DTYPES = ("bool", "int32", "int64", "float32")


def check_call(types: Sequence[relax.TensorType], attrs: Mapping[str, object]) -> relax.TensorType:
    """The type of the result; raises ValueError with what was expected, found, and to do."""
    _check_attrs(attrs)
    h, h_kv, d = (int(attrs[key]) for key in ("num_heads", "num_kv_heads", "head_dim"))
    operands = 1 if attrs.get("packed") else 3
    expected = operands + sum(bool(attrs.get(f"has_{name}")) for name in ("key_mask", "bias", "sinks", "lengths"))
    if len(types) != expected:
        raise ValueError(
            f"halo.attention: {expected} arguments expected for packed={bool(attrs.get('packed'))}, "
            f"has_key_mask={bool(attrs.get('has_key_mask'))}, has_bias={bool(attrs.get('has_bias'))}, "
            f"has_sinks={bool(attrs.get('has_sinks'))}, has_lengths={bool(attrs.get('has_lengths'))}, "
            f"got {len(types)}: pass q, k, v or qkv first, then key_mask, bias, sinks, lengths"
        )
    for position, ty in enumerate(types):
        if not shaped(ty):
            raise ValueError(
                f"halo.attention: argument {position} must be a tensor of known shape, got {ty}: match_cast it first"
            )
    if operands == 1:
        b, s = _expect("qkv", types[0], (None, None, (h + 2 * h_kv) * d))[:2]
        t = s
    else:
        b, s = _expect("q", types[0], (None, None, h, d))[:2]
        columns = kept_columns(d, str(getattr(types[1], "dtype", "")))
        t = _expect("k", types[1], (b, None, h_kv, columns))[1]
        _expect("v", types[2], (b, t, h_kv, columns))
    q, *others = (str(ty.dtype) for ty in types[:operands])
    kept = {q, *(NARROW if q == "float32" else [])}  # by a cache, under q of float32
    if q not in FLOATS or len({*others}) > 1 or not {*others} <= kept:
        raise ValueError(
            f"halo.attention: q must be a float tensor, k and v of its dtype or both {' or '.join(NARROW)} under "
            f"float32, got {', '.join((q, *others))}: cast them"
        )
    extras = list(types[operands:])
    if attrs.get("has_key_mask"):
        mask = extras.pop(0)
        _expect("key_mask", mask, (b, t))
        if str(mask.dtype) not in MASK_DTYPES:
            raise ValueError(
                f"halo.attention: key_mask must be one of {', '.join(MASK_DTYPES)}, got {mask.dtype}: cast it"
            )
    if attrs.get("has_bias"):
        _check_bias(extras.pop(0), (b, h, s, t))
    if attrs.get("has_sinks"):
        sinks = extras.pop(0)
        _expect("sinks", sinks, (h,))
        if str(sinks.dtype) != "float32":
            raise ValueError(f"halo.attention: sinks must be float32, got {sinks.dtype}: cast them")
    if attrs.get("has_lengths"):
        _check_lengths(extras.pop(0), b)
    return relax.TensorType([b, s, h, d], types[0].dtype)


def _check_attrs(attrs: Mapping[str, object]) -> None:
    missing = [key for key in REQUIRED if key not in attrs]
    unknown = [key for key in attrs if key not in KNOWN]
    if missing or unknown:
        raise ValueError(
            f"halo.attention: attributes {', '.join(REQUIRED)} expected; missing {missing}, unknown {unknown}: "
            f"known are {', '.join(KNOWN)}"
        )
    if attrs.get("packed") and attrs.get("has_lengths"):
        raise ValueError(
            "halo.attention: lengths count the keys of a cache, and packed=True has none: pass q, k and v apart"
        )
    h, h_kv = int(attrs["num_heads"]), int(attrs["num_kv_heads"])
    if h_kv < 1 or h % h_kv:
        raise ValueError(
            f"halo.attention: num_heads must be a multiple of num_kv_heads, got {h} and {h_kv}: repeat or drop KV heads"
        )
    if attrs.get("products", PRODUCTS[0]) not in PRODUCTS:
        raise ValueError(
            f"halo.attention: products must be one of {', '.join(PRODUCTS)}, got {attrs['products']!r}: leave it out"
        )
    for key in ("window", "softcap"):
        if attrs.get(key, 0) < 0:
            raise ValueError(f"halo.attention: {key} must be positive, or 0 for none, got {attrs[key]}: leave it out")


def _expect(name: str, ty: relax.TensorType, shape: Sequence[object]) -> list[tirx.PrimExpr]:
    """The dimensions of `ty`, each equal to that of `shape` where both are known; None fits anything."""
    found = list(ty.shape.values)
    if len(found) != len(shape) or any(differ(a, b) for a, b in zip(found, shape)):
        wanted = ", ".join("?" if dim is None else str(text_of(dim)) for dim in shape)
        shown = ", ".join(str(text_of(dim)) for dim in found)
        raise ValueError(
            f"halo.attention: {name} must have the shape [{wanted}], got [{shown}]: "
            "reshape it or correct the attributes"
        )
    return found


def _check_bias(ty: relax.TensorType, full: Sequence[object]) -> None:
    found = list(ty.shape.values)
    fits = (
        len(found) == 4
        and all(is_one(a) or not differ(a, b) for a, b in zip(found[:3], full))
        and not differ(found[3], full[3])
    )
    if not fits or str(ty.dtype) != "float32":
        wanted = ", ".join(f"1|{dim}" for dim in full[:3])
        raise ValueError(
            f"halo.attention: bias must be float32 of the shape [{wanted}, {full[3]}], got {ty.dtype} {found}: "
            "reshape or expand its last axis"
        )


def _check_lengths(ty: relax.TensorType, b: tirx.PrimExpr) -> None:
    _expect("lengths", ty, (b,))
    if str(ty.dtype) != "int32":
        raise ValueError(f"halo.attention: lengths must be int32, got {ty.dtype}: cast it")
