"""The type rule of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ....dimensions import differ
from .cell import SCALES, Options

DTYPES = ("float32", "float64", "float16")
LENGTH_DTYPES = ("int32", "int64")


def check_call(types: Sequence[relax.TensorType], options: Options) -> relax.TupleType:
    """(y [s, dirs, b, hidden], y_h [dirs, b, hidden], for an LSTM y_c like y_h)."""
    label, names = f"halo.{options.cell.name}", options.names()
    if len(types) != len(names):
        raise ValueError(
            f"{label}: {len(names)} arguments expected ({', '.join(names)}), got {len(types)}: pass them in this "
            "order and set has_<name> for each optional one"
        )
    for name, ty in zip(names, types):
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            raise ValueError(f"{label}: {name} must be a tensor of known shape, got {ty}: match_cast it first")
    d, h = options.directions, options.hidden
    x = types[0]
    if x.ndim != 3 or str(x.dtype) not in DTYPES:
        raise ValueError(
            f"{label}: x must be [sequence, batch, input] of {', '.join(DTYPES)}, got {x}: reshape or cast it"
        )
    s, b, i = x.shape.values
    shapes = {
        "x": (s, b, i),
        "w": (d, options.rows, i),
        "r": (d, options.rows, h),
        "bias": (d, 2 * options.rows),
        "lengths": (b,),
        "initial_h": (d, b, h),
        "initial_c": (d, b, h),
        "peepholes": (d, 3 * h),
        **dict.fromkeys(SCALES, (d, options.rows)),
    }
    allowed: dict[str, tuple[str, ...]] = {"lengths": LENGTH_DTYPES}
    if options.byte_weights:
        allowed |= {"x": ("float32",), "w": ("int8",), "r": ("int8",)}
    for name, ty in zip(names, types):
        dtypes = allowed.get(name, (str(x.dtype),))
        expect(label, name, ty, shapes[name], dtypes)
    state = relax.TensorType([d, b, h], x.dtype)
    return relax.TupleType([relax.TensorType([s, d, b, h], x.dtype), *[state] * options.cell.states])


def expect(label: str, name: str, ty: relax.TensorType, shape: Sequence[object], dtypes: Sequence[str]) -> None:
    """ValueError unless `ty` has `shape` where both are known, and one of `dtypes`."""
    found = list(ty.shape.values)
    if len(found) != len(shape) or any(differ(a, b) for a, b in zip(found, shape)) or str(ty.dtype) not in dtypes:
        wanted = ", ".join(str(dim) for dim in shape)
        raise ValueError(
            f"{label}: {name} must be [{wanted}] of {' or '.join(dtypes)}, got {ty.dtype} {found}: "
            "reshape or cast it, or correct hidden and direction"
        )
