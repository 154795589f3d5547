"""Logic and bits of integers."""

from __future__ import annotations

from tvm import relax, tirx

from ...meaning import scalar
from ...meaning.builder import expr_dtype
from ...meaning.pointwise import Scalar, const, const_like, dtype_of
from .._primitive import Primitive
from .._registry import converter
from .._values import Value
from .elementwise import by_type, elements, joined

_LOGIC = {
    "and": (relax.op.bitwise_and, relax.op.logical_and),
    "or": (relax.op.bitwise_or, relax.op.logical_or),
    "xor": (relax.op.bitwise_xor, relax.op.logical_xor),
}


for _name, _both in _LOGIC.items():
    if _name != "and":
        converter(_name)(by_type(*_both))


@converter("and")
def and_(c: Primitive) -> Value:
    for x, other in ((0, 1), (1, 0)):
        if c.dtype == "bool" and c.number(other) is True:
            return c.spread(c.operand(x), c.shape)
    return by_type(*_LOGIC["and"])(c)


@converter("not")
def not_(c: Primitive) -> Value:
    return joined(c, relax.op.logical_not if c.dtype == "bool" else relax.op.bitwise_not, [0])


@converter("shift_left", "shift_right_arithmetic", "shift_right_logical")
def shift(c: Primitive) -> Value:
    """Amounts outside of the type shift everything out."""
    if c.op != "shift_right_logical" or c.dtype.startswith("uint"):
        signed = c.op == "shift_right_arithmetic" and c.dtype.startswith("uint")
        c.refuse_unless(not signed, "an arithmetic shift of numbers without sign")
        return elements(c, lambda a, b: scalar.shift(a, b, c.op == "shift_left"), [0, 1])

    def logical(a: Scalar, b: Scalar) -> Scalar:
        plain = f"u{dtype_of(a)}"
        return scalar.shift(a.astype(plain), b.astype(plain), False).astype(dtype_of(a))

    return elements(c, logical, [0, 1])


@converter("population_count", "clz")
def count_bits(c: Primitive) -> Value:
    """Bits that are set, or zeros above the highest that is."""
    bits = int(c.dtype.removeprefix("u").removeprefix("int"))

    def counted(x: Scalar) -> Scalar:
        wide = x.astype(f"uint{bits}").astype("uint64" if bits == 64 else "uint32")
        if c.op == "population_count":
            return _bits_set(wide).astype(dtype_of(x))
        for by in (1, 2, 4, 8, 16, 32)[: bits.bit_length() - 1]:  # all below the highest
            wide = wide | (wide >> const_like(by, wide))
        return (const_like(bits, wide) - _bits_set(wide)).astype(dtype_of(x))

    return elements(c, counted, [0])


def _bits_set(x: Scalar) -> Scalar:
    """Of an unsigned integer of 32 or 64 bits: sums of neighbours, then of pairs, of fours, and of bytes by a product.

    H. S. Warren, Hacker's Delight, 5-1.
    """
    width = int(dtype_of(x).removeprefix("uint"))

    def repeated(byte: int) -> Scalar:
        return const_like(int.from_bytes([byte] * (width // 8), "little"), x)

    x = x - ((x >> const_like(1, x)) & repeated(0x55))
    x = (x & repeated(0x33)) + ((x >> const_like(2, x)) & repeated(0x33))
    x = (x + (x >> const_like(4, x))) & repeated(0x0F)
    return (x * repeated(0x01)) >> const_like(width - 8, x)


@converter("bitcast_convert_type")
def bitcast(c: Primitive) -> Value:
    """The same bits as a number of another type of the same width."""
    source, target = c.dtype_of(0), c.dtype
    same = source.strip("abcdefghijklmnopqrstuvwxyz") == target.strip("abcdefghijklmnopqrstuvwxyz")
    c.refuse_unless(same and "bool" not in (source, target), f"{source} as {target}, of another width")
    x = c.operand(0)
    return c.values[0] if expr_dtype(x) == target else elements(c, lambda v: tirx.reinterpret(target, v), [0])


@converter("eq_to", "le_to", "lt_to")
def total_order(c: Primitive) -> Value:
    """Comparisons in the total order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN; of integers in their own."""
    source = c.dtype_of(0)
    c.refuse_unless(source != "bool", "an order of bools")
    width = source.strip("abcdefghijklmnopqrstuvwxyz")

    def ordered(x: Scalar) -> Scalar:
        if "float" not in source:
            return x
        bits = tirx.reinterpret(f"int{width}", x)
        return tirx.Select(bits < const(0, f"int{width}"), bits ^ tirx.max_value(f"int{width}"), bits)

    def compared(a: Scalar, b: Scalar) -> Scalar:
        a, b = ordered(a), ordered(b)
        return a == b if c.op == "eq_to" else a <= b if c.op == "le_to" else a < b

    return elements(c, compared, [0, 1])
