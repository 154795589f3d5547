"""Cases of a reference at other scales than one: what overflows or vanishes in few bits does so far from it.

A sum of a thousand squares in float16 is right at sigma 1, infinite at sigma 20 and zero at 1e-3. What a source makes
of such inputs tells something only while it is steady: its outputs are numbers, and a rounding of the inputs moves them
little. Scales at which it is not are left out, and what it moves otherwise is no fault of what is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from .imported import ImportedModel, InputSpec
from .runtime.tensors import as_pairs
from .runtime.validation import TOLERANCES

Arrays = Mapping[str, np.ndarray]
Source = Callable[[Sequence[Arrays]], list[Arrays | None]]  # None: the source does not take these inputs


@dataclass(frozen=True)
class Scale:
    """Inputs that are normal numbers, as mean + sigma * them."""

    mean: float
    sigma: float


# Of each kind the first at which the source is steady. Far from zero on one side, since what is not hides overflow of a
# sum: its terms cancel. Squares of nearly all are within float16.
_KINDS = ((Scale(48.0, 32.0), Scale(12.0, 8.0)), (Scale(0.0, 1e-3),))
_DATA = 16  # elements of an input that is data; fewer may be a size or a factor, which other numbers make another model
_ROUNDING = 1e-6  # relative: a few of float32
_ROUNDINGS = {"float16": 2**-10, "bfloat16": 2**-7}  # of inputs: one of their last place
_OF_PRECISION = {"bf16": 2**-8, "fp16": 2**-11, "int8": 2**-7, "int4": 2**-4}  # what products are rounded by
MOST = 0.05  # of the largest output: a source that moves more tells nothing, and would let anything pass
BOTH = 2.0  # the source and what is compared with it may each be off to its side
# A sum of numbers that differ less than they are large is rounded one way at every step, as a mean behind a bias is: a
# thousand such roundings are 32 times a thousand at random, which is what moved inputs show. So far it is no fault.
_ONE_WAY, _ONE_WAY_MOST = 32.0, 1e-3
STEPS = (np.int8, np.uint8, np.int16)  # integers on a grid, where a model rounds on the way
_AS_STEADY = 3.0  # as at sigma 1, where such a precision is known to do
# A source that moves so many times as far as its inputs moves in jumps, which one engine meets and another does not:
# an element that is the largest of its row by a rounding, in a net that was never trained. One draw may miss them.
_JUMPS, _DRAWS = 100.0, 3


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether an array's elements are floating-point numbers, those of ml_dtypes included."""
    return dtype.kind == "f" or str(dtype).startswith(("bfloat16", "float8"))


def largest_of(value: np.ndarray) -> float:
    """The largest magnitude of the finite elements of `value`; 0 without any."""
    wide = value.astype(np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))


def moved(inputs: Arrays, seed: int, rounding: float = _ROUNDING) -> dict[str, np.ndarray] | None:
    """`inputs` with their floating-point numbers moved by about `rounding`, or one of their own; None without any."""
    random = np.random.default_rng(seed)
    found = {}
    for name, value in inputs.items():
        if is_float(value.dtype):
            factor = 1 + max(rounding, _ROUNDINGS.get(str(value.dtype), 0.0)) * random.standard_normal(value.shape)
            found[name] = (value.astype(np.float64) * factor).astype(value.dtype)
    return {**inputs, **found} if found else None


def movement(outputs: Arrays, others: Arrays, steps: bool = False) -> float:
    """The largest difference of two results as a share of an output's largest element.

    Infinity where shapes, what is finite or integers differ; small integers are numbers where they are `steps`.
    """
    found = [0.0]
    for name, value in outputs.items():
        value, other = as_pairs(value), as_pairs(others[name])
        if value.shape != other.shape:
            return np.inf
        if is_float(value.dtype) or (steps and value.dtype in STEPS):
            wide, wide_other = value.astype(np.float64), other.astype(np.float64)
            finite = np.isfinite(wide)
            if not np.array_equal(finite, np.isfinite(wide_other)):
                return np.inf
            largest = np.abs(wide[finite]).max(initial=0.0)
            found.append(float(np.abs(wide[finite] - wide_other[finite]).max(initial=0.0) / max(largest, 1e-30)))
        elif not np.array_equal(value, other):
            return np.inf
    return max(found)


