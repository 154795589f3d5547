"""Random numbers: a counter-based generator, so that a model draws the same numbers on any host and any threads.

State
    random_state int64 [2]: the seed, and how many calls went before. It is an input of the model, and an output with
    one more call: state, which the executor keeps (`runtime.state`). A model that draws nothing has none.
Computation
    element i of the place p in the model, in call c by the seed s = Philox4x32-10(counter (i, p, c), key s): four
    words of 32 bits. Words and uniform numbers are equal on every host; others go through a logarithm or a cosine,
    whose last digit may differ.
References
    Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011); Box and Muller (1958) for normal numbers;
    Efraimidis and Spirakis (2006) for a choice without replacement
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tvm
from tvm import ir, relax, te, tirx

from ...artifact import RANDOM_STATE
from ...errors import UnsupportedModel
from ...imported import ImportedModel, InputSpec
from .builder import Builder, expr_dtype, expr_shape
from .constant import numpy_dtype
from .sizes import Dim, prim

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)  # of the two words of the key, from round to round
_ROUNDS = 10
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_DRAWS = "halo.draws"  # attribute of a kernel that draws
_OPAQUE = 8  # its kind for fusion: it is computed once, whoever reads it

Words = Sequence[ir.Expr]


class Draws:
    """What one model draws: the variable of its state, and how many places draw."""

    def __init__(self) -> None:
        self.state: relax.Var | None = None
        self.places = 0

    def place(self, seed: int | None) -> tuple[relax.Expr, int]:
        """The state to draw by at one more place, and its number; with a `seed` all calls draw the same there."""
        self.places += 1
        if seed is not None:
            return relax.const(np.array([seed, 0], "int64"), "int64"), self.places
        if self.state is None:
            self.state = relax.Var(RANDOM_STATE, relax.TensorType([2], "int64"))
        return self.state, self.places

    @property
    def inputs(self) -> list[relax.Var]:
        """The state, if there is one."""
        return [] if self.state is None else [self.state]

    def outputs(self, emit: Callable[[relax.Expr], relax.Expr]) -> list[relax.Expr]:
        """The state behind a call, if there is one."""
        step = relax.const(np.array([0, 1], "int64"), "int64")
        return [emit(relax.op.add(state, step)) for state in self.inputs]


def uniform(b: Builder, shape: Sequence[Dim], dtype: str, seed: int | None = None) -> relax.Expr:
    """Numbers in [0, 1), all of `dtype` that are multiples of its precision."""
    digits = _DIGITS[dtype]

    def value(words: Words) -> ir.Expr:
        if dtype == "float64":
            return _unit(words[0], words[1])
        whole = (words[0] >> _u32(32 - digits)).astype("int32").astype("float32")
        return (whole * tirx.const(2.0**-digits, "float32")).astype(dtype)

    return _drawn(b, shape, value, "uniform", seed)


def normal(b: Builder, shape: Sequence[Dim], dtype: str, seed: int | None = None) -> relax.Expr:
    """Numbers of mean 0 and variance 1."""

    def value(words: Words) -> ir.Expr:
        if dtype == "float64":
            wide, turn = "float64", _unit(words[2], words[3])
        else:
            wide, turn = "float32", (words[1] >> _u32(8)).astype("int32").astype("float32") * _f32(2.0**-24)
        radius = te.sqrt(_minus_log(words, wide) * tirx.const(2.0, wide))
        return (radius * te.cos(turn * tirx.const(2 * math.pi, wide))).astype(dtype)

    return _drawn(b, shape, value, "normal", seed)


def exponential(b: Builder, shape: Sequence[Dim], dtype: str, seed: int | None = None) -> relax.Expr:
    """Numbers above 0 of mean 1."""
    wide = "float64" if dtype == "float64" else "float32"

    def value(words: Words) -> ir.Expr:
        return te.max(_minus_log(words, wide), tirx.const(2.0**-32, wide)).astype(dtype)

    return _drawn(b, shape, value, "exponential", seed)


def moved(b: Builder, drawn: relax.Expr, scale: float, start: float) -> relax.Expr:
    """`drawn` * `scale` + `start`."""
    dtype = expr_dtype(drawn)
    if scale != 1:
        drawn = b.emit(relax.op.multiply(drawn, _constant(scale, dtype)))
    return b.emit(relax.op.add(drawn, _constant(start, dtype))) if start != 0 else drawn


def integers(b: Builder, low: int, high: int, shape: Sequence[Dim], dtype: str) -> relax.Expr:
    """Integers from `low` to `high` - 1."""
    count = high - low
    b.refuse_unless(0 < count < 1 << 63, f"expected integers between two bounds, found {low} and {high}")

    def value(words: Words) -> ir.Expr:
        span = tirx.const(count, "uint64")
        if count <= 1 << 32:
            chosen = (words[0].astype("uint64") * span) >> _u64(32)
        else:
            chosen = tirx.Mod((words[0].astype("uint64") << _u64(32)) | words[1].astype("uint64"), span)
        return (chosen.astype("int64") + tirx.const(low, "int64")).astype(dtype)

    return _drawn(b, shape, value, "integers", None)


def bernoulli(b: Builder, p: relax.Expr, seed: int | None = None) -> relax.Expr:
    """True with the probability `p`, element by element."""
    wide = "float64" if expr_dtype(p) == "float64" else "float32"
    return b.emit(relax.op.less(uniform(b, expr_shape(p), wide, seed), b.cast(p, wide)))


def kept(b: Builder, x: relax.Expr, ratio: float, seed: int | None = None) -> tuple[relax.Expr, relax.Expr]:
    """`x` with the share `ratio` of its elements 0 and the others larger by as much, and which are kept."""
    dtype, shape = expr_dtype(x), expr_shape(x)
    mask = b.emit(relax.op.greater_equal(uniform(b, shape, "float32", seed), relax.const(ratio, "float32")))
    scaled = b.emit(relax.op.multiply(x, _constant(1 / (1 - ratio) if ratio < 1 else 0.0, dtype)))
    return b.emit(relax.op.where(mask, scaled, _constant(0, dtype))), mask


def chosen(b: Builder, weights: relax.Expr, count: int, again: bool, seed: int | None = None) -> relax.Expr:
    """int64 [..., count]: places along the last axis, each with a chance in proportion to its weight.

    `again`: a place may be chosen more than once.
    """
    *lead, places = expr_shape(weights)
    if not again:  # the places whose exponential waiting times, weight by weight, end first
        noise = exponential(b, [*lead, places], "float32", seed)
        rates = b.emit(relax.op.divide(b.cast(weights, "float32"), noise))
        if count == 1:
            return b.emit(relax.op.argmax(rates, -1, keepdims=True))
        return b.emit(relax.op.topk(rates, count, -1, "indices", largest=True, dtype="int64"))
    sums = b.emit(relax.op.cumsum(b.cast(weights, "float64"), -1))
    points = uniform(b, [*lead, count], "float64", seed)

    def first_beyond(sums: te.Tensor, points: te.Tensor) -> te.Tensor:
        last = sums.shape[-1] - 1
        k = te.reduce_axis((0, sums.shape[-1]), "k")

        def below(*index: tirx.Var) -> ir.Expr:
            row = index[:-1]
            return te.sum((sums[(*row, k)] <= points[index] * sums[(*row, last)]).astype("int64"), axis=k)

        counted = te.compute(points.shape, below, name="below")
        return te.compute(points.shape, lambda *i: te.min(counted[i], last), name="chosen")

    return b.te(first_beyond, sums, points, name="chosen")


def drawing(model: ImportedModel, draws: Draws) -> ImportedModel:
    """`model`, whose `main` takes and gives the state of `draws`, with all that it has to say about that.

    `UnsupportedModel` where another input or output has the state's name.
    """
    taken = RANDOM_STATE in (*(spec.name for spec in model.inputs), *model.outputs)
    if draws.state is not None and taken:
        raise UnsupportedModel(
            f"expected {RANDOM_STATE} to be free for the state of the random numbers, found an input or output of "
            "that name: rename it"
        )
    state = (InputSpec(RANDOM_STATE, (2,), "int64", default="zeros"),) if draws.state is not None else ()
    outputs = (*model.outputs, *(spec.name for spec in state))
    random = _Drawn(model.mod).outputs("main") if draws.places else [False] * len(outputs)
    return replace(
        model,
        inputs=(*model.inputs, *state),
        outputs=outputs,
        drawn=tuple(name for name, by_chance in zip(outputs, random, strict=True) if by_chance),
    )


class _Drawn:
    """Which results of the functions of a module depend on kernels that draw."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._draws: dict[str, bool] = {}

    def outputs(self, name: str) -> list[bool]:
        body = self._mod[name].body
        random: set[relax.Var] = set()
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if self._has_draw(value) or not random.isdisjoint(relax.analysis.all_vars(value)):
                    random.add(binding.var)
        result = body.body
        bound = [b.value for block in body.blocks for b in block.bindings if b.var == result]
        if bound and isinstance(bound[0], relax.Tuple):
            result = bound[0]
        fields = result.fields if isinstance(result, relax.Tuple) else [result]
        return [not random.isdisjoint(relax.analysis.all_vars(field)) for field in fields]

    def _has_draw(self, expr: relax.Expr) -> bool:
        """Whether anything that `expr` calls draws."""
        called: list[tvm.ir.GlobalVar] = []
        relax.analysis.post_order_visit(
            expr, lambda node: called.append(node) if isinstance(node, tvm.ir.GlobalVar) else None
        )
        return any(self._function_draws(gvar.name_hint) for gvar in called)

    def _function_draws(self, name: str) -> bool:
        if name not in self._draws:
            self._draws[name] = False  # while it is looked at: a function may call itself
            function = self._mod[name]
            if isinstance(function, tirx.PrimFunc):
                self._draws[name] = bool(function.attrs and function.attrs.get(_DRAWS))
            else:
                self._draws[name] = self._has_draw(function.body)
        return self._draws[name]


