"""reference.npz: seeded inputs and what the source computes for them.

A built-in definition, with random or real weights, is evaluated by NumPy in float64; a model file by
the engine of its format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import MappingProxyType

import numpy as np

from .artifact import last_position, names_in, sizes_at, sizes_that_hold
from .errors import HaloError, UnsupportedModel, UsageError
from .imported import ImportedModel, InputSpec
from .interpreter import evaluate_all
from .other_scales import BOTH, MOST, STEPS, cases_at_other_scales, is_float, largest_of, moved
from .runtime.tensors import as_complex

# Sizes per dimension and case: small, so that validating is quick; odd, so that tails are run.
_BATCHES = (1, 2)
_LEADING = (3, 2)  # of any other dimension that is usually 1
# Of all others. A model may need more (an image, a second of sound), or multiples of 32: the next are tried where its
# engine refuses.
_OTHERS = ((16, 7), (64, 33), (64, 96), (136, 97), (320, 224), (1600, 1280), (20000, 16500))
_Sizes = list[dict[str, int]]  # of the dimensions, for each case
# Of integers without declared values, likewise: wide enough to tell items apart, or as in a mask.
_INTEGERS = ((0, 99), (0, 1))


def cases_of(
    model: ImportedModel,
    seed: int,
    examples: Mapping[str, np.ndarray] | None = None,
    precision: str | None = None,
) -> dict[str, np.ndarray]:
    """Arrays by the key of `runtime.validation`: case{i}.input.{name}, case{i}.output.{name}, case{i}.error.{name}.

    `examples` are inputs the user gave, which become the first case. `precision` is of the artifact that is compared:
    with it, cases at other scales follow. Raises what the engine raises when it accepts none of the sizes that are
    tried.
    """
    with ExitStack() as sessions:
        for engine in (model.engine, model.other_engine):
            if isinstance(engine, AbstractContextManager):
                sessions.enter_context(engine)
        arrays, drawn = _at_one(model, seed, examples)
        if precision is not None and drawn:
            arrays.update(_at_other_scales(model, seed, arrays, drawn, precision))
    return arrays


def _at_one(
    model: ImportedModel, seed: int, examples: Mapping[str, np.ndarray] | None
) -> tuple[dict[str, np.ndarray], range]:
    """The cases of the user and those at sigma 1, and which are the latter."""
    given = [_named(model, examples)] if examples else []
    if not model.engine:
        cases = [*given, *_random_cases(model, seed, _sizes(model, _OTHERS[0]), _INTEGERS[-1])]
        return _arrays(cases, evaluate_all(model, cases)), range(len(given), len(cases))
    refused: HaloError | None = None
    dull: tuple[list[dict[str, np.ndarray]], list[Mapping[str, np.ndarray]]] | None = None
    for sizes in _ladder(model):
        for integers in _INTEGERS:
            cases = [*given, *_random_cases(model, seed, sizes, integers)]
            try:
                results = [model.source_outputs(case) for case in cases]
            except UnsupportedModel as reason:
                refused = refused or reason
                continue
            if all(map(_is_telling, results)):
                return _of_engine(model, cases, results), range(len(given), len(cases))
            dull = dull or (cases, results)
    if dull:
        return _of_engine(model, *dull), range(0)
    if given:
        return _of_engine(model, given, [model.source_outputs(case) for case in given]), range(0)
    raise refused


def _at_other_scales(
    model: ImportedModel, seed: int, arrays: Mapping[str, np.ndarray], drawn: range, precision: str
) -> dict[str, np.ndarray]:
    """Cases like the smallest of those `drawn`, at other scales, and what all may be off where the source jumps."""

    def case(i: int, kind: str) -> dict[str, np.ndarray]:
        prefix = f"case{i}.{kind}."
        return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}

    def source(cases: Sequence[Mapping[str, np.ndarray]]) -> list[Mapping[str, np.ndarray] | None]:
        if not model.engine:
            return list(evaluate_all(model, cases))
        return [_taken(model, inputs) for inputs in cases]

    base = min(drawn, key=lambda i: sum(value.size for value in case(i, "input").values()))
    found: dict[str, np.ndarray] = {}
    others, share = cases_at_other_scales(model, case(base, "input"), case(base, "output"), source, precision, seed)
    for i in drawn if share else ():
        for name, value in case(i, "output").items():
            if is_float(value.dtype):
                key = f"case{i}.error.{name}"
                found[key] = np.float64(max(share * largest_of(value), arrays.get(key, 0.0)))
    for i, (inputs, outputs, errors) in enumerate(others, drawn.stop):
        found.update({f"case{i}.input.{name}": value for name, value in inputs.items()})
        found.update({f"case{i}.output.{name}": value for name, value in outputs.items()})
        found.update({f"case{i}.error.{name}": np.float64(error) for name, error in errors.items()})
    return found


def _taken(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    try:
        return model.source_outputs(inputs)
    except UnsupportedModel:
        return None


def typical_of(
    model: ImportedModel, cases: Mapping[str, np.ndarray], examples: Mapping[str, np.ndarray] | None = None
) -> dict[str, int]:
    """The sizes that benchmarks and profiles of `model` take: those of the user's examples, else typical ones.

    Where the first of `cases` is larger than a typical size, smaller ones were refused: there, that of the case. Nor
    is every image one that a net takes whose file leaves its height open, as readers of lines do: the source is asked.
    """
    found = _open_sizes(model, {spec.name: cases[f"case0.input.{spec.name}"] for spec in model.inputs})
    if examples:
        return {**model.typical, **found}
    sizes = {dim: max(n, found.get(dim, n)) if n > 1 else n for dim, n in model.typical.items()}
    if not model.engine or not _is_image_of_open_sizes(model):
        return sizes
    others = [{**sizes, dim: found[dim]} for dim in sizes if found.get(dim, 0) not in (0, sizes[dim])]
    with model.engine if isinstance(model.engine, AbstractContextManager) else nullcontext():
        for tried in (sizes, *others):
            if _taken(model, random_inputs(model.inputs, tried, 0, samples=model.samples)) is not None:
                return tried
    return {**sizes, **found}


def sizes_of(model: ImportedModel, examples: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes that open dimensions have in the user's example inputs."""
    return _open_sizes(model, _named(model, examples))


