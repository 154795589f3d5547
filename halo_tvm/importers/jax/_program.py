"""A function of JAX, its weights and the types of its inputs -> `ImportedModel`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export, tree_util
from tvm import relax

from ...array_files import one_reason
from ...artifact import UNBOUNDED
from ...dimensions import text_of
from ...errors import UnsupportedModel, UsageError
from ...imported import ImportedModel, InputSpec
from ..meaning.builder import Refused
from ..meaning.constant import Constant
from ..meaning.sizes import prim
from . import families  # noqa: F401  (importing them registers the converters)
from ._complex import has_complex, is_complex, without_complex
from ._dimensions import Dimensions
from ._primitive import dtype_name
from ._values import Opaque, Value
from ._walk import Walker, constant_of
from .models import Door, opened

_PLANNED = 1024  # the largest size of a dimension that nobody bounded, in plans


def import_function(
    function: Callable[..., object] | Door,
    weights: object = None,
    *specs: object,
    name: str | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> ImportedModel:
    """Trace `function(weights, *inputs)` and import what it computes; without weights give None: `function(*inputs)`.

    `function` may be a model of Flax, Equinox or Keras, or a `Door` to one (see `_models`).

    Each of `specs` is an example array, a `jax.ShapeDtypeStruct`, or a pair (shape, dtype) whose shape may be text
    with names in it, such as ("b, s", "int32"); or a dict, list or tuple of these. `ranges` bounds the names in texts,
    both ends included; sizes made by `jax.export.symbolic_shape` bring constraints of their own.
    Raises `UnsupportedModel` with all primitives that cannot be converted, `UsageError`.
    """
    name = name or getattr(function, "__name__", None) or getattr(function, "name", None) or type(function).__name__
    name, signature = str(name).strip("<>"), function.function if isinstance(function, Door) else function
    door = opened(function, weights)
    function, weights, specs = door.function, door.weights, specs or door.specs
    leaves, tree = tree_util.tree_flatten_with_path(weights)
    held = [(_path(path) or "weights", leaf) for path, leaf in leaves]
    traced = [place for place, (_, leaf) in enumerate(held) if _is_array(leaf)]
    parts = [part for place in traced for part in _parts(*held[place])]
    structs = _structs(specs, ranges or {})
    flat_inputs, input_tree = tree_util.tree_flatten(structs)

    def flat(arrays: Sequence[object], inputs: Sequence[object]) -> object:
        values = [leaf for _, leaf in held]
        given = iter(arrays)
        for place in traced:
            values[place] = jax.lax.complex(next(given), next(given)) if is_complex(held[place][1]) else next(given)
        args = tree_util.tree_unflatten(input_tree, inputs)
        return function(*args) if weights is None else function(tree_util.tree_unflatten(tree, values), *args)

    types = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for _, leaf in parts]
    closed, result = _traced(flat, types, flat_inputs)
    names = list(door.names) or _input_names(signature, structs, weights is not None and signature is function)
    dims = Dimensions([spec.shape for spec in flat_inputs])
    walker = Walker(dims)
    arguments: list[Value] = [_weight(*part) for part in parts]
    variables: dict[str, relax.Var] = {}
    for input_name, spec in zip(names, flat_inputs, strict=True):
        variables[input_name] = _input(walker, input_name, spec)
        arguments.append(variables[input_name])
    constants = [_captured(place, value) for place, value in enumerate(closed.consts)]
    outputs = _output_names(result)
    mod = _module(walker, closed.jaxpr, constants, arguments, variables, outputs)
    return ImportedModel(
        name=name,
        mod=mod,
        params=walker.params,
        inputs=tuple(_input_spec(walker, *item) for item in variables.items()),
        outputs=tuple(outputs),
        ranges={key: _planned(bounds) for key, bounds in dims.ranges.items()},
        typical={key: _typical(key, *_planned(bounds)) for key, bounds in dims.ranges.items()},
        source={"kind": "jax", "name": name},
        report={
            "importer": "jax",
            "primitives": dict(sorted(walker.primitives.items())),
            "parameters": len(walker.params.sources),
            "assumed_ranges": {k: list(_planned(b)) for k, b in dims.ranges.items() if b[1] >= UNBOUNDED},
        },
        engine=_engine(flat, [leaf for _, leaf in parts], list(variables), list(outputs)),
    )


def _traced(flat: Callable[..., object], weights: Sequence[object], inputs: Sequence[object]) -> tuple[Any, object]:
    try:
        closed, result = jax.make_jaxpr(flat, return_shape=True)(list(weights), list(inputs))
        return (_real(closed, result) if has_complex(closed) else closed), result
    except (UnsupportedModel, UsageError):
        raise
    except Exception as reason:  # jax raises whatever the function's own code does
        raise UnsupportedModel(
            f"expected a function that jax can trace for these inputs, found {type(reason).__name__} "
            f"({one_reason(reason)}): see jax's advice, bound or fix the symbolic sizes it names"
        ) from reason


def _real(closed: Any, result: object) -> Any:
    """`closed` without complex numbers."""
    ends = [(spec.dtype, "input") for spec in closed.in_avals]
    ends += [(spec.dtype, "result") for spec in tree_util.tree_leaves(result)]
    found = next(
        (
            f"{dtype} of an {end}".replace("an r", "a r")
            for dtype, end in ends
            if jax.numpy.issubdtype(dtype, np.complexfloating)
        ),
        None,
    )
    try:
        if found is None:
            return without_complex(closed)
    except Refused as reason:
        found = str(reason)
    raise UnsupportedModel(
        f"expected complex numbers between real inputs and results, as pairs, found {found}: write it with real numbers"
    )


def _module(
    walker: Walker,
    jaxpr: Any,
    constants: Sequence[Value],
    arguments: Sequence[Value],
    variables: Mapping[str, relax.Var],
    outputs: Sequence[str],
) -> Any:
    """An IRModule whose `main` takes the inputs, then the weights that it reads."""
    builder = walker.builder
    with builder.function("main"):
        with builder.dataflow():
            results = walker.walk(jaxpr, constants, arguments)
            # What nothing needs is no obstacle: Keras draws random numbers that only training uses.
            refused = walker.refused() if any(v is None for v in results) else ""
            whole = [relax.const(0.0) if v is None or refused else walker.expr_of(v) for v in results]
            found = [builder.emit_output(builder.emit(value)) for value in whole]
        builder.emit_func_output(
            found[0] if len(outputs) == 1 else relax.Tuple(found),
            params=[*variables.values(), *walker.weights.values()],
        )
    if refused:
        raise UnsupportedModel(
            f"expected primitives that can be converted, found {refused}: write the function without them"
        )
    mod = builder.get()
    main = relax.analysis.remove_all_unused(mod["main"])
    used = set(relax.analysis.all_vars(main.body))
    kept = {key: var for key, var in walker.weights.items() if var in used}
    needed = {source for key in kept for source in walker.params.origin(key)}
    for source in set(walker.params.sources) - needed:
        del walker.params.sources[source]
    main = relax.Function([*variables.values(), *kept.values()], main.body, main.ret_ty, main.is_pure)
    attrs = {"num_input": len(variables), "halo.params": list(kept), "global_symbol": "main"}
    mod["main"] = main.with_attrs(attrs)
    return mod


# Weights.


def _is_array(leaf: object) -> bool:
    """Whether a leaf of the weights is a tensor; keys of random numbers, functions and Python values are fixed."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and hasattr(leaf, "shape") and not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


