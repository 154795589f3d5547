"""The operands of an attention, followed back through views to heads as the operator takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx

from ... import _compat
from ...errors import Rejected
from .._views import NoView, bases, chain_of, positions, probes
from ..operator import Match, same_dimension

HEADS_FIRST = (0, 2, 1, 3)  # [b, s, h, d] <-> [b, h, s, d]
KEYS_LAST = (0, 2, 3, 1)  # [b, s, h, d] -> [b, h, d, s]


def check_rank(product: relax.TensorType, *operands: relax.Expr) -> None:
    """`Rejected` unless operands, of a product of the type `product`, are matrices of heads."""
    for ty in (product, *(operand.ty for operand in operands)):
        if ty.ndim != product.ndim or ty.ndim < 3 or not isinstance(ty.shape, relax.ShapeExpr):
            raise Rejected(f"operands must all be of one rank from 3 on and known shape, got {ty}")


def with_one_batch(product: relax.TensorType, *operands: relax.Expr) -> tuple[relax.TensorType, list[relax.Expr]]:
    """q, k and v of rank 5 and more (windows, groups) with one batch in front of their heads, and their product's type.

    Operands are [.., heads, positions, width], the keys, the second of them, [.., heads, width, positions].
    """
    if product.ndim <= 4:
        return product, list(operands)
    lead = list(product.shape.values[:-2])
    *outer, heads = lead
    batch = math.prod(outer[1:], start=outer[0])
    found = []
    for role, operand in zip("qkv", operands, strict=True):
        *own, rows, columns = operand.ty.shape.values
        if not all(map(same_dimension, own, lead)):
            sizes = ", ".join(str(getattr(dim, "value", dim)) for dim in lead)
            raise Rejected(f"operands of rank {product.ndim} must have the leading sizes {sizes}, got {operand.ty}")
        # Positions before heads: what the operator takes, so that both transpositions join what made the operand.
        there, back = ((-1, -3, -2), KEYS_LAST) if role == "k" else ((-2, -3, -1), HEADS_FIRST)
        sizes, dtype = [columns, heads, rows] if role == "k" else [rows, heads, columns], operand.ty.dtype
        moved = relax.op.permute_dims(operand, [*range(len(outer)), *(product.ndim + a for a in there)])
        joined = relax.op.reshape(_typed(moved, [*outer, *sizes], dtype), [batch, *sizes])
        moved = relax.op.permute_dims(_typed(joined, [batch, *sizes], dtype), list(back))
        found.append(_typed(moved, [batch, heads, rows, columns], dtype))
    return relax.TensorType([batch, heads, *product.shape.values[-2:]], product.dtype), found


def _typed(call: relax.Call, dims: list[tirx.PrimExpr], dtype: str) -> relax.Call:
    _compat.set_type(call, relax.TensorType(dims, dtype))
    return call


@dataclass(frozen=True)
class Heads:
    """Operands as the operator takes them, positions before heads, and their sizes."""

    q: relax.Expr  # [batch, rows, count, width]
    k: relax.Expr  # [batch, keys, kv_count, width]
    v: relax.Expr
    batch: tirx.PrimExpr
    rows: tirx.PrimExpr
    keys: tirx.PrimExpr
    count: int
    kv_count: int
    width: int


def heads_of(match: Match, q: relax.Expr, k: relax.Expr, v: relax.Expr, product: relax.TensorType) -> Heads:
    """The operands of an attention, whose result has the type `product`, of rank 3 or 4."""
    rows, keys = product.shape.values[-2], v.ty.shape.values[-2]
    width, value_width = (x.ty.shape.values[-1] for x in (q, v))
    if not all(isinstance(d, tirx.IntImm) for d in (width, value_width)):
        raise Rejected(f"head sizes must be known, got {width} and {value_width}")
    width, value_width = int(width), int(value_width)
    if width != value_width:
        raise Rejected(f"q and v must have one head size, got {width} and {value_width}")
    if not same_dimension(k.ty.shape.values[-2], width) or not same_dimension(k.ty.shape.values[-1], keys):
        raise Rejected(f"the keys must be [.., {width}, {keys}], got {k.ty}")
    _check_lead(q, k, v)
    batch, count = _batch_and_heads(match, q, product)
    sizes = (batch, count, rows, keys, width)
    queries, query_heads = _operand(match, q, sizes, "q")
    key, kv_heads = _operand(match, k, sizes, "k")
    value, value_heads = _operand(match, v, sizes, "v")
    if query_heads != count or kv_heads != value_heads or count % kv_heads:
        raise Rejected(
            f"k and v must have one number of heads, got {kv_heads} and {value_heads} for {query_heads} of q"
        )
    return Heads(queries, key, value, batch, rows, keys, count, kv_heads, width)


def _check_lead(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> None:
    """`Rejected` unless q, k and v have one batch, and k and v of rank 4 as many heads as q, or one."""
    batches = [x.ty.shape.values[0] for x in (q, k, v)]
    if not all(same_dimension(b, batches[0]) for b in batches):
        raise Rejected(f"q, k and v must have one batch size, got {', '.join(map(str, batches))}")
    if q.ty.ndim == 3:
        return
    heads = [x.ty.shape.values[1] for x in (q, k, v)]
    if not all(isinstance(h, tirx.IntImm) for h in heads):
        raise Rejected(f"the number of heads must be known, got {', '.join(map(str, heads))}")
    count, *others = map(int, heads)
    if others[0] != others[1] or others[0] not in (1, count):
        raise Rejected(f"k and v must have the {count} heads of q or one, got {others[0]} and {others[1]}")


def _batch_and_heads(match: Match, q: relax.Expr, product: relax.TensorType) -> tuple[tirx.PrimExpr, int]:
    """Batch size and number of query heads: of rank 4 in place, of rank 3 found where the two were joined."""
    lead = list(product.shape.values[:-2])
    if len(lead) == 2:
        if not isinstance(lead[1], tirx.IntImm):
            raise Rejected(f"the number of heads must be known, got {lead[1]}")
        return lead[0], int(lead[1])
    rows, width = q.ty.shape.values[-2:]
    for expr in chain_of(q, match.value)[1:]:
        dims = list(expr.ty.shape.values)
        if len(dims) != 4 or not same_dimension(dims[3], width):
            continue
        for positions_at, heads_at in ((2, 1), (1, 2)):
            if isinstance(dims[heads_at], tirx.IntImm) and same_dimension(dims[positions_at], rows):
                if same_dimension(dims[0] * dims[heads_at], lead[0]):
                    return dims[0], int(dims[heads_at])
    return lead[0], 1


def _operand(match: Match, expr: relax.Expr, sizes: tuple, role: str) -> tuple[relax.Expr, int]:
    """`expr` as [batch, positions, heads, width], from the deepest tensor of its chain of views that is one.

    Heads that views repeat, one for several query heads, are found un-repeated.
    """
    batch, count, rows, keys, width = sizes
    length = rows if role == "q" else keys
    own = expr.ty.shape.values[1] if expr.ty.ndim == 4 else None
    if isinstance(own, tirx.IntImm) and own.value == 1:
        count = 1  # one head for all of q, which the product broadcasts
    chain = chain_of(expr, match.value)
    for base in bases(chain):
        found = _arranged(match, chain, base, (batch, count, length, width), role == "k")
        if found is not None:
            return found
    whole = chain[0]
    if whole.ty.ndim == 3:
        whole = relax.op.reshape(whole, [batch, count, *whole.ty.shape.values[1:]])
    axes = (0, 3, 1, 2) if role == "k" else HEADS_FIRST
    return relax.op.permute_dims(whole, list(axes)), count


def _arranged(match: Match, chain: list, base: int, sizes: tuple, transposed: bool) -> tuple[relax.Expr, int] | None:
    """The tensor at `base` of `chain` as [batch, positions, heads, width], and its heads; None when it is not one."""
    batch, count, length, width = sizes
    source = chain[base]
    dims = list(source.ty.shape.values)
    if not dims or not all(isinstance(d, tirx.IntImm) or not isinstance(d, int) for d in dims):
        return None
    candidates: list[tuple[str, int]] = []
    if len(dims) == 4 and isinstance(dims[2], tirx.IntImm) and same_dimension(dims[3], width):
        candidates.append(("positions first", int(dims[2])))
    if len(dims) == 4 and isinstance(dims[1], tirx.IntImm) and same_dimension(dims[3], width):
        candidates.append(("heads first", int(dims[1])))
    if len(dims) == 3 and isinstance(dims[2], tirx.IntImm) and int(dims[2]) % width == 0:
        candidates.append(("merged", int(dims[2]) // width))
    candidates = [(kind, n) for kind, n in candidates if n and count % n == 0]
    for kind, n in candidates:
        try:
            if all(_agrees(match, chain, base, kind, n, sizes, transposed, probe) for probe in probes()):
                if kind == "positions first":
                    return source, n
                if kind == "heads first":
                    return relax.op.permute_dims(source, list(HEADS_FIRST)), n
                return relax.op.reshape(source, [batch, length, n, width]), n
        except NoView:
            return None
    return None


def _agrees(match: Match, chain: list, base: int, kind: str, n: int, sizes: tuple, transposed: bool, probe) -> bool:
    _, count, _, width = sizes
    arrays = positions(chain, base, match.value, probe)
    found, source = arrays[0], arrays[-1]
    if transposed:
        found = np.swapaxes(found, -1, -2)
    if kind == "merged":
        source = source.reshape(*source.shape[:2], n, width)
    wanted = source if kind == "heads first" else source.transpose(HEADS_FIRST)
    wanted = np.repeat(wanted, count // n, axis=1)
    if found.ndim == 3:
        wanted = (
            wanted.reshape(-1, *wanted.shape[2:]) if wanted.shape[0] * wanted.shape[1] == found.shape[0] else wanted
        )
    return found.shape == wanted.shape and bool((found == wanted).all())