def _open_sizes(model: ImportedModel, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes of open dimensions in the inputs that `arrays` has, by name."""
    shapes = [(spec.shape, np.shape(arrays[spec.name])) for spec in model.inputs if spec.name in arrays]
    return {dim: n for names, sizes in shapes for dim, n in zip(names, sizes) if isinstance(dim, str)}


def _is_telling(outputs: Mapping[str, np.ndarray]) -> bool:
    """Whether outputs can show an error: a model that was fed too little gives nothing, or NaN."""
    return all(v.size and (v.dtype.kind != "f" or np.isfinite(v).any()) for v in outputs.values())


def _named(model: ImportedModel, examples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Examples by input name: by their own names, or by position where those are others."""
    required = [spec for spec in model.inputs if spec.default is None]
    if not {spec.name for spec in required} <= set(examples):
        order = [spec.name for spec in (model.inputs if len(model.inputs) == len(examples) else required)]
        if len(order) != len(examples):
            raise UsageError(
                f"expected example inputs {', '.join(order)}, found {', '.join(examples)}: name them so in --inputs"
            )
        examples = dict(zip(order, examples.values()))
    # What may be left out (state, masks) has the sizes that the others give.
    sizes = _open_sizes(model, examples)
    return {s.name: examples[s.name] if s.name in examples else _default(s, sizes) for s in model.inputs}


def _default(spec: InputSpec, sizes: Mapping[str, int]) -> np.ndarray:
    names = [name for dim in spec.shape for name in names_in(dim)]
    shape = sizes_at(spec.shape, {**dict.fromkeys(names, 1), **sizes})
    return (np.ones if spec.default == "ones" else np.zeros)(shape, spec.dtype)


def _ladder(model: ImportedModel) -> list[_Sizes]:
    """What to try, each once: one rung without symbolic dimensions.

    Images start where windows still fit into them, and end before the lengths of sound, whose squares fill the memory.
    """
    if not _has_symbols(model):
        return [_sizes(model, _OTHERS[0])]
    rungs = _OTHERS[1:-1] if _is_image_of_open_sizes(model) else _OTHERS
    # Not every size may be: where none of these is taken, fewer of them, and then batches of one row.
    found = [_sizes(model, others) for others in rungs]
    found += [_sizes(model, others, two=False) for others in rungs]
    found += [_sizes(model, others, two=False, single=True) for others in rungs]
    return [sizes for i, sizes in enumerate(found) if sizes not in found[:i]]


def _is_image_of_open_sizes(model: ImportedModel) -> bool:
    return any(len(s.shape) == 4 and sum(isinstance(d, str) for d in s.shape[1:]) >= 2 for s in model.inputs)


def _has_symbols(model: ImportedModel) -> bool:
    return any(isinstance(d, str) for spec in model.inputs for d in spec.shape)


def _random_cases(
    model: ImportedModel, seed: int, sizes: _Sizes, integers: tuple[int, int]
) -> list[dict[str, np.ndarray]]:
    return [
        random_inputs(model.inputs, dims, seed + i, integers, model.samples)
        for i, dims in enumerate(sizes[: len(_BATCHES) if _has_symbols(model) else 1])
    ]


def _sizes(model: ImportedModel, others: tuple[int, ...], *, two: bool = True, single: bool = False) -> _Sizes:
    """The sizes of each case, within their ranges; with `two` of every range that has so many.

    With `single` batches are of one row, as a state of a fixed size may ask.
    """
    cases: _Sizes = []
    for i, (batch, leading) in enumerate(((1, 1), (1, 1)) if single else zip(_BATCHES, _LEADING)):
        usual = {n: leading if model.typical.get(n) == 1 else others[i] for n in model.ranges} | {"batch": batch}
        dims = {n: min(max(usual[n], low), high) for n, (low, high) in model.ranges.items()}
        for n, (low, high) in model.ranges.items() if two and cases else ():
            if dims[n] == cases[0][n] and low < high:
                dims[n] += 1 if dims[n] < high else -1
        cases.append(sizes_that_hold(model.conditions, model.ranges, dims))
    return cases


def _of_engine(
    model: ImportedModel, cases: list[dict[str, np.ndarray]], results: list[Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays of cases that the source's engine computed, with the errors that are no faults.

    Where activations become integers on the way, one that lies between two of them takes either by the last bit of a
    sum, and others follow: two engines that are both right may be as far apart as the source is from itself when its
    inputs move by a rounding, or from its other engine.
    """
    arrays = _arrays(cases, results)
    if model.accepted_error is None:
        return arrays
    spreads = [_spread(model, *case) for case in enumerate(zip(cases, results))]
    relative = max(model.accepted_error, BOTH * min(MOST, max(spreads)))
    for i, outputs in enumerate(results):
        for name, value in outputs.items():
            steps = value.dtype in STEPS  # integers on a grid, whose least error is one
            if value.size and (value.dtype.kind == "f" or steps):
                largest = np.abs(value.astype(np.float64)).max()
                arrays[f"case{i}.error.{name}"] = np.float64(max(relative * largest, float(steps)))
    return arrays


def _spread(model: ImportedModel, seed: int, case: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]) -> float:
    """How far the source's floating-point outputs are, by their largest, from those of inputs that moved by a rounding,
    and of its other engine."""
    inputs, outputs = case
    near = moved(inputs, seed)
    found = [0.0]
    for others in (model.source_outputs(near) if near else None, model.other_outputs(inputs)):
        for name, value in outputs.items() if others else ():
            if value.dtype.kind == "f" and value.size and value.shape == others[name].shape:
                wide, other = value.astype(np.float64), others[name].astype(np.float64)
                found.append(float(np.abs(wide - other).max() / max(np.abs(wide).max(), 1e-30)))
    return max(spread for spread in found if np.isfinite(spread))


def _arrays(cases: list[dict[str, np.ndarray]], results: list[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for i, (inputs, outputs) in enumerate(zip(cases, results)):
        arrays.update({f"case{i}.input.{name}": value for name, value in inputs.items()})
        arrays.update({f"case{i}.output.{name}": value for name, value in outputs.items()})
    return arrays


def random_inputs(
    specs: tuple[InputSpec, ...],
    dims: Mapping[str, int],
    seed: int,
    integers: tuple[int, int] = (0, 1),
    samples: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Seeded inputs of the given sizes: normal numbers, or integers over the allowed values, else over `integers`.

    `samples` has, by name, the integers to draw from where the model is known to ask for them.

    A mask (an input that defaults to ones) hides the end of every row but the first, as padding does.
    """
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for spec in specs:
        shape = sizes_at(spec.shape, dims)
        dtype = np.dtype(spec.dtype)
        if spec.default == "ones" and len(shape) == 2:
            visible = rng.integers(1, shape[1] + 1, shape[0])
            visible[0] = shape[1]
            inputs[spec.name] = (np.arange(shape[1]) < visible[:, None]).astype(dtype)
        elif spec.name in samples:
            inputs[spec.name] = rng.choice(samples[spec.name], shape).astype(dtype)
        elif is_float(dtype):
            inputs[spec.name] = rng.standard_normal(shape).astype(dtype)
        elif dtype.kind == "c":
            inputs[spec.name] = as_complex(rng.standard_normal((*shape, 2))).astype(dtype)
        elif dtype.kind == "b":
            inputs[spec.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            low, high = spec.values or ((0, 1) if "mask" in spec.name.lower() else integers)
            if spec.room is not None:
                high = max(low, min(high, last_position(spec.room, dims)))
            inputs[spec.name] = rng.integers(low, high + 1, shape).astype(dtype)
    return inputs