def _parts(name: str, leaf: Any) -> list[tuple[str, Any]]:
    """A weight by its name; of a complex one both parts."""
    return [(f"{name}.real", leaf.real), (f"{name}.imag", leaf.imag)] if is_complex(leaf) else [(name, leaf)]


def _weight(name: str, leaf: Any) -> Value:
    shape, dtype = tuple(int(d) for d in leaf.shape), _supported(name, leaf.dtype)
    return Constant(shape, dtype, lambda: np.asarray(leaf), name)


def _captured(place: int, value: Any) -> Value:
    """An array that the function closes over; a large one is a weight."""
    held = constant_of(value)
    if isinstance(held, Opaque) or not isinstance(held, Constant) or held.size_bytes <= 4096:
        return held
    return Constant(held.shape, held.dtype, held.load, f"captured_{place}")


def _supported(name: str, dtype: object) -> str:
    try:
        return dtype_name(dtype)
    except Refused as reason:
        raise UnsupportedModel(f"expected tensors of numbers, found {reason} for {name}: convert it") from reason


# Inputs.


def _structs(specs: Sequence[object], ranges: Mapping[str, tuple[int, int]]) -> tuple[object, ...]:
    constraints = [f"{name} {sign} {bound}" for name, ends in ranges.items() for sign, bound in zip((">=", "<="), ends)]
    scope = export.SymbolicScope(constraints)

    def is_leaf(spec: object) -> bool:
        return _is_pair(spec) or (hasattr(spec, "shape") and hasattr(spec, "dtype"))

    def struct(spec: Any) -> object:
        if _is_pair(spec):
            shape, dtype = spec
            text = shape if isinstance(shape, str) else ", ".join(map(str, shape))
            return jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope) if text else (), np.dtype(dtype))
        if not (hasattr(spec, "shape") and hasattr(spec, "dtype")):
            spec = np.asarray(spec)
        return jax.ShapeDtypeStruct(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype))

    try:
        return tuple(tree_util.tree_map(struct, spec, is_leaf=is_leaf) for spec in specs)
    except (ValueError, TypeError) as reason:
        raise UsageError(
            f"expected an array, a jax.ShapeDtypeStruct or a pair such as ('b, 128', 'int32') for every input, "
            f"found {specs!r:.200}: {one_reason(reason)}"
        ) from reason


