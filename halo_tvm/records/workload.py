"""The workload key: what a tuning record is found by.

A key is a hash over our own canonical text of a PrimFunc. It is the same in every process and does
not depend on the names of buffers, variables, blocks or functions: variables, symbolic dimensions
and buffers are numbered by first appearance. It changes with shapes, dtypes, the computation, its
epilogue, the layout and the annotation `halo.op`.

A function that still carries `halo.call` (an operator nothing was fused to) is keyed by the
operator, its attributes and its buffers; its body is one way of computing it and does not count.

A family is what workloads of other sizes have in common: the same text with its numbers taken out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tvm import tirx

from ..plain import plain
from .canonical import Canonical, blocks_of

_KEY_DIGITS = 20
_SHORT = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int8": "i8",
    "int32": "i32",
    "int64": "i64",
}


def workload_key(func: tirx.PrimFunc) -> str:
    """The key of `func`: 20 hexadecimal digits."""
    return hashlib.sha256(canonical_text(func).encode()).hexdigest()[:_KEY_DIGITS]


def family_of(func: tirx.PrimFunc) -> tuple[str, tuple[int, ...]]:
    """The family of `func` (20 hexadecimal digits), and the integers that tell its members apart, in order.

    Extents, strides and integer constants are taken out and listed, but for zeros; floating-point
    constants, which follow from sizes or do not change what a call costs, are taken out unlisted.
    """
    out = Canonical(abstract=True)
    text = _text(func, out)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS], tuple(out.extents)


def canonical_text(func: tirx.PrimFunc) -> str:
    """The text that is hashed; two functions are one workload exactly when their texts are equal."""
    return _text(func, Canonical())


def _text(func: tirx.PrimFunc, out: Canonical) -> str:
    head = ["params", *(out.param(p) for p in func.params)]
    call = operator_call(func)
    if call is not None:
        op, attrs = call
        return "(" + " ".join(["call", op, *(f"{k}={out.attribute(attrs[k])}" for k in sorted(attrs)), *head]) + ")"
    return "(" + " ".join(["func", *head, out.node(func.body)]) + ")"


def operator_call(func: tirx.PrimFunc) -> tuple[str, dict[str, object]] | None:
    """The operator and attributes in `halo.call`, or None when the function carries none."""
    call = func.attrs.get("halo.call") if func.attrs else None
    if call is None:
        return None
    attrs = plain(call)
    assert isinstance(attrs, Mapping), f"halo.call holds {call}, expected a map"
    return str(attrs["op"]), {k: v for k, v in attrs.items() if k != "op"}


def describe(func: tirx.PrimFunc) -> str:
    """`func` in a line for people: "linear[m,768]x[1,64,768,48] f32 + bias + gelu". Not part of the key."""
    symbols = Canonical(readable=True)
    shapes, dtypes = [], []
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            shapes.append("[" + ",".join(symbols.node(d) for d in param.ty.shape) + "]")
            dtypes.append(str(param.ty.dtype))
    call = operator_call(func)
    if call is not None:
        op, attrs = call
        options = ",".join(
            f"{k}={attrs[k]}" for k in sorted(attrs) if not isinstance(attrs[k], str) or len(attrs[k]) < 20
        )
        return f"{op}{'x'.join(shapes[:-1])} {_dtypes(dtypes)}" + (f" ({options})" if options else "")
    blocks = blocks_of(func)
    main = next((b for b in blocks if "halo.op" in b.annotations), blocks[0] if blocks else None)
    name = "function" if main is None else str(main.annotations.get("halo.op", main.name_hint))
    rest = [str(b.name_hint) for b in blocks if main is not None and not b.same_as(main)]
    # Operands beyond the first two are vectors of the epilogue: its names say more than their shapes.
    operands = shapes[: 2 if len(shapes) > 2 else 1]
    return " + ".join([f"{name}{'x'.join(operands)} {_dtypes(dtypes)}", *rest])


def _dtypes(dtypes: list[str]) -> str:
    return "/".join(_SHORT.get(d, d) for d in dict.fromkeys(dtypes))
