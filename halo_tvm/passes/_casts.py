"""Numbers as integers of 8 and 16 bits: by way of 32 bits, so that every code of one program gives the same.

What a floating-point number outside of the type's range becomes is not defined: AVX-512 makes 255 of NaN as uint8,
scalar code makes 0, and which of them runs depends on what stands beside it. Behind int32 there are the low bits of
the integer, as NumPy and torch have them on x86, and 0 for NaN.
"""

from __future__ import annotations

from tvm import relax

from ._lowering import Lowering, elementwise, plain

_SMALL = ("int8", "uint8", "int16", "uint16")


def lowerings() -> dict[str, Lowering]:
    """For `LegalizeOps`."""
    return {"relax.astype": _astype}


def _astype(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    if "float" not in str(call.args[0].ty.dtype) or dtype not in _SMALL:
        return plain(bb, call)
    return elementwise(bb, call, lambda x: x.astype("int32").astype(dtype), "cast")