def _is_pair(spec: object) -> bool:
    """(shape, dtype), the shape as text or a tuple of sizes."""
    return isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], str | tuple | list) and _is_dtype(spec[1])


def _is_dtype(value: object) -> bool:
    if not isinstance(value, str | type | np.dtype):
        return False
    try:
        np.dtype(value)
    except TypeError:
        return False
    return True


def _input_names(function: Callable[..., object], structs: tuple[object, ...], has_weights: bool) -> list[str]:
    """Names of the function's parameters; inside dicts their keys alone, where no two are equal."""
    call = function if inspect.isroutine(function) else type(function).__call__
    try:
        parameters = list(inspect.signature(function if has_weights else call).parameters.values())
    except (ValueError, TypeError):
        parameters = []
    parameters = parameters[int(has_weights or call is not function) :]
    heads = []
    for place in range(len(structs)):
        several = place >= len(parameters) or parameters[place].kind is inspect.Parameter.VAR_POSITIONAL
        heads.append(f"input_{place}" if several else parameters[place].name)
    paths = [
        (heads[place], _path(path))
        for place, spec in enumerate(structs)
        for path, _ in tree_util.tree_flatten_with_path(spec)[0]
    ]
    short = [path or head for head, path in paths]
    clear = len(set(short)) == len(short) and all(not s[:1].isdigit() for s in short)
    return short if clear else [f"{head}.{path}" if path else head for head, path in paths]


def _input(walker: Walker, name: str, spec: Any) -> relax.Var:
    dtype = _supported(name, spec.dtype)
    ty = relax.TensorType([prim(d) for d in walker.dims.shape(spec.shape)], dtype)
    var = relax.Var("".join(c if c.isalnum() else "_" for c in name), ty)
    walker.inputs[var] = name
    return var


def _input_spec(walker: Walker, name: str, var: relax.Var) -> InputSpec:
    rows = walker.rows.get(name)
    shape = tuple(map(text_of, var.ty.shape.values))
    return InputSpec(name, shape, str(var.ty.dtype), None if rows is None else (0, rows - 1))


def _planned(bounds: tuple[int, int]) -> tuple[int, int]:
    low, high = bounds
    return low, high if high < UNBOUNDED else max(_PLANNED, low)


def _typical(name: str, low: int, high: int) -> int:
    return min(max(1 if name in ("b", "n", "batch") else 128, low), high)


# Outputs.


def _output_names(result: object) -> list[str]:
    """Keys of dicts, positions in tuples."""
    paths = [_path(path) for path, _ in tree_util.tree_flatten_with_path(result)[0]]
    if not paths:
        raise UnsupportedModel("expected a function that returns arrays, found none in its result: return one")
    return [f"output_{path}" if path[:1].isdigit() else path or "output" for path in paths]


def _path(path: Sequence[Any]) -> str:
    """`layers.0.kernel` for a leaf inside dicts, lists and objects."""
    keys = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path]
    return ".".join(str(key) for key in keys)


def _engine(
    flat: Callable[..., object], weights: Sequence[object], inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """jax itself, for the reference."""
    compiled = jax.jit(flat)

    def run(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        result = compiled(list(weights), [values[name] for name in inputs])
        return {name: np.asarray(array) for name, array in zip(outputs, tree_util.tree_leaves(result), strict=True)}

    return run
