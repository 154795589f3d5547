"""A program with complex numbers -> one of real numbers that computes the same: each is a pair of arrays of its shape.

What moves numbers moves both parts; what computes with them is written out here. A Fourier transform is a primitive of
this module on tensors whose last axis holds the parts (`meaning.fourier`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive

from ..meaning.builder import Refused


class Pair(NamedTuple):
    """Real and imaginary part. To jax it is a tree of two arrays."""

    re: Any
    im: Any


Number = Any  # an array of real numbers, or a Pair

# Do to both parts what they do to a tensor; operands of other types, such as indices, are of both.
_PARTWISE = frozenset(
    "reshape squeeze expand_dims transpose broadcast_in_dim slice dynamic_slice dynamic_update_slice gather scatter "
    "scatter-add concatenate pad rev select_n copy copy_p reduce_sum cumsum neg add sub add_any split reduce_precision "
    "optimization_barrier stack unstack tile".split()
)
_INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat")


def is_complex(x: Any) -> bool:
    return bool(jnp.issubdtype(getattr(x, "dtype", np.float32), np.complexfloating))


def has_complex(jaxpr: Any) -> bool:
    """Whether anything in `jaxpr`, in what it calls too, is complex."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    return any(_mixes(eqn) for eqn in inner.eqns)


def _mixes(eqn: Any) -> bool:
    own = any(is_complex(v.aval) for v in (*eqn.invars, *eqn.outvars))
    return own or any(has_complex(j) for j in _inside(eqn.params))


def _inside(params: Any) -> list[Any]:
    """The programs among the parameters of an equation."""
    values = params.values() if isinstance(params, dict) else params
    found = []
    for value in values:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _inside(value)
    return found


def without_complex(closed: ClosedJaxpr) -> ClosedJaxpr:
    """`closed`, whose inputs and results are real, with pairs in the place of complex numbers.

    Raises `Refused` with what complex numbers cannot do here.
    """
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    made: ClosedJaxpr = jax.make_jaxpr(lambda *args: _run(closed, args))(*types)
    return made


