"""An exported file beside what it was made of, both run by onnxruntime: error, nodes, time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from ..differences import differences, largest_finite
from ..errors import UnsupportedModel
from ..imported import ImportedModel
from ..importers.onnx.unsigned import with_unsigned_weights
from ..reference import cases_of, random_inputs, typical_of

TOLERANCE = 1e-4  # of an output's largest element
_ROUNDS, _SECONDS = 30, 2.0  # runs of each, at most; and how long all of them may take

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Measured:
    """A file in onnxruntime: its nodes, and the median time of one run at the model's typical sizes."""

    nodes: int
    median_ms: float


@dataclass(frozen=True)
class Comparison:
    """`before` is None where the graph has no ONNX spelling before its operators are recognised."""

    before: Measured | None
    after: Measured
    error: float  # the largest, as a share of its output's largest element
    worst: str  # the output that has it
    saturated: float | None = None  # the error on this CPU, where sums of bytes saturate and `error` is of exact ones

    @property
    def agrees(self) -> bool:
        return self.error <= TOLERANCE


def compare(model: ImportedModel, before: Path | None, after: Path, *, seed: int = 0, threads: int = 0) -> Comparison:
    """Run `after`, the export of `model`, on seeded inputs against the model's own engine, and time both files.

    The runs of both alternate. A file whose weights are signed bytes is run once more with unsigned ones where it
    differs: the source's engine adds exactly, onnxruntime does not on every CPU. `threads` 0 is onnxruntime's own
    choice. Raises `UnsupportedModel` where onnxruntime does not take the export.
    """
    new = session_of(after, threads)
    cases = cases_of(model, seed)
    error, worst = _error(model, new, cases)
    saturated = None
    if error > TOLERANCE and (unsigned := with_unsigned_weights(str(after))) != str(after):
        exact, worst_of_exact = _error(model, session_of(unsigned, threads), cases)
        if exact <= TOLERANCE:  # else bytes are not what differs
            error, worst, saturated = exact, worst_of_exact, error
    old = session_of(before, threads) if before is not None else None
    times = _times([s for s in (old, new) if s is not None], _inputs(model, cases, new, seed))
    measured = None if old is None or before is None else Measured(nodes_of(before), times[0])
    return Comparison(measured, Measured(nodes_of(after), times[-1]), error, worst, saturated)


def session_of(path: Path | str | bytes, threads: int) -> Any:
    """onnxruntime on a file, or on the bytes of one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses is raised as well
    options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(
            path if isinstance(path, bytes) else str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as reason:  # onnxruntime's errors have no common base
        line = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
        name = "the model" if isinstance(path, bytes) else Path(path).name
        raise UnsupportedModel(
            f"expected onnxruntime to load {name}, but it says: {line[:200]}: give another --opset or --for"
        ) from reason


def _inputs(model: ImportedModel, cases: Arrays, session: Any, seed: int) -> Arrays:
    """Inputs of typical sizes, or where the model does not take those, of the first case."""
    found = typical_of(model, cases)
    sizes = {name: min(max(found.get(name, low), low), high) for name, (low, high) in model.ranges.items()}
    inputs = random_inputs(model.inputs, sizes, seed)
    try:
        session.run(None, dict(inputs))
    except Exception:  # noqa: BLE001  onnxruntime's errors have no common base
        return {spec.name: cases[f"case0.input.{spec.name}"] for spec in model.inputs}
    return inputs


def _error(model: ImportedModel, session: Any, arrays: Arrays) -> tuple[float, str]:
    count = sum(key.endswith(f".input.{model.inputs[0].name}") for key in arrays) if model.inputs else 1
    worst = (0.0, model.outputs[0])
    for case in range(count):
        feeds = {spec.name: arrays[f"case{case}.input.{spec.name}"] for spec in model.inputs}
        for name, found in zip(model.outputs, session.run(None, feeds), strict=True):
            worst = max(worst, (difference(found, arrays[f"case{case}.output.{name}"]), name))
    return worst


def difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference as a share of the largest element; infinity where shapes or what is finite differ."""
    if found.shape != expected.shape:
        return float("inf")
    return float(differences(found, expected).max(initial=0.0)) / (largest_finite(expected) or 1.0)


def _times(sessions: list[Any], inputs: Arrays) -> list[float]:
    """The median time of a run of each, in milliseconds; they alternate."""
    samples: list[list[float]] = [[] for _ in sessions]
    for session in sessions:
        session.run(None, dict(inputs))
    end = time.perf_counter() + _SECONDS
    for _ in range(_ROUNDS):
        for session, found in zip(sessions, samples, strict=True):
            start = time.perf_counter()
            session.run(None, dict(inputs))
            found.append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() > end:
            break
    return [statistics.median(found) for found in samples]


def nodes_of(path: Path) -> int:
    return len(onnx.load(str(path), load_external_data=False).graph.node)
