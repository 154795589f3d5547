"""Sums, means, extrema, scans and searches along axes."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx

from ...meaning.builder import Refused
from .._call import Call, constant
from .._registry import converter


def _axes(c: Call, rank: int) -> list[int] | None:
    dim = c.nodes.get("dim")
    if dim is None or dim == []:
        return None
    return [int(d) % rank for d in (dim if isinstance(dim, list | tuple) else [dim])] if rank else None


def _reduced(function: Callable[..., relax.Expr]) -> Callable[[Call], relax.Expr]:
    def convert(c: Call) -> relax.Expr:
        x = c.tensor("self", c.dtype)
        keep = bool(c.nodes.get("keepdim", False))
        return x if c.rank("self") == 0 else c.emit(function(x, _axes(c, c.rank("self")), keepdims=keep))

    return convert


converter("sum.dim_IntList", "sum.default")(_reduced(relax.op.sum))
converter("mean.dim", "mean.default")(_reduced(relax.op.mean))
converter("amax.default", "max.default")(_reduced(relax.op.max))
converter("amin.default", "min.default")(_reduced(relax.op.min))
converter("prod.dim_int", "prod.default")(_reduced(relax.op.prod))


@converter("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def any_all(c: Call) -> relax.Expr:
    x = c.cast(c.tensor("self", "bool"), "int8")
    function = relax.op.max if ".any." in f".{c.node.target}." or "any" in str(c.node.target) else relax.op.min
    y = c.emit(function(x, _axes(c, c.rank("self")), keepdims=bool(c.nodes.get("keepdim", False))))
    return c.cast(y, "bool")


@converter("max.dim", "min.dim")
def extremum(c: Call) -> tuple[relax.Expr, relax.Expr]:
    axis, keep = int(c["dim"]) % c.rank("self"), bool(c["keepdim"])
    largest = "max" in str(c.node.target)
    x = c.tensor("self")
    value = c.emit((relax.op.max if largest else relax.op.min)(x, [axis], keepdims=keep))
    return value, c.emit((relax.op.argmax if largest else relax.op.argmin)(x, axis, keep))


@converter("argmax.default", "argmin.default")
def arg_extremum(c: Call) -> relax.Expr:
    x = c.tensor("self")
    x = c.cast(x, "int32") if str(x.ty.dtype) == "bool" else x
    function = relax.op.argmax if "argmax" in str(c.node.target) else relax.op.argmin
    if c["dim"] is None:
        total = tirx.IntImm("int64", 1)
        for size in c.shape_of("self"):
            total = total * size
        return c.reshape(c.emit(function(c.reshape(x, [total]), 0, False)), c.shape)
    return c.emit(function(x, int(c["dim"]) % c.rank("self"), bool(c["keepdim"])))


@converter("var.correction", "std.correction", "var.dim", "std.dim")
def variance(c: Call) -> relax.Expr:
    """Two passes; the divisor is the count less `correction`."""
    x, rank = c.tensor("self"), c.rank("self")
    axes = _axes(c, rank) or list(range(rank))
    correction = c["correction"] if "correction" in c.nodes else int(c["unbiased"])
    correction = 1 if correction is None else correction
    centred = c.emit(relax.op.subtract(x, c.emit(relax.op.mean(x, axes, keepdims=True))))
    total = c.emit(relax.op.sum(c.emit(relax.op.multiply(centred, centred)), axes, keepdims=bool(c["keepdim"])))
    count = tirx.IntImm("int64", 1)
    for axis in axes:
        count = count * c.shape_of("self")[axis]
    divisor = count - correction
    divisor = constant(int(divisor), c.dtype) if isinstance(divisor, tirx.IntImm) else c.as_tensor(divisor, c.dtype)
    y = c.emit(relax.op.divide(total, divisor))
    return y if "var" in str(c.node.target) else c.emit(relax.op.sqrt(y))


@converter("linalg_vector_norm.default", "norm.ScalarOpt_dim")
def vector_norm(c: Call) -> relax.Expr:
    order = c["ord"] if "ord" in c.nodes else c["p"]
    order = 2 if order is None else order
    x, axes, keep = c.tensor("self", c.dtype), _axes(c, c.rank("self")), bool(c["keepdim"])
    size = c.emit(relax.op.abs(x))
    if order == 2:
        total = c.emit(relax.op.sum(c.emit(relax.op.multiply(x, x)), axes, keepdims=keep))
        return c.emit(relax.op.sqrt(total))
    if order == 1:
        return c.emit(relax.op.sum(size, axes, keepdims=keep))
    if order in (float("inf"), float("-inf")):
        return c.emit((relax.op.max if order > 0 else relax.op.min)(size, axes, keepdims=keep))
    raise Refused(f"ord={order}")


@converter("logsumexp.default")
def logsumexp(c: Call) -> relax.Expr:
    x, axes, keep = c.tensor("self", c.dtype), _axes(c, c.rank("self")), bool(c["keepdim"])
    peak = c.emit(relax.op.max(x, axes, keepdims=True))
    total = c.emit(relax.op.sum(c.emit(relax.op.exp(c.emit(relax.op.subtract(x, peak)))), axes, keepdims=keep))
    return c.emit(relax.op.add(c.emit(relax.op.log(total)), c.reshape(peak, c.shape)))


@converter("cumsum.default", "cumprod.default")
def scan(c: Call) -> relax.Expr:
    """Operands are converted first: the sum of bools is an integer."""
    x = c.tensor("self", c.dtype)
    if c.rank("self") == 0:
        return x
    function = relax.op.cumsum if "cumsum" in str(c.node.target) else relax.op.cumprod
    return c.emit(function(x, int(c["dim"]) % c.rank("self")))


@converter("topk.default")
def topk(c: Call) -> tuple[relax.Expr, relax.Expr]:
    axis, k = int(c["dim"]) % c.rank("self"), c["k"]
    if not isinstance(k, int):
        raise Refused("k that is a dynamic size")
    both = c.emit(relax.op.topk(c.tensor("self"), k, axis, "both", bool(c["largest"]), "int64"))
    return c.emit(relax.TupleGetItem(both, 0)), c.emit(relax.TupleGetItem(both, 1))


@converter("sort.default", "sort.stable", "argsort.default", "argsort.stable")
def sort(c: Call) -> object:
    """Ties keep their order: TVM's argsort is stable."""
    x, axis = c.tensor("self"), int(c["dim"]) % max(c.rank("self"), 1)
    order = c.emit(relax.op.argsort(x, axis, bool(c["descending"]), "int64"))
    if "argsort" in str(c.node.target):
        return order
    return c.emit(relax.op.gather_elements(x, order, axis)), order