def cases_at_other_scales(
    model: ImportedModel, base: Arrays, outputs: Arrays, source: Source, precision: str, seed: int
) -> tuple[list[tuple[Arrays, Arrays, dict[str, float]]], float]:
    """Inputs, outputs and the errors to accept, by output, for each kind of scale that `model` takes.

    `base` is a case of sigma 1 and `outputs` what the source makes of it; `precision` is what is compared with it.
    Beside them what outputs at sigma 1 may be off, as a share of their largest element: 0.0 is what their types may,
    and more is of a source that jumps there.
    """
    data = [spec.name for spec in model.inputs if _is_data(model, spec, base)]
    if not data:
        return [], 0.0
    scales = [scale for kind in _KINDS for scale in kind]
    inputs = [_scaled(base, data, scale) for scale in scales]
    rounding = max(_ROUNDING, _OF_PRECISION.get(precision, 0.0))
    steps = model.accepted_error is not None
    near = [moved(case, seed, rounding) or case for case in [base, *inputs]]
    results = source([*inputs, *near])
    found, others = results[: len(inputs)], results[len(inputs) :]

    def spread_of(case: Arrays, result: Arrays, other: Arrays | None) -> float:
        """The largest movement of `result`; one draw, `other`, shows it where it does not jump."""
        spread = np.inf if other is None else movement(result, other, steps)
        # What is beyond a grid of integers is rounded to its end, wherever it moves: there engines alone show jumps.
        apart = model.other_outputs(case)
        spread = max(spread, movement(result, apart, steps) if apart else 0.0)
        for draw in range(1, _DRAWS):
            if not _jumps(case, spread, rounding) or spread == np.inf:
                break
            (another,) = source([moved(case, seed + draw, rounding) or case])
            spread = max(spread, np.inf if another is None else movement(result, another, steps))
        return spread

    usual = spread_of(base, outputs, others[0])
    limit = max(rounding, _AS_STEADY * usual) if precision in _OF_PRECISION else MOST
    cases: list[tuple[Arrays, Arrays, dict[str, float]]] = []
    for kind in _KINDS:
        for scale in kind:
            place = scales.index(scale)
            case, result, other = inputs[place], found[place], others[1 + place]
            if result is None or other is None or not _as_finite(result, outputs):
                continue
            spread = spread_of(case, result, other)
            if spread <= limit:
                # One that jumps at sigma 1 may do so here, though neither draw nor engine showed it.
                shown = max(spread, usual) if np.isfinite(usual) else spread
                share = max(BOTH * spread, MOST if _jumps(case, shown, rounding) else 0.0)
                cases.append((case, result, _errors(model, result, scale, spread, share)))
                break
    jumps = np.isfinite(usual) and _jumps(base, usual, rounding)
    return cases, max(MOST, min(BOTH * usual, 1.0)) if jumps else 0.0


def _jumps(case: Arrays, spread: float, rounding: float) -> bool:
    """Whether a source jumps: by `spread` where the inputs of `case` moved by `rounding`, or by one of their own."""
    own = [_ROUNDINGS.get(str(value.dtype), 0.0) for value in case.values()]
    return spread > _JUMPS * max(rounding, *own)


def _is_data(model: ImportedModel, spec: InputSpec, base: Arrays) -> bool:
    """Whether an input is numbers of any size: not a mask, a state, a factor, nor one whose meaning bounds it."""
    return (
        is_float(base[spec.name].dtype)
        and spec.default is None
        and spec.name not in model.samples
        and "mask" not in spec.name.lower()
        and base[spec.name].size >= _DATA
    )


def _scaled(base: Arrays, data: Sequence[str], scale: Scale) -> dict[str, np.ndarray]:
    other = {n: (scale.mean + scale.sigma * base[n].astype(np.float64)).astype(base[n].dtype) for n in data}
    return {**base, **other}


def _as_finite(result: Arrays, usual: Arrays) -> bool:
    """Whether the outputs have as many numbers as at sigma 1: what overflows in the source tells nothing."""
    return all(
        value.shape == usual[name].shape and np.isfinite(value).sum() >= np.isfinite(usual[name]).sum()
        for name, value in result.items()
        if is_float(value.dtype)
    )


def _errors(model: ImportedModel, result: Arrays, scale: Scale, spread: float, share: float) -> dict[str, float]:
    """By output what it may be off: a share of its largest element, and what its type may be off beside at `scale`.

    That is at least `share`, and what roundings that all go one way add up to in a source of this `spread`.
    """
    dtypes = dict(zip(model.outputs, _dtypes(model)))
    errors = {}
    for name, value in result.items():
        steps = value.dtype in STEPS and model.accepted_error is not None
        if not value.size or not (is_float(value.dtype) or steps):
            continue
        tolerance = TOLERANCES.get(dtypes.get(name, ""), TOLERANCES["float32"])
        one_way = min(_ONE_WAY * spread, _ONE_WAY_MOST)
        relative = max(tolerance.relative, model.accepted_error or 0.0, share, one_way)
        beside = float(steps) or tolerance.absolute * min(1.0, scale.sigma)
        errors[name] = relative * largest_of(value) + beside
    return errors


def _dtypes(model: ImportedModel) -> list[str]:
    ty = model.mod["main"].ret_ty
    fields = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    return [str(getattr(field, "dtype", "")) for field in fields]
