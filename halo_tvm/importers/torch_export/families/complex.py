"""Operators on complex numbers that mix the two parts, Fourier transforms among them; the others go part by part."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax, tirx

from ...meaning.builder import Refused
from ...meaning.fourier import transform
from ...meaning.pointwise import Scalar, const_like, pointwise
from .._call import Call, constant, fixed
from .._complex import ComplexCall, Pair, PartCall, by_parts
from .._registry import CONVERTERS, converter, target_name

_BY_PARTS = """
    view.default reshape.default _unsafe_view.default unsqueeze.default squeeze.default squeeze.dim squeeze.dims
    flatten.using_ints unflatten.int view_as.default _reshape_copy.default permute.default transpose.int t.default
    numpy_T.default mT.default expand.default expand_as.default broadcast_to.default repeat.default tile.default
    slice.Tensor select.int narrow.default split_with_sizes.default split.Tensor split.sizes chunk.default unbind.int
    tensor_split.sections cat.default concat.default stack.default flip.default roll.default
    unfold.default index.Tensor index_select.default gather.default where.self where.ScalarOther where.ScalarSelf
    tril.default triu.default
    clone.default alias.default contiguous.default detach.default lift_fresh_copy.default resolve_conj.default
    positive.default neg.default add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar
    sum.default sum.dim_IntList mean.default mean.dim cumsum.default
    """.split()
converter(*_BY_PARTS, of_complex=True)(by_parts)


@converter("constant_pad_nd.default", of_complex=True)
def pad(c: Call) -> object:
    c.refuse_unless(not c["value"], f"expected complex numbers padded with 0, found {c['value']}")
    return by_parts(c)


@converter("masked_fill.Scalar", "masked_fill.Tensor", of_complex=True)
def masked_fill(c: Call) -> Pair:
    pairs, mask = ComplexCall(c), c.tensor("mask", "bool")
    each = zip(pairs.pair("value"), pairs.pair("self"))
    return Pair.of(*(c.emit(relax.op.where(mask, value, part)) for value, part in each))


# Views of numbers as they lie in memory.


@converter("view_as_complex.default", of_complex=True)
def view_as_complex(c: Call) -> Pair:
    return Pair(together=c["self"])


@converter("view_as_real.default", of_complex=True)
def view_as_real(c: Call) -> relax.Expr:
    return ComplexCall(c).joined(c["self"])


@converter("real.default", of_complex=True)
def real(c: Call) -> relax.Expr:
    return ComplexCall(c).pair("self")[0]


@converter("imag.default", of_complex=True)
def imaginary(c: Call) -> relax.Expr:
    return ComplexCall(c).pair("self")[1]


@converter("complex.default", of_complex=True)
def complex_(c: Call) -> Pair:
    dtype = ComplexCall(c).dtype
    return Pair.of(*(c.broadcast(c.tensor(name, dtype), c.shape) for name in ("real", "imag")))


@converter("_to_copy.default", "to.dtype", "to.dtype_layout", of_complex=True)
def to_copy(c: Call) -> relax.Expr | Pair:
    """A real number has the imaginary part 0; of a complex one that becomes real it is dropped."""
    parts, wanted = ComplexCall(c).pair("self"), c.out.dtype.is_complex
    return Pair.of(parts[0], c.broadcast(parts[1], c.shape)) if wanted else parts[0]


@converter("_conj.default", "conj_physical.default", "_conj_physical.default", of_complex=True)
def conj(c: Call) -> Pair:
    x, y = ComplexCall(c).pair("self")
    return Pair.of(x, c.emit(relax.op.negative(y)))


# Arithmetic.


@converter("mul.Tensor", "mul.Scalar", of_complex=True)
def multiply(c: Call) -> Pair:
    pairs = ComplexCall(c)
    if pairs.is_real("self") or pairs.is_real("other"):
        each = {"self_": 0} if pairs.is_real("self") else {"other": 0}
        return Pair.of(*(CONVERTERS[target_name(c.node.target)](PartCall(c, every=i, **each)) for i in (0, 1)))
    for x, turn in (("self", "other"), ("other", "self")):
        if _turns(c, x, turn):
            return _turned(c, pairs, x, turn)
    return _product(c)


def _product(c: Call) -> Pair:
    """(a + ib) (c + id), of any product that is linear in both operands."""
    convert = CONVERTERS[target_name(c.node.target)]
    other = next(name for name in ("other", "mat2", "vec", "tensor") if name in c.nodes)

    def part(first: int, second: int) -> relax.Expr:
        return convert(PartCall(c, self_=first, **{other: second}))

    return Pair.of(c.emit(relax.op.subtract(part(0, 0), part(1, 1))), c.emit(relax.op.add(part(0, 1), part(1, 0))))


def _turns(c: Call, x: str, turn: str) -> bool:
    """Whether `turn` is one table of angles for many heads of an `x` whose numbers lie as pairs: a rotary embedding."""
    value = c[x]
    if not isinstance(value, Pair) or not isinstance(c[turn], Pair):
        return False
    shape, table = c.shape_of(x), c.shape_of(turn)
    spread = [tirx.IntImm("int64", 1)] * (len(shape) - len(table)) + list(table)
    is_one = [isinstance(d, tirx.IntImm) and d.value == 1 for d in spread]
    return (
        value.together is not None
        and len(shape) == 4
        and not is_one[3]
        and isinstance(shape[3], tirx.IntImm)
        and c.translator.same_shape(value.together.ty, [*c.shape, 2])
        and (is_one[1] or is_one[2])
    )


def _turned(c: Call, pairs: ComplexCall, x: str, turn: str) -> Pair:
    """x * cos + rotated(x) * sin, as it is written for real numbers: so it is recognised as `halo.rotary`."""
    shape, half = c.shape_of(x), int(c.shape_of(x)[3])
    flat = c.reshape(c.cast(c[x].together, pairs.dtype), [*shape[:3], 2 * half])
    odd, even = (c.emit(relax.op.strided_slice(flat, [3], [i], [2 * half], [2])) for i in (1, 0))
    column = [*shape[:3], half, 1]
    both = [c.reshape(v, column) for v in (c.emit(relax.op.negative(odd)), even)]
    rotated = c.reshape(c.emit(relax.op.concat(both, 4)), [*shape[:3], 2 * half])

    def spread(part: relax.Expr) -> relax.Expr:
        lead = list(part.ty.shape.values)[:-1]
        twice = c.emit(relax.op.concat([c.reshape(part, [*lead, half, 1])] * 2, len(lead) + 1))
        return c.reshape(twice, [*lead, 2 * half])

    cos, sin = (spread(part) for part in pairs.pair(turn))
    kept, moved = c.emit(relax.op.multiply(flat, cos)), c.emit(relax.op.multiply(rotated, sin))
    return Pair(together=c.reshape(c.emit(relax.op.add(kept, moved)), [*shape, 2]))


converter("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", of_complex=True)(_product)


@converter("einsum.default", of_complex=True)
def einsum(c: Call) -> Pair:
    operands = [ComplexCall(c).split(x) for x in c["tensors"]]
    c.refuse_unless(len(operands) == 2, f"expected two complex operands, found {len(operands)}")

    def product(first: int, second: int) -> relax.Expr:
        return c.emit(relax.op.einsum((operands[0][first], operands[1][second]), str(c["equation"])))

    parts = [(relax.op.subtract, (0, 0), (1, 1)), (relax.op.add, (0, 1), (1, 0))]
    return Pair.of(*(c.emit(op(product(*a), product(*b))) for op, a, b in parts))


@converter("div.Tensor", "div.Scalar", of_complex=True)
def divide(c: Call) -> Pair:
    pairs = ComplexCall(c)
    if pairs.is_real("other"):
        convert = CONVERTERS[target_name(c.node.target)]
        return Pair.of(*(convert(PartCall(c, every=i, other=0)) for i in (0, 1)))
    return _quotient(c, pairs.pair("self"), pairs.pair("other"))


@converter("reciprocal.default", of_complex=True)
def reciprocal(c: Call) -> Pair:
    pairs = ComplexCall(c)
    return _quotient(c, (constant(1, pairs.dtype), constant(0, pairs.dtype)), pairs.pair("self"))


def _quotient(c: Call, x: Sequence[relax.Expr], y: Sequence[relax.Expr]) -> Pair:
    """By Smith's method: the larger part of the divisor is divided by, so that no square overflows."""

    def part(of_imaginary: bool) -> relax.Expr:
        def value(a: Scalar, b: Scalar, p: Scalar, q: Scalar) -> Scalar:
            by_real = tirx.abs(p) >= tirx.abs(q)
            ratio = tirx.Select(by_real, q / p, p / q)
            below = tirx.Select(by_real, p + q * ratio, q + p * ratio)
            if of_imaginary:
                return tirx.Select(by_real, b - a * ratio, b * ratio - a) / below
            return tirx.Select(by_real, a + b * ratio, a * ratio + b) / below

        return pointwise(c, value, *x, *y, name="quotient")

    return Pair.of(part(False), part(True))