@converter("histc.default")
def histc(c: Call) -> relax.Expr:
    """Counts of the elements of `bins` equal intervals of min..max; others are not counted."""
    bins, low, high = int(c["bins"]), float(c["min"]), float(c["max"])
    if high <= low:
        raise Refused("bounds that come from the data")
    x = c.tensor("self")
    total = tirx.IntImm("int64", 1)
    for size in c.shape_of("self"):
        total = total * size

    def compute(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, x.shape[0]), "k")
        least, width = tirx.const(low, x.dtype), tirx.const(high - low, x.dtype)

        def at(i: tirx.Var) -> tirx.PrimExpr:
            value = x[k]
            place = tirx.trunc((value - least) * tirx.const(bins, x.dtype) / width).astype("int64")
            place = tirx.min(place, tirx.const(bins - 1, "int64"))
            inside = tirx.all(value >= least, value <= tirx.const(high, x.dtype), place == i)
            return te.sum(inside.astype(x.dtype), axis=k)

        return te.compute((tirx.IntImm("int64", bins),), at, name="histc")

    return c.te(compute, c.cast(c.reshape(x, [total]), c.dtype), name="histc")


@converter("one_hot.default")
def one_hot(c: Call) -> relax.Expr:
    depth = c.shape[-1]
    one = tirx.IntImm("int64", 1)
    x = c.reshape(c.tensor("self"), [*c.shape_of("self"), one])
    return c.cast(c.emit(relax.op.equal(x, c.emit(relax.op.arange(0, depth, 1, "int64")))), c.dtype)
