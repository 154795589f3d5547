"""Sums, means, extrema, scans and searches along axes."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax, te, tirx

from ...loops import not_negative
from ...meaning.builder import Refused, expr_dtype
from ...meaning.pointwise import pointwise, widened
from ...meaning.reduction import arg_index, log_sum_exp
from ...meaning.running import running_extreme, running_log_sum_exp, running_places
from ...meaning.selection import first_in_order
from ...meaning.sizes import prim
from ...meaning.writing import write_rows
from .._call import Call, constant
from .._registry import converter


def _axes(c: Call, rank: int) -> list[int] | None:
    dim = c.nodes.get("dim")
    if dim is None or dim == []:
        return None
    return [int(d) % rank for d in (dim if isinstance(dim, list | tuple) else [dim])] if rank else None


def _reduced(function: Callable[..., relax.Expr], of_nothing: float | None = None) -> Callable[[Call], relax.Expr]:
    """`of_nothing`: the value of a reduction of no element; None where torch has none."""

    def convert(c: Call) -> relax.Expr:
        x = c.tensor("self", c.dtype)
        if c.rank("self") == 0:
            return x
        if c.is_empty() and of_nothing is not None:
            return c.broadcast(constant(of_nothing, c.dtype), c.shape)
        if c.dtype == "bool":  # an order of bools
            x = c.cast(x, "int8")
        y = c.emit(function(x, _axes(c, c.rank("self")), keepdims=bool(c.nodes.get("keepdim", False))))
        return c.cast(y, c.dtype)

    return convert


converter("sum.dim_IntList", "sum.default")(_reduced(relax.op.sum, 0))
converter("mean.dim", "mean.default")(_reduced(relax.op.mean, math.nan))
converter("amax.default", "max.default")(_reduced(relax.op.max))
converter("amin.default", "min.default")(_reduced(relax.op.min))
converter("prod.dim_int", "prod.default")(_reduced(relax.op.prod, 1))


@converter("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def any_all(c: Call) -> relax.Expr:
    """Of no elements any is False, which the largest of none is not."""
    x = c.cast(c.tensor("self", "bool"), "int8")
    is_any = "any" in str(c.node.target)
    function = relax.op.max if is_any else relax.op.min
    y = c.emit(function(x, _axes(c, c.rank("self")), keepdims=bool(c.nodes.get("keepdim", False))))
    return c.emit(relax.op.greater(y, constant(0, "int8"))) if is_any else c.cast(y, "bool")


@converter("max.dim", "min.dim")
def extremum(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """The first of equal elements, a NaN before all."""
    x, axis, keep = c.tensor("self"), c.axis("dim"), bool(c["keepdim"])
    index = _arg_extremum(c, x, axis, keep)
    if c.rank("self") == 0:
        return x, index
    wide = c.cast(x, "int8") if expr_dtype(x) == "bool" else x
    function = relax.op.max if "max" in str(c.node.target) else relax.op.min
    return c.cast(c.emit(function(wide, [axis], keepdims=keep)), expr_dtype(x)), index


@converter("argmax.default", "argmin.default")
def arg_extremum(c: Call) -> relax.Expr:
    x = c.tensor("self")
    if c["dim"] is None:
        flat = c.reshape(x, [c.sizes.product(c.shape_of("self"))])
        return c.reshape(_arg_extremum(c, flat, 0, False), c.shape)
    return _arg_extremum(c, x, c.axis("dim"), bool(c["keepdim"]))


def _arg_extremum(c: Call, x: relax.Expr, axis: int, keep: bool) -> relax.Expr:
    if x.ty.ndim == 0:
        return constant(0, "int64")
    index = arg_index(c, x, axis, largest="max" in str(c.node.target))
    return index if keep else c.emit(relax.op.squeeze(index, [axis]))


@converter("var.correction", "std.correction", "var.dim", "std.dim")
def variance(c: Call) -> relax.Expr:
    """Two passes; the divisor is the count less `correction`, and not below 0. Halves are widened first."""
    x, rank = widened(c, c.tensor("self")), c.rank("self")
    if c.is_empty():
        return c.broadcast(constant(math.nan, c.dtype), c.shape)
    axes = _axes(c, rank) or list(range(rank))
    correction = c["correction"] if "correction" in c.nodes else int(c["unbiased"])
    correction = 1 if correction is None else correction
    centred = c.emit(relax.op.subtract(x, c.emit(relax.op.mean(x, axes, keepdims=True)))) if rank else x
    square = c.emit(relax.op.multiply(centred, centred))
    total = c.emit(relax.op.sum(square, axes, keepdims=bool(c["keepdim"]))) if rank else _zero_like(c, x)
    count = c.sizes.product([c.shape_of("self")[axis] for axis in axes])
    if isinstance(count, int):
        divisor = constant(max(count - correction, 0), expr_dtype(x))
    else:
        divisor = c.emit(relax.op.subtract(c.as_tensor(count, expr_dtype(x)), constant(correction, expr_dtype(x))))
        divisor = c.emit(relax.op.maximum(divisor, constant(0, expr_dtype(x))))
    y = c.emit(relax.op.divide(total, divisor))
    return c.cast(y if "var" in str(c.node.target) else c.emit(relax.op.sqrt(y)), c.dtype)


def _zero_like(c: Call, x: relax.Expr) -> relax.Expr:
    """0, or NaN where x is no number."""
    return c.emit(relax.op.subtract(x, x))


@converter("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def vector_norm(c: Call) -> relax.Expr:
    order = c["ord"] if "ord" in c.nodes else c["p"]
    order = 2 if order is None else order
    x = widened(c, c.tensor("self", c.dtype))
    size = c.emit(relax.op.abs(x))
    axes, keep = _axes(c, c.rank("self")), bool(c.nodes.get("keepdim", False))

    def along(function: Callable[..., relax.Expr], x: relax.Expr) -> relax.Expr:
        return c.emit(function(x, axes, keepdims=keep)) if c.rank("self") else x

    if order == 2:
        y = c.emit(relax.op.sqrt(along(relax.op.sum, c.emit(relax.op.multiply(x, x)))))
    elif order == 1:
        y = along(relax.op.sum, size)
    elif order == 0:
        y = along(relax.op.sum, c.cast(c.emit(relax.op.not_equal(x, constant(0, expr_dtype(x)))), expr_dtype(x)))
    elif order in (math.inf, -math.inf):
        y = along(relax.op.max if order > 0 else relax.op.min, size)
    else:
        power, root = (constant(v, expr_dtype(x)) for v in (order, 1 / order))
        total = along(relax.op.sum, pointwise(c, tirx.pow, size, power))
        y = pointwise(c, tirx.pow, total, root)
    return c.cast(y, c.dtype)


@converter("logsumexp.default")
def logsumexp(c: Call) -> relax.Expr:
    x = c.tensor("self", c.dtype)
    if c.rank("self") == 0:
        return x
    axes = _axes(c, c.rank("self")) or list(range(c.rank("self")))
    return c.reshape(log_sum_exp(c, x, axes), c.shape)


@converter("cumsum.default", "cumprod.default")
def scan(c: Call) -> relax.Expr:
    """Operands are converted first: the sum of bools is an integer. Halves are summed in float32."""
    x = widened(c, c.tensor("self", c.dtype))
    if c.rank("self") == 0:
        return c.cast(x, c.dtype)
    function = relax.op.cumsum if "cumsum" in str(c.node.target) else relax.op.cumprod
    return c.cast(c.emit(function(x, c.axis("dim"))), c.dtype)


@converter("cummax.default", "cummin.default")
def running_extremes(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """(values, places)."""
    x = c.tensor("self")
    if c.rank("self") == 0:
        return x, constant(0, "int64")
    axis, dtype = c.axis("dim"), expr_dtype(x)
    x = c.cast(x, "uint8") if dtype == "bool" else x
    values = running_extreme(c, x, axis, largest="cummax" in str(c.node.target))
    return c.cast(values, dtype), running_places(c, x, values, axis)


@converter("logcumsumexp.default")
def running_log_sum(c: Call) -> relax.Expr:
    x = widened(c, c.tensor("self"))
    return c.tensor("self") if c.rank("self") == 0 else c.cast(running_log_sum_exp(c, x, c.axis("dim")), c.dtype)


@converter("topk.default")
def topk(c: Call) -> tuple[relax.Expr, relax.Expr]:
    axis, k = c.axis("dim"), c["k"]
    if c.rank("self") == 0:
        return c.tensor("self"), constant(0, "int64")
    if not isinstance(k, int):
        return first_in_order(c, c.tensor("self"), c.shape[axis], axis, largest=bool(c["largest"]))
    both = c.emit(relax.op.topk(c.tensor("self"), k, axis, "both", bool(c["largest"]), "int64"))
    return c.emit(relax.TupleGetItem(both, 0)), c.emit(relax.TupleGetItem(both, 1))


@converter("sort.default", "sort.stable", "argsort.default", "argsort.stable")
def sort(c: Call) -> object:
    """Ties keep their order: TVM's argsort is stable."""
    x, axis = c.tensor("self"), c.axis("dim")
    only = "argsort" in str(c.node.target)
    if c.rank("self") == 0:
        order = constant(0, "int64")
        return order if only else (x, order)
    order = c.emit(relax.op.argsort(x, axis, bool(c["descending"]), "int64"))
    if only:
        return order
    return c.emit(relax.op.gather_elements(x, order, axis)), order


