"""Products: with a weight as halo.linear, of two activations as matmul."""

from __future__ import annotations

from tvm import relax, te, tirx

from ....relay_ops import OPERATORS
from ....relay_ops.operator import ACCUMULATED
from .._call import Call
from .._registry import converter


def _is_weight(c: Call, weight: relax.Expr, x: relax.Expr) -> bool:
    return (
        weight in c.translator.weights
        and weight.ty.ndim == 2
        and str(x.ty.dtype) == str(weight.ty.dtype)
        and str(x.ty.dtype) in ACCUMULATED
    )


@converter("linear.default")
def linear(c: Call) -> relax.Expr:
    x, weight = c.tensor("input"), c.tensor("weight")
    bias = [c.tensor("bias")] if c.has("bias") else []
    if _is_weight(c, weight, x) and all(b in c.translator.weights for b in bias):
        n = int(weight.ty.shape.values[0])
        return c.emit(OPERATORS["linear"].call(x, weight, *bias, layout="nk", n=n))
    turned = c.permute(weight, [1, 0]) if weight.ty.ndim == 2 else weight
    product = c.emit(relax.op.matmul(x, turned))
    return c.emit(relax.op.add(product, bias[0])) if bias else product


@converter("addmm.default")
def addmm(c: Call) -> relax.Expr:
    """beta * self + alpha * mat1 @ mat2."""
    x, weight, bias = c.tensor("mat1"), c.tensor("mat2"), c.tensor("self")
    plain = c["alpha"] == 1 and c["beta"] == 1
    if plain and _is_weight(c, weight, x) and bias in c.translator.weights and bias.ty.ndim == 1:
        n = int(weight.ty.shape.values[1])
        return c.emit(OPERATORS["linear"].call(x, weight, bias, layout="kn", n=n))
    product = _times(c, c.emit(relax.op.matmul(x, weight)), c["alpha"])
    return product if c["beta"] == 0 else c.emit(relax.op.add(_times(c, bias, c["beta"]), product))


@converter("baddbmm.default")
def baddbmm(c: Call) -> relax.Expr:
    product = _times(c, c.emit(relax.op.matmul(c.tensor("batch1"), c.tensor("batch2"))), c["alpha"])
    return product if c["beta"] == 0 else c.emit(relax.op.add(_times(c, c.tensor("self"), c["beta"]), product))


def _times(c: Call, x: relax.Expr, factor: object) -> relax.Expr:
    return x if factor == 1 else c.emit(relax.op.multiply(x, c.as_tensor(factor, c.dtype)))


@converter("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def matmul(c: Call) -> relax.Expr:
    a = c.tensor("self")
    b = c.tensor(next(name for name in ("mat2", "other", "vec", "tensor") if name in c.nodes))
    if _is_weight(c, b, a):
        return c.emit(OPERATORS["linear"].call(a, b, layout="kn", n=int(b.ty.shape.values[1])))
    if "float" not in c.dtype:  # integers: a sum of products
        wide = c.emit(relax.op.matmul(a, b, out_dtype=c.dtype))
        return c.reshape(wide, c.shape)
    return c.reshape(c.emit(relax.op.matmul(a, b)), c.shape)


@converter("einsum.default")
def einsum(c: Call) -> relax.Expr:
    return c.emit(relax.op.einsum(tuple(c.as_tensor(x, c.dtype) for x in c["tensors"]), str(c["equation"])))


@converter("outer.default")
def outer(c: Call) -> relax.Expr:
    column = c.reshape(c.tensor("self", c.dtype), [c.shape[0], 1])
    product = relax.op.logical_and if c.dtype == "bool" else relax.op.multiply
    return c.emit(product(column, c.reshape(c.tensor("vec2", c.dtype), [1, c.shape[1]])))


@converter("transformers.grouped_mm_fallback.default", "_grouped_mm.default")
def grouped_mm(c: Call) -> relax.Expr:
    """Rows of x times the weight of their group: `offs[g]` is the row behind the last one of group g.

    x [rows, k], weight [g, k, n], offs [g]  ->  y [rows, n]; rows behind the last group are 0
    """
    first, second = ("input", "weight") if "input" in c.nodes else ("self", "mat2")

    def compute(x: te.Tensor, weight: te.Tensor, offs: te.Tensor) -> te.Tensor:
        rows, depth = x.shape
        groups, _, n = weight.shape
        g, k = te.reduce_axis((0, groups), "g"), te.reduce_axis((0, depth), "k")
        group = te.compute(
            (rows,), lambda i: te.sum((offs[g] <= i.astype(offs.dtype)).astype("int64"), axis=g), name="group"
        )
        last = groups - 1

        def term(i: tirx.Var, j: tirx.Var) -> tirx.PrimExpr:
            return te.sum(x[i, k] * weight[tirx.min(group[i], last), k, j], axis=k)

        product = te.compute((rows, n), term, name="grouped_mm")
        return te.compute(
            (rows, n), lambda i, j: tirx.Select(group[i] <= last, product[i, j], tirx.const(0, x.dtype)), name="inside"
        )

    offsets = c.tensor("offs")
    return c.te(compute, c.tensor(first), c.tensor(second), offsets, name="grouped_mm")


@converter("embedding.default")
def embedding(c: Call) -> relax.Expr:
    ids, table = c.tensor("indices"), c.tensor("weight")
    if table in c.translator.weights and table.ty.ndim == 2:
        n = int(table.ty.shape.values[0])
        return c.emit(OPERATORS["embedding"].call(ids, table, layout="nk", n=n))
    return c.emit(relax.op.take(table, ids, axis=0, mode="clip"))