@converter("pow.Tensor_Scalar", of_complex=True)
def power(c: Call) -> Pair:
    exponent = c["exponent"]
    if not isinstance(exponent, int | float) or exponent != int(exponent) or not 1 <= exponent <= 8:
        raise Refused(f"exponent {exponent} of complex numbers")
    x, y = a, b = ComplexCall(c).pair("self")
    op = relax.op
    for _ in range(int(exponent) - 1):
        real = c.emit(op.subtract(c.emit(op.multiply(x, a)), c.emit(op.multiply(y, b))))
        y, x = c.emit(op.add(c.emit(op.multiply(x, b)), c.emit(op.multiply(y, a)))), real
    return Pair.of(x, y)


# Polar form.


def _magnitude(x: Scalar, y: Scalar) -> Scalar:
    """sqrt(x^2 + y^2) where the squares overflow or vanish, too."""
    one, zero = const_like(1, x), const_like(0, x)
    more, less = tirx.max(tirx.abs(x), tirx.abs(y)), tirx.min(tirx.abs(x), tirx.abs(y))
    ratio = less / tirx.Select(more > zero, more, one)
    return tirx.Select(tirx.isinf(more), more, more * tirx.sqrt(one + ratio * ratio))


@converter("abs.default", of_complex=True)
def absolute(c: Call) -> relax.Expr:
    return pointwise(c, _magnitude, *ComplexCall(c).pair("self"))