def _drawn(
    b: Builder, shape: Sequence[Dim], value: Callable[[Words], ir.Expr], name: str, seed: int | None
) -> relax.Expr:
    state, place = b.draws.place(seed)

    def compute(state: te.Tensor, dims: Sequence[Dim]) -> te.Tensor:
        def element(*index: tirx.Var) -> ir.Expr:
            flat: ir.Expr = tirx.const(0, "int64")
            for i, extent in zip(index, dims):
                flat = flat * prim(extent) + i
            low, high = _halves(flat)
            words, bound = _philox((low, high << _u32(16) | _u32(place), *_halves(state[1])), _halves(state[0]))
            return bound(value(words))

        return te.compute([prim(d) for d in dims], element, name=name)

    return b.te(compute, state, list(shape), name=f"draw_{name}", primfunc_attrs={_DRAWS: True, "op_pattern": _OPAQUE})


def _philox(counter: Words, key: Words) -> tuple[Words, Callable[[ir.Expr], ir.Expr]]:
    """Four words, and what puts the products that they are made of around an expression of them."""
    bound: list[tuple[tirx.Var, ir.Expr]] = []

    def product(word: ir.Expr, multiplier: int) -> tuple[ir.Expr, ir.Expr]:
        var = tirx.Var(f"product_{len(bound)}", "uint64")
        bound.append((var, word.astype("uint64") * _u64(multiplier)))
        low = var & _u64(0xFFFFFFFF)  # TVM casts no constant to a type that is too small for it
        return (var >> _u64(32)).astype("uint32"), low.astype("uint32")

    a, b, c, d = counter
    for i in range(_ROUNDS):
        first, second = (word + _u32(step * i & 0xFFFFFFFF) for word, step in zip(key, _STEPS))
        (high_a, low_a), (high_c, low_c) = product(a, _MULTIPLIERS[0]), product(c, _MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a

    def around(expr: ir.Expr) -> ir.Expr:
        for var, value in reversed(bound):
            expr = tirx.Let(var, value, expr)
        return expr

    return (a, b, c, d), around


def _halves(number: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The low and the high word of an int64."""
    # TVM makes an index 32 bits wide where it can, which a cast stays above and a shift by 32 does not.
    return number.astype("uint32"), (number.astype("uint64") >> _u64(32)).astype("uint32")


def _unit(high: ir.Expr, low: ir.Expr) -> ir.Expr:
    """A float64 in [0, 1)."""
    whole = ((high.astype("uint64") << _u64(32)) | low.astype("uint64")) >> _u64(11)
    return whole.astype("int64").astype("float64") * tirx.const(2.0**-53, "float64")


def _minus_log(words: Words, dtype: str) -> ir.Expr:
    """-log(u) for u in (0, 1]."""
    if dtype == "float64":
        return -te.log(tirx.const(1.0, "float64") - _unit(words[0], words[1]))
    return -te.log((words[0] >> _u32(1)).astype("int32").astype("float32") * _f32(2.0**-31) + _f32(2.0**-32))


def _constant(value: float, dtype: str) -> relax.Expr:
    return relax.const(np.asarray(value).astype(numpy_dtype(dtype)), dtype)


def _u32(value: int) -> ir.Expr:
    return tirx.const(value, "uint32")


def _u64(value: int) -> ir.Expr:
    return tirx.const(value, "uint64")


def _f32(value: float) -> ir.Expr:
    return tirx.const(value, "float32")
