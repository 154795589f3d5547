"""A jaxpr -> bindings of Relax, one equation after another."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from tvm import relax

from ...errors import UnsupportedModel
from ...params import ParamRecipe, ParamSource, ParamTable
from .._reasons import listed
from ..meaning.builder import Refused, expr_shape
from ..meaning.constant import Constant, numpy_dtype
from ..meaning.sizes import prim
from ._dimensions import Dimensions
from ._primitive import Primitive, dtype_name
from ._registry import CONVERTERS
from ._values import Derived, Opaque, Spread, Value

_FOLDED_BYTES = 1 << 20  # a larger result of constants is left to the run, or to when weights are written
_FEW = 16  # elements
_OF_KEYS = frozenset("slice squeeze reshape expand_dims broadcast_in_dim concatenate gather dynamic_slice".split())
_CONSTANT_BYTES = 4096  # smaller tensors without a name are constants: they fold
_PARAMETER_KINDS = frozenset("float32 float16 float64 bfloat16 int8 uint8".split())
_MOST_EQUATIONS = 200_000  # those of unrolled loops counted each time

# Move elements and change none: of a weight they are recipes or stay visible to lifts.
_MOVEMENT = frozenset("reshape squeeze expand_dims transpose broadcast_in_dim split slice concatenate copy".split())

# Of numbers that repeat they are numbers that repeat, whatever the sizes.
_OF_ELEMENTS = frozenset(
    "add sub mul div max min eq ne lt le gt ge and or not neg exp log sqrt rsqrt select_n convert_element_type".split()
)


class Walker:
    """Walks one program; every variable of a jaxpr becomes a `Value`."""

    def __init__(self, dims: Dimensions) -> None:
        self.dims, self.sizes = dims, dims.sizes
        self.builder = relax.BlockBuilder()
        self.params = ParamTable()
        self.weights: dict[str, relax.Var] = {}  # parameter name -> variable of main
        self.constants: dict[relax.Expr, Constant] = {}  # weights and constants of Relax -> what they hold
        self.inputs: dict[relax.Var, str] = {}  # variable of main -> name of the input
        self.erfc_operands: dict[relax.Expr, relax.Expr] = {}  # variable of erfc(x) -> x
        self.rows: dict[str, int] = {}  # input that selects rows of a table -> the number of rows
        self.primitives: dict[str, int] = defaultdict(int)
        self._refused: dict[str, list[str]] = defaultdict(list)
        # id of a constant -> it, and its expression: kept together, so that the id stays its own
        self._emitted: dict[int, tuple[object, relax.Expr]] = {}
        self._equations = 0

    def emit(self, expr: relax.Expr, name: str) -> relax.Var:
        return self.builder.emit(expr, name)

    def place_of(self, eqn: Any) -> str:
        """Where the model's code made an equation, as jax names it."""
        stack = str(eqn.source_info.name_stack)
        return "/".join(part for part in (stack, eqn.primitive.name) if part)

    # Values as expressions.

    def expr_of(self, value: Value) -> relax.Expr:
        """`value` in its whole shape; a weight becomes a parameter when it is first used."""
        if isinstance(value, Opaque):
            raise Refused(f"an array of {value.array.dtype}, which only jax can compute with")
        if isinstance(value, Spread):
            shape = relax.ShapeExpr([prim(d) for d in value.shape])
            return self.emit(relax.op.broadcast_to(self.expr_of(value.small), shape), "broadcast")
        if not isinstance(value, Constant):
            return value
        kept = self._emitted.get(id(value))
        if kept is None:
            expr = self._parameter(value)
            self.constants[expr] = value
            self._emitted[id(value)] = kept = (value, expr)
        return kept[1]

    def _parameter(self, value: Constant) -> relax.Expr:
        small = not value.name and value.size_bytes <= _CONSTANT_BYTES
        if np.prod(value.shape, dtype=np.int64) <= 1 or value.dtype not in _PARAMETER_KINDS or small:
            return relax.const(np.ascontiguousarray(value.array).reshape(value.shape), value.dtype)
        name = self.name_of(value)
        if name not in self.weights:
            variable = re.sub(r"\W", "_", name)
            self.weights[name] = relax.Var(variable, relax.TensorType(value.shape, value.dtype))
        return self.weights[name]

    def name_of(self, value: Constant) -> str:
        """The name of `value` among the parameters, which it joins."""
        if isinstance(value, Derived) and value.base is not None:
            base = self.name_of(value.base)
            name = f"{base}|{value.recipe}:{','.join(str(v) for v in value.attrs.values()).replace(' ', '')}"
            recipe = ParamRecipe(name, value.recipe, (base,), value.attrs, value.shape, value.dtype)
            return self.params.add_recipe(recipe)
        name = base = value.name or f"constant_{len(self.params.sources)}"
        known = self.params.sources.get(name)
        count = 0
        while known is not None and known.load is not value.load:
            count += 1
            name = f"{base}_{count}"
            known = self.params.sources.get(name)
        if known is None:
            self.params.add_source(name, ParamSource(value.shape, value.dtype, value.load))
        return name

    # Equations.

    def walk(self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value]) -> list[Value | None]:
        """The results of `jaxpr` for `args`.

        What cannot be converted is collected, and what needs it skipped: such results are None.
        """
        env: dict[Any, Value | None] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def value_of(atom: Any) -> Value | None:
            return constant_of(atom.val, atom.aval.dtype) if hasattr(atom, "val") else env[atom]

        for eqn in jaxpr.eqns:
            self._equations += 1
            if self._equations > _MOST_EQUATIONS:
                raise UnsupportedModel(
                    f"expected at most {_MOST_EQUATIONS} equations with loops written out, found more: "
                    "import a part of the model"
                )
            operands = [value_of(atom) for atom in eqn.invars]
            results = self.converted(eqn, operands)
            env.update(zip(eqn.outvars, results, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def converted(self, eqn: Any, operands: Sequence[Value | None]) -> Sequence[Value | None]:
        """The results of one equation; None for what cannot be converted, which is noted."""
        nothing = [None] * len(eqn.outvars)
        values = [v for v in operands if v is not None]
        if len(values) < len(operands):
            return nothing
        name = eqn.primitive.name
        if not name.startswith("random_") and any(_are_keys(v.aval) for v in eqn.outvars) and name in _OF_KEYS:
            name += " of keys"
        self.primitives[name] += 1
        try:
            folded = self._folded(eqn, values)
            if folded is not None:
                return folded
            if name not in CONVERTERS:
                raise Refused("")
            result = CONVERTERS[name](Primitive(self, eqn, values))
            results = list(result) if isinstance(result, list | tuple) else [result]
            return [self._checked(eqn, place, value) for place, value in enumerate(results)]
        except Refused as reason:
            self._refused[name + (f" with {reason}" if str(reason) else "")].append(self.place_of(eqn))
            return nothing

    def _checked(self, eqn: Any, place: int, value: Any) -> Value | None:
        """`value`, which is of the type that jax says."""
        aval = eqn.outvars[place].aval
        if value is None or isinstance(value, Opaque):
            return value
        pairs = _are_keys(aval)
        shape = [*self.dims.shape(aval.shape), *([2] if pairs else [])]
        expected = ["uint32" if pairs else dtype_name(aval.dtype), len(shape)]
        if isinstance(value, Constant):
            found = [value.dtype, len(value.shape)]
        elif isinstance(value, Spread):
            found = [expected[0], len(value.shape)]
        else:
            if not isinstance(value, relax.Var) and isinstance(value, relax.Call):
                value = self.emit(value, self.place_of(eqn))
            found = [str(value.ty.dtype), value.ty.ndim]
            same = isinstance(value.ty.shape, relax.ShapeExpr) and self.sizes.same_shape(expr_shape(value), shape)
            if found == expected and not same:
                value = self.builder.match_cast(value, relax.TensorType([prim(d) for d in shape], expected[0]))
        assert found == expected, f"{eqn.primitive.name}: converted to {found}, jax says {aval}"
        return value

    def refused(self) -> str:
        """All that could not be converted, as a list; empty where all could be."""
        return listed(self._refused)

    # What follows from constants alone.

    def _folded(self, eqn: Any, values: Sequence[Value]) -> Sequence[Value | None] | None:
        """The results of an equation of constants, computed by jax: now, or when the weights are written."""
        given = [v.small if isinstance(v, Spread) else v for v in values]
        if not all(isinstance(v, Constant | Opaque) for v in given) or _has_effects(eqn):
            return None
        if eqn.primitive.name in _OF_ELEMENTS and all(isinstance(v, Constant) and v.shape == () for v in given):
            (small,) = [constant_of(r) for r in _evaluated(eqn, [_array(v) for v in given])]
            shape = tuple(self.dims.shape(eqn.outvars[0].aval.shape))
            return [Spread(small, shape) if shape and isinstance(small, Constant) else small]
        shapes = [d for v in (*eqn.invars, *eqn.outvars) for d in v.aval.shape]
        if not all(isinstance(d, int) for d in shapes) or _mentions_sizes(eqn.params):
            return None
        named = any(isinstance(v, Constant) and v.name for v in given)
        if eqn.primitive.name in _MOVEMENT and (named or any(isinstance(v, Spread) for v in values)):
            return None
        if eqn.primitive.name in ("iota", "broadcast_in_dim") and _spreads(eqn):
            return None
        most = max((_bytes(v.aval) for v in (*eqn.invars, *eqn.outvars)), default=0)
        if most <= _FOLDED_BYTES:
            return [constant_of(r) for r in _evaluated(eqn, [_array(v) for v in values])]
        largest = max((g for g in given if isinstance(g, Constant)), key=lambda g: g.size_bytes, default=None)
        if not named or largest is None or len(eqn.outvars) > 1 or _bytes(eqn.outvars[0].aval) > 4 * largest.size_bytes:
            return None
        aval = eqn.outvars[0].aval
        return [
            Constant(
                tuple(aval.shape),
                dtype_name(aval.dtype),
                lambda: np.asarray(_evaluated(eqn, [_array(v) for v in values])[0]),
                f"{largest.name}.{eqn.primitive.name}",
            )
        ]


def _are_keys(aval: Any) -> bool:
    """Whether they are keys of random numbers, each a pair of integers."""
    return hasattr(aval, "dtype") and jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _spreads(eqn: Any) -> bool:
    """Whether many elements come of few, as kernels read them without storing them."""
    shape = eqn.outvars[0].aval.shape
    return len(shape) > 1 or eqn.primitive.name == "broadcast_in_dim" and math.prod(shape) > _FEW


def constant_of(array: Any, dtype: Any = None) -> Value:
    """A captured array of jax, or a literal of `dtype`."""
    if hasattr(array, "dtype") and jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return Opaque(array)
    held = np.asarray(array, dtype)
    return Opaque(array) if held.dtype == jax.dtypes.float0 else Constant.of(held)


def _array(value: Value) -> Any:
    if isinstance(value, Opaque):
        return value.array
    if isinstance(value, Spread):
        assert isinstance(value.small, Constant)
        return np.broadcast_to(value.small.load(), value.shape)
    assert isinstance(value, Constant)
    return np.asarray(value.load(), dtype=numpy_dtype(value.dtype))


def _evaluated(eqn: Any, arrays: Sequence[Any]) -> list[Any]:
    result = eqn.primitive.bind(*map(jax.numpy.asarray, arrays), **eqn.params)
    return list(result) if eqn.primitive.multiple_results else [result]


def _bytes(aval: Any) -> int:
    return int(np.prod(aval.shape, dtype=np.int64)) * getattr(aval.dtype, "itemsize", 8)


def _has_effects(eqn: Any) -> bool:
    return bool(eqn.effects)


def _mentions_sizes(params: Any) -> bool:
    """Whether a parameter holds a symbolic size: jax cannot compute with one."""
    if isinstance(params, dict):
        return any(_mentions_sizes(v) for v in params.values())
    if isinstance(params, tuple | list):
        return any(_mentions_sizes(v) for v in params)
    return jax.export.is_symbolic_dim(params) or hasattr(params, "eqns") or hasattr(params, "jaxpr")