def _run(jaxpr: Any, args: Sequence[Number]) -> list[Number]:
    consts, jaxpr = (jaxpr.consts, jaxpr.jaxpr) if isinstance(jaxpr, ClosedJaxpr) else ((), jaxpr)
    env: dict[Any, Number] = dict(zip(jaxpr.constvars, map(_paired, consts), strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def value_of(atom: Any) -> Number:
        return _paired(np.asarray(atom.val, atom.aval.dtype)) if hasattr(atom, "val") else env[atom]

    for eqn in jaxpr.eqns:
        with jax.named_scope(str(eqn.source_info.name_stack)):  # where the model's code made it
            results = _equation(eqn, [value_of(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def _paired(value: Any) -> Number:
    return Pair(np.real(value), np.imag(value)) if is_complex(value) else value


def _equation(eqn: Any, values: list[Number]) -> Sequence[Number]:
    name = eqn.primitive.name
    if not _mixes(eqn):
        return _bound(eqn, values)
    if name in _INLINED:
        return _run(eqn.params.get("jaxpr", eqn.params.get("call_jaxpr")), values)
    if name in _CONTROL:
        return _CONTROL[name](eqn.params, values)
    if name in _PARTWISE:
        parts = [_bound(eqn, [v[part] if isinstance(v, Pair) else v for v in values]) for part in (0, 1)]
        return [Pair(*both) for both in zip(*parts)]
    if name not in _RULES:
        raise Refused(f"{name} of complex numbers")
    return [_RULES[name](eqn, *values)]


def _bound(eqn: Any, values: Sequence[Any]) -> list[Any]:
    result = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(result) if eqn.primitive.multiple_results else [result]


# Control flow: a pair is a tree of two arrays to it.


def _scan(params: Any, values: list[Number]) -> list[Number]:
    held, carried = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, first, rows = values[:held], values[held:carried], values[carried:]

    def step(carry: list[Number], row: list[Number]) -> tuple[list[Number], list[Number]]:
        found = _run(params["jaxpr"], [*consts, *carry, *row])
        return found[: len(first)], found[len(first) :]

    length = None if rows else params["length"]  # of rows it may be symbolic
    last, made = lax.scan(step, first, rows, length=length, reverse=params["reverse"])
    return [*last, *made]


def _while(params: Any, values: list[Number]) -> list[Number]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_test, of_body, start = values[:first], values[first:second], values[second:]

    def goes_on(carry: list[Number]) -> jax.Array:
        here = _run(params["cond_jaxpr"], [*of_test, *carry])[0]
        assert not isinstance(here, Pair)  # a bool
        return here

    def step(carry: list[Number]) -> list[Number]:
        """Each example of a batch, which has a condition of its own, stops for itself."""
        here, made = goes_on(carry), _run(params["body_jaxpr"], [*of_body, *carry])

        def kept(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(here.reshape(here.shape + (1,) * (new.ndim - here.ndim)), new, old)

        return [jax.tree.map(kept, new, old) for new, old in zip(made, carry)] if here.ndim else made

    found: list[Number] = lax.while_loop(lambda carry: jnp.any(goes_on(carry)), step, start)
    return found


def _cond(params: Any, values: list[Number]) -> list[Number]:
    branches = [lambda *given, branch=branch: _run(branch, given) for branch in params["branches"]]
    found: list[Number] = lax.switch(values[0], branches, *values[1:])
    return found


_CONTROL: dict[str, Callable[[Any, list[Number]], list[Number]]] = {"scan": _scan, "while": _while, "cond": _cond}


# What computes with complex numbers. A real operand of a product stays one.


def _times(product: Callable[[Any, Any], Any], a: Number, b: Number) -> Pair:
    if isinstance(a, Pair) and isinstance(b, Pair):
        return Pair(product(a.re, b.re) - product(a.im, b.im), product(a.re, b.im) + product(a.im, b.re))
    if isinstance(a, Pair):
        return Pair(product(a.re, b), product(a.im, b))
    return Pair(product(a, b.re), product(a, b.im))


def _divided(a: Pair, b: Pair) -> Pair:
    """By the larger part of the divisor, so that no square overflows."""
    largest = jnp.maximum(jnp.abs(b.re), jnp.abs(b.im))
    divisor = Pair(b.re / largest, b.im / largest)
    top = _times(jnp.multiply, a, Pair(divisor.re, -divisor.im))
    bottom = (divisor.re * divisor.re + divisor.im * divisor.im) * largest
    return Pair(top.re / bottom, top.im / bottom)


def _exp(x: Pair) -> Pair:
    size = jnp.exp(x.re)
    return Pair(size * jnp.cos(x.im), size * jnp.sin(x.im))


def _log(x: Pair) -> Pair:
    return Pair(jnp.log(jnp.hypot(x.re, x.im)), jnp.arctan2(x.im, x.re))


def _sqrt(x: Pair) -> Pair:
    """The root whose real part is not negative: of sqrt((|x| + |re|) / 2) and im / 2 of it, by the sign of re."""
    large = jnp.sqrt((jnp.hypot(x.re, x.im) + jnp.abs(x.re)) / 2)
    small = jnp.where(large == 0, 0.0, jnp.abs(x.im) / (2 * jnp.where(large == 0, 1.0, large)))
    right = x.re >= 0
    return Pair(jnp.where(right, large, small), jnp.copysign(jnp.where(right, small, large), x.im))


def _power(eqn: Any, x: Pair) -> Pair:
    exponent = int(eqn.params["y"])
    one = Pair(jnp.ones_like(x.re), jnp.zeros_like(x.im))
    found = one
    for _ in range(abs(exponent)):
        found = x if found is one else _times(jnp.multiply, found, x)
    return _divided(one, found) if exponent < 0 else found


def _converted(eqn: Any, x: Number) -> Number:
    if not isinstance(x, Pair):
        x = Pair(x, jnp.zeros_like(x))
    dtype = eqn.params["new_dtype"]
    if not jnp.issubdtype(dtype, np.complexfloating):
        return x.re.astype(dtype)
    return Pair(*(part.astype(np.finfo(dtype).dtype) for part in x))


def _product(eqn: Any, a: Number, b: Number) -> Pair:
    """Of tensors: as of numbers, by four products."""
    params = {**eqn.params}
    if params.get("preferred_element_type") is not None:
        params["preferred_element_type"] = np.finfo(params["preferred_element_type"]).dtype
    return _times(lambda x, y: eqn.primitive.bind(x, y, **params), a, b)


_RULES: dict[str, Callable[..., Number]] = {
    "complex": lambda _, re, im: Pair(re, im),
    "real": lambda _, x: x.re,
    "imag": lambda _, x: x.im,
    "conj": lambda _, x: Pair(x.re, -x.im) if isinstance(x, Pair) else Pair(x, jnp.zeros_like(x)),
    "abs": lambda _, x: jnp.hypot(x.re, x.im),
    "mul": lambda _, a, b: _times(jnp.multiply, a, b),
    "div": lambda _, a, b: _divided(a, b),
    "square": lambda _, x: _times(jnp.multiply, x, x),
    "integer_pow": _power,
    "exp": lambda _, x: _exp(x),
    "log": lambda _, x: _log(x),
    "sqrt": lambda _, x: _sqrt(x),
    "eq": lambda _, a, b: (a.re == b.re) & (a.im == b.im),
    "ne": lambda _, a, b: (a.re != b.re) | (a.im != b.im),
    "is_finite": lambda _, x: jnp.isfinite(x.re) & jnp.isfinite(x.im),
    "convert_element_type": _converted,
    "dot_general": _product,
    "conv_general_dilated": _product,
    "fft": lambda eqn, x: _fft(eqn, x),
}


# Fourier transforms.

# x [.., n, .., 1 or 2] -> [.., m, .., 1 or 2]: along `axis`, from the end, of the parts that the last one holds.
transform = Primitive("discrete_fourier")


@transform.def_abstract_eval
def _(x: Any, *, length: Any, inverse: bool, onesided: bool, axis: int) -> Any:
    shape = [*x.shape[:-1], 1 if inverse and onesided else 2]
    shape[axis] = length // 2 + 1 if onesided and not inverse else length
    return jax.core.ShapedArray(tuple(shape), x.dtype)


@transform.def_impl
def _(x: Any, *, length: int, inverse: bool, onesided: bool, axis: int) -> Any:
    """Of constants."""
    kind = ("i" if inverse else "") + ("rfft" if onesided else "fft")
    given = x[..., 0] if x.shape[-1] == 1 else lax.complex(x[..., 0], x[..., 1])
    found = getattr(jnp.fft, kind)(given, length, axis=axis + 1)
    return jnp.stack([found.real, found.imag], -1) if is_complex(found) else found[..., None]


def _fft(eqn: Any, x: Number) -> Number:
    """Along the last axes, one after another; half a spectrum is that of the last one."""
    kind, lengths = int(eqn.params["fft_type"]), tuple(eqn.params["fft_lengths"])
    inverse, onesided = kind in (1, 3), kind in (2, 3)
    axes = list(range(-len(lengths), 0))
    together = jnp.stack(x, -1) if isinstance(x, Pair) else x[..., None]
    for axis in axes if inverse else reversed(axes):
        half = onesided and axis == -1
        together = transform.bind(together, length=lengths[axis], inverse=inverse, onesided=half, axis=axis - 1)
    return together[..., 0] if kind == 3 else Pair(together[..., 0], together[..., 1])