@converter("histc.default")
def histc(c: Call) -> relax.Expr:
    """Counts of the elements of `bins` equal intervals of min..max; others are not counted."""
    bins, low, high = int(c["bins"]), float(c["min"]), float(c["max"])
    if high <= low:
        raise Refused("bounds that come from the data")
    x = c.tensor("self")

    def compute(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, x.shape[0]), "k")
        least, width = tirx.const(low, x.dtype), tirx.const(high - low, x.dtype)

        def at(i: tirx.Var) -> tirx.PrimExpr:
            value = x[k]
            place = tirx.trunc((value - least) * tirx.const(bins, x.dtype) / width).astype("int64")
            place = tirx.min(place, tirx.const(bins - 1, "int64"))
            inside = tirx.all(value >= least, value <= tirx.const(high, x.dtype), place == i)
            return te.sum(inside.astype(x.dtype), axis=k)

        return te.compute((prim(bins),), at, name="histc")

    return c.te(compute, c.cast(c.reshape(x, [c.sizes.product(c.shape_of("self"))]), c.dtype), name="histc")


@converter("bincount.default")
def bincount(c: Call) -> relax.Expr:
    """How often each number from 0 is in a vector, or the sum of its weights; a run with a number below 0 ends.

    The result ends at the largest number, or has `minlength` elements where that is more.
    """
    x, size = c.cast(c.tensor("self"), "int64"), c.found_size(0)
    length = constant([int(c["minlength"])], "int64")
    if not c.is_empty():
        x = not_negative(c.block, x, "a number below 0 for bincount")
        most = c.emit(relax.op.max(x, 0, keepdims=True))
        length = c.emit(relax.op.maximum(c.emit(relax.op.add(most, constant(1, "int64"))), length))
    c.block.match_cast(c.emit(relax.op.tensor_to_shape(length)), relax.ShapeType([size]))
    none = c.broadcast(constant(0, c.dtype), [size])
    each = c.tensor("weights", c.dtype) if c.has("weights") else constant(1, c.dtype)
    return write_rows(
        c, none, c.reshape(x, [1, *x.ty.shape.values]), c.broadcast(each, x.ty.shape.values), "add", first=True
    )


@converter("one_hot.default")
def one_hot(c: Call) -> relax.Expr:
    x = c.reshape(c.tensor("self"), [*c.shape_of("self"), 1])
    return c.cast(c.emit(relax.op.equal(x, c.emit(relax.op.arange(0, c.shape[-1], 1, "int64")))), c.dtype)
