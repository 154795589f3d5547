"""Operators on complex numbers: most do the same to both parts, arithmetic and views of memory do not."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax, tirx

from ....dimensions import is_one
from .._call import Call, constant
from .._complex import ComplexCall, Pair, PartCall, by_parts, converted, of_both
from .._registry import converter
from .complex_functions import quotient, truth
from .convolution import CONVOLUTIONS
from .creation import FILLED

_BY_PARTS = """
    view.default reshape.default _unsafe_view.default unsqueeze.default squeeze.default squeeze.dim squeeze.dims
    flatten.using_ints unflatten.int view_as.default _reshape_copy.default permute.default transpose.int t.default
    numpy_T.default mT.default expand.default expand_as.default broadcast_to.default repeat.default tile.default
    slice.Tensor select.int narrow.default split_with_sizes.default split.Tensor split.sizes chunk.default unbind.int
    tensor_split.sections cat.default concat.default stack.default flip.default roll.default
    unfold.default index.Tensor index_select.default gather.default where.self where.ScalarOther where.ScalarSelf
    tril.default triu.default
    _unsafe_index.Tensor constant_pad_nd.default pad.default pixel_shuffle.default
    slice_scatter.default select_scatter.default copy.default index_put.default _unsafe_index_put.default
    scatter.src scatter.value scatter_add.default masked_scatter.default
    reflection_pad1d.default reflection_pad2d.default replication_pad1d.default replication_pad2d.default
    clone.default alias.default contiguous.default detach.default lift_fresh_copy.default resolve_conj.default
    positive.default neg.default add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar
    sum.default sum.dim_IntList mean.default mean.dim cumsum.default
    """.split()
converter(*_BY_PARTS, of_complex=True)(by_parts)


@converter(*FILLED, of_complex=True)
def filled(c: Call) -> Pair:
    """A real number fills the real part alone."""
    zero = constant(0, ComplexCall(c).dtype)
    real, imaginary = of_both(c)
    of_numbers = any(name in c.nodes for name in ("fill_value", "value", "s"))
    return Pair.of(real, imaginary if of_numbers else c.broadcast(zero, c.shape))


@converter("masked_fill.Scalar", "masked_fill.Tensor", of_complex=True)
def masked_fill(c: Call) -> Pair:
    pairs, mask = ComplexCall(c), c.tensor("mask", "bool")
    each = zip(pairs.pair("value"), pairs.pair("self"))
    return Pair.of(*(c.emit(relax.op.where(mask, value, part)) for value, part in each))


# Views of numbers as they lie in memory.


for _name, _convert in {
    "view_as_complex": lambda c: Pair(together=c["self"]),
    "view_as_real": lambda c: ComplexCall(c).joined(c["self"]),
    "real": lambda c: ComplexCall(c).pair("self")[0],
    "imag": lambda c: ComplexCall(c).pair("self")[1],
}.items():
    converter(f"{_name}.default", of_complex=True)(_convert)


@converter("view.dtype", of_complex=True)
def view_dtype(c: Call) -> relax.Expr | Pair:
    """Numbers of twice as many elements, the parts in turn, or the other way."""
    if c.out.dtype.is_complex:
        c.refuse_unless(isinstance(c["self"], relax.Expr), "another precision of complex numbers")
        return Pair(together=c.reshape(c["self"], [*c.shape, 2]))
    return c.reshape(ComplexCall(c).joined(c["self"]), c.shape)


@converter("complex.default", of_complex=True)
def complex_(c: Call) -> Pair:
    dtype = ComplexCall(c).dtype
    return Pair.of(*(c.broadcast(c.tensor(name, dtype), c.shape) for name in ("real", "imag")))


@converter("_to_copy.default", "to.dtype", "to.dtype_layout", of_complex=True)
def to_copy(c: Call) -> relax.Expr | Pair:
    """A real number has the imaginary part 0; of a complex one that becomes real it is dropped."""
    real, imaginary = ComplexCall(c).pair("self")
    if c.out.dtype.is_complex:
        return Pair.of(real, c.broadcast(imaginary, c.shape))
    return truth(c, "self") if c.dtype == "bool" else c.cast(real, c.dtype)


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
        return Pair.of(*of_both(c, **each))
    for x, turn in (("self", "other"), ("other", "self")):
        if _turns(c, x, turn):
            return _turned(c, pairs, x, turn)
    return _product(c)


def _product(c: Call, first: str = "self_", second: str | None = None, **without: None) -> Pair:
    """(a + ib) (c + id), of any product that is linear in both operands."""
    other = second or next(name for name in ("other", "mat2", "vec", "vec2", "tensor") if name in c.nodes)

    def part(one: int, two: int) -> relax.Expr:
        return _changed(PartCall(c, **{first: one, other: two}), without)

    return Pair.of(c.emit(relax.op.subtract(part(0, 0), part(1, 1))), c.emit(relax.op.add(part(0, 1), part(1, 0))))


def _changed(call: PartCall, arguments: Mapping[str, object]) -> relax.Expr:
    call.nodes = {**call.nodes, **arguments}
    return converted(call)


@converter("linear.default", *CONVOLUTIONS, of_complex=True)
def product_with_bias(c: Call) -> Pair:
    product = _product(c, "input", "weight", bias=None)
    if not c.has("bias"):
        return product
    behind = 0 if c.op == "linear" else c.rank("weight") - 2  # axes behind the channels
    shape = [*c.shape_of("bias"), *[1] * behind]
    biases = (c.reshape(part, shape) for part in ComplexCall(c).pair("bias"))
    assert product.parts is not None, "a product has its parts"
    return Pair.of(*(c.emit(relax.op.add(part, bias)) for part, bias in zip(product.parts, biases)))


@converter("addmm.default", "baddbmm.default", of_complex=True)
def product_and_sum(c: Call) -> Pair:
    """beta * self + alpha * first @ second, for real numbers alpha and beta."""
    alpha, beta = c["alpha"], c["beta"]
    c.refuse_unless(not isinstance(alpha, complex) and not isinstance(beta, complex), "factors that are complex")
    first, second = ("mat1", "mat2") if c.op == "addmm" else ("batch1", "batch2")
    pairs = ComplexCall(c)

    def part(one: int, two: int, **changed: object) -> relax.Expr:
        return _changed(PartCall(c, self_=0, **{first: one, second: two}), changed)

    less = part(1, 1, alpha=-alpha, beta=0)
    imaginary = c.emit(relax.op.add(part(0, 1, beta=0), part(1, 0, beta=0)))
    real, added = part(0, 0), c.emit(relax.op.multiply(pairs.pair("self")[1], constant(beta, pairs.dtype)))
    return Pair.of(c.emit(relax.op.add(real, less)), c.emit(relax.op.add(imaginary, added)))


def _turns(c: Call, x: str, turn: str) -> bool:
    """Whether `turn` is one table of angles for many heads of an `x` whose numbers lie as pairs: a rotary embedding."""
    value = c[x]
    if not isinstance(value, Pair) or not isinstance(c[turn], Pair):
        return False
    shape, table = c.shape_of(x), c.shape_of(turn)
    single = [True] * (len(shape) - len(table)) + [is_one(d) for d in table]
    return (
        value.together is not None
        and len(shape) == 4
        and not single[3]
        and isinstance(shape[3], tirx.IntImm)
        and c.has_shape(value.together, [*c.shape, 2])
        and (single[1] or single[2])
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


_PRODUCTS = ("mm", "bmm", "matmul", "mv", "dot", "outer")
converter(*(f"{name}.default" for name in _PRODUCTS), of_complex=True)(_product)


@converter("einsum.default", of_complex=True)
def einsum(c: Call) -> Pair:
    operands, equation = [ComplexCall(c).split(x) for x in c["tensors"]], str(c["equation"])
    if len(operands) == 1:
        return Pair.of(*(c.emit(relax.op.einsum((part,), equation)) for part in operands[0]))
    c.refuse_unless(len(operands) == 2, f"expected at most two complex operands, found {len(operands)}")

    def product(first: int, second: int) -> relax.Expr:
        return c.emit(relax.op.einsum((operands[0][first], operands[1][second]), equation))

    parts = [(relax.op.subtract, (0, 0), (1, 1)), (relax.op.add, (0, 1), (1, 0))]
    return Pair.of(*(c.emit(op(product(*a), product(*b))) for op, a, b in parts))


@converter("div.Tensor", "div.Scalar", of_complex=True)
def divide(c: Call) -> Pair:
    pairs = ComplexCall(c)
    if pairs.is_real("other"):
        return Pair.of(*of_both(c, other=0))
    return quotient(c, pairs.pair("self"), pairs.pair("other"))


@converter("var.correction", "std.correction", "var.dim", "std.dim", of_complex=True)
def variance(c: Call) -> relax.Expr:
    """Of a complex number the variances of both parts add up."""
    parts = of_both(c)
    if c.op == "var":
        return c.emit(relax.op.add(*parts))
    return c.emit(relax.op.sqrt(c.emit(relax.op.add(*(c.emit(relax.op.multiply(p, p)) for p in parts)))))