@converter("angle.default", of_complex=True)
def angle(c: Call) -> relax.Expr:
    return pointwise(c, lambda x, y: tirx.atan2(y, x), *ComplexCall(c).pair("self"))


@converter("polar.default", of_complex=True)
def polar(c: Call) -> Pair:
    dtype = ComplexCall(c).dtype
    return _from_polar(c, c.tensor("abs", dtype), c.tensor("angle", dtype))


@converter("exp.default", of_complex=True)
def exp(c: Call) -> Pair:
    x, y = ComplexCall(c).pair("self")
    return _from_polar(c, c.emit(relax.op.exp(x)), y)


def _from_polar(c: Call, length: relax.Expr, angle: relax.Expr) -> Pair:
    parts = (c.emit(relax.op.multiply(length, c.emit(f(angle)))) for f in (relax.op.cos, relax.op.sin))
    return Pair.of(*parts)


# Fourier transforms. torch scales a transform by nothing (0), by 1 / sqrt(n) (1) or by 1 / n (2).


@converter("_fft_r2c.default", of_complex=True)
def from_real(c: Call) -> Pair:
    """Along the last of the axes the input is real; half of the result says all."""
    *others, last = (int(d) % c.rank("self") for d in c["dim"])
    one = c.reshape(c["self"], [*c.shape_of("self"), 1])
    x = _along(c, one, last, c.shape_of("self")[last], False, bool(c["onesided"]))
    for axis in others:
        x = _along(c, x, axis, c.shape_of("self")[axis], False, False)
    return Pair(together=_scaled(c, x, [*others, last], c.shape_of("self"), False))


@converter("_fft_c2c.default", of_complex=True)
def of_complex(c: Call) -> Pair:
    axes, inverse = [int(d) % c.rank("self") for d in c["dim"]], not c["forward"]
    x = ComplexCall(c).joined(c["self"])
    for axis in axes:
        x = _along(c, x, axis, c.shape[axis], inverse, False)
    return Pair(together=_scaled(c, x, axes, c.shape, inverse))


@converter("_fft_c2r.default", of_complex=True)
def to_real(c: Call) -> relax.Expr:
    *others, last = (int(d) % c.rank("self") for d in c["dim"])
    x = ComplexCall(c).joined(c["self"])
    for axis in others:
        x = _along(c, x, axis, c.shape[axis], True, False)
    x = _along(c, x, last, c.shape[last], True, True)
    return c.reshape(_scaled(c, x, [*others, last], c.shape, True), c.shape)


def _along(c: Call, x: relax.Expr, axis: int, length: object, inverse: bool, onesided: bool) -> relax.Expr:
    rank = x.ty.ndim
    order = [i for i in range(rank - 1) if i != axis] + [axis, rank - 1]
    size = int(length) if isinstance(length, tirx.IntImm) else length
    out = transform(c, c.permute(x, order), size, inverse, onesided)
    return c.permute(out, [order.index(i) for i in range(rank)])


def _scaled(c: Call, x: relax.Expr, axes: Sequence[int], shape: Sequence[object], inverse: bool) -> relax.Expr:
    """`transform` divides by n where it goes back, and not where it goes forth: what is left to do."""
    power = (0.0, 0.5, 1.0)[int(c["normalization"])] - float(inverse)
    if power == 0:
        return x
    factor = math.prod(fixed(shape[axis], "the length of a scaled transform") for axis in axes) ** -power
    return c.emit(relax.op.multiply(x, constant(factor, str(x.ty.dtype))))
