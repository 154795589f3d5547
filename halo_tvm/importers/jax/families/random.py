"""Random bits of keys that are inputs, or made of them: the same that jax draws. Keys are pairs of uint32."""

from __future__ import annotations

import jax
import numpy as np
from tvm import relax, te

from ....relay_ops.parts import threefry
from ...meaning.builder import expr_shape
from ...meaning.pointwise import const
from ...meaning.sizes import Dim, prim
from .._primitive import Primitive
from .._registry import converter
from .._values import Opaque, Value


def _keys(c: Primitive) -> tuple[relax.Expr, list[Dim]]:
    """The keys as [b, 2], and the shape that they have."""
    kind = str(c.eqn.invars[0].aval.dtype)
    c.refuse_unless(kind == "key<fry>", f"random numbers of {kind}")
    c.refuse_unless(bool(jax.config.jax_threefry_partitionable), "jax_threefry_partitionable switched off")
    pairs = _pairs(c)
    shape = expr_shape(pairs)[:-1]
    return c.reshape(pairs, [c.sizes.product(shape), 2]), shape


def _pairs(c: Primitive) -> relax.Expr:
    value = c.values[0]
    if isinstance(value, Opaque):
        return relax.const(np.asarray(jax.random.key_data(value.array)))
    return c.walker.expr_of(value)


@converter("random_wrap", "random_unwrap")
def same_pairs(c: Primitive) -> Value:
    return _pairs(c)


@converter("squeeze of keys", "reshape of keys", "expand_dims of keys")
def reshaped_keys(c: Primitive) -> Value:
    return c.reshape(_pairs(c), [*c.shape, 2])


@converter("slice of keys")
def sliced_keys(c: Primitive) -> Value:
    p, rank = c.params, c.rank()
    bounds = [list(map(prim, p[name])) for name in ("start_indices", "limit_indices")]
    strides = list(map(prim, p["strides"] or [1] * rank))
    return c.emit(relax.op.strided_slice(_pairs(c), list(range(rank)), *bounds, strides))


@converter("random_seed")
def seeded(c: Primitive) -> Value:
    """(the upper, the lower 32 bits) of each seed."""
    c.refuse_unless(str(c.eqn.outvars[0].aval.dtype) == "key<fry>", f"keys of {c.eqn.outvars[0].aval.dtype}")
    wide = c.dtype_of(0) in ("int64", "uint64")

    def compute(seeds: te.Tensor) -> te.Tensor:
        def word(*i: object) -> object:
            seed = seeds(*i[:-1])
            high = (seed >> const(32, str(seeds.dtype))).astype("uint32") if wide else const(0, "uint32")
            return te.if_then_else(i[-1] == 0, high, seed.astype("uint32"))

        return te.compute([*seeds.shape, 2], word, name="seed")

    return c.te(compute, c.x(0), name="seed")


@converter("random_bits")
def bits(c: Primitive) -> Value:
    """[*keys, *shape] of 8, 16, 32 or 64 bits."""
    keys, _ = _keys(c)
    width = int(c.params["bit_width"])
    words = c.te(threefry.of_places, keys, c.sizes.product(c.walker.dims.shape(c.params["shape"])), name="threefry")
    first, second = (c.emit(relax.op.astype(c.emit(relax.TupleGetItem(words, i)), c.dtype)) for i in range(2))
    if width == 64:
        high = c.emit(relax.op.left_shift(first, c.scalar(32, c.dtype)))
        return c.reshape(c.emit(relax.op.bitwise_or(high, second)), c.shape)
    return c.reshape(c.emit(relax.op.bitwise_xor(first, second)), c.shape)


@converter("random_split")
def split(c: Primitive) -> Value:
    """Keys [*keys, *shape]."""
    keys, lead = _keys(c)
    shape = c.walker.dims.shape(c.params["shape"])
    words = c.te(threefry.of_places, keys, c.sizes.product(shape), name="threefry")
    pair = [c.emit(relax.TupleGetItem(words, i)) for i in range(2)]
    return c.reshape(c.emit(relax.op.stack(pair, axis=-1)), [*lead, *shape, 2])


@converter("random_fold_in")
def folded(c: Primitive) -> Value:
    """Keys of keys and numbers."""
    keys, lead = _keys(c)
    numbers = c.reshape(c.cast(c.x(1), "uint32"), [c.sizes.product(lead)])
    return c.reshape(c.te(threefry.of_numbers, keys, numbers, name="threefry_fold"), [*lead, 2])
