"""The two ends agree here: one JSON object per line; a worker answers every command it reads.

    {"command": "load", "request": {...}}             ->  {"ok": true, "version": "1.31.1", "load_s": 0.8, ...}
    {"command": "time", "runs": 3, "pause_s": 0.05}   ->  {"ok": true, "milliseconds": [7.1, 7.0, 7.2]}
    {"command": "outputs", "cases": P, "path": Q}     ->  {"ok": true, "cases": 2}        (npz files)
    {"command": "memory"}                             ->  {"ok": true, "peak_rss_mib": 512.0}
    {"command": "quit"}
An error is {"ok": false, "error": "...", "missing": {"package", "install"} | null}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import HaloError, MissingPackage, PeerFailed
from ..peak_memory import peak_rss_mib
from ..processes import line_to_parent

PAUSE_S = 0.05  # lets the spinning threads of the engine before fall asleep


@dataclass(frozen=True)
class LoadRequest:
    """What an engine runs: the model in the form it reads, threads, and the inputs to time."""

    model: str  # path: an artifact, an ONNX file, or a directory of weights
    threads: int
    inputs: str  # path of an npz file: the timed inputs by name
    options: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def described(self, families: Collection[str]) -> dict[str, Any]:
        """What a directory of weights says of its model; `PeerFailed` for one of none of the `families`."""
        description = json.loads((Path(self.model) / "model.json").read_text(encoding="utf-8"))
        if description["family"] not in families:
            raise PeerFailed(
                f"expected a model of {', '.join(sorted(families))}, found {description['family']!r}: "
                "use --vs onnxruntime"
            )
        return description


class Engine(Protocol):
    """One engine in its own process; a class with these four is all a new peer needs.

    A `note` of its own, if it has one, says after `prepare` what it found out about how it runs the model.
    """

    version: str

    def load(self, request: LoadRequest) -> None:
        """Load the model; raises `MissingPackage` when the engine is not installed."""

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
        """A function that runs the model once on `inputs`, the outputs kept inside the engine."""

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs by name."""


def serve(engine: Engine) -> None:
    """Time and run `engine` as commands say, until there are no more."""
    answer_all(_Worker(engine).execute)


def answer_all(execute: Callable[[dict[str, object]], dict[str, object]]) -> None:
    """Answer commands from standard input with what `execute` makes of them, until it ends.

    Standard output belongs to the protocol: what libraries print there goes to standard error.
    """
    send = line_to_parent()
    for line in sys.stdin:
        message = json.loads(line)
        if message["command"] == "quit":
            return
        send(_answer(execute, message))


def _answer(execute: Callable[[dict[str, object]], dict[str, object]], message: dict[str, object]) -> dict[str, object]:
    try:
        return {"ok": True, **execute(message)}
    except MissingPackage as error:
        return {"ok": False, "error": str(error), "missing": True}
    except HaloError as error:
        return {"ok": False, "error": str(error), "missing": False}
    except Exception as error:  # noqa: BLE001 - a process boundary: whatever an engine raises is reported
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000], "missing": False}


class _Worker:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.run: Callable[[], None] | None = None

    def execute(self, message: dict[str, object]) -> dict[str, object]:
        command = message["command"]
        if command == "load":
            return self._load(LoadRequest(**message["request"]))
        if command == "time":
            return {
                "milliseconds": self._time(int(message["runs"]), float(message["pause_s"]), message.get("warm", True))
            }
        if command == "outputs":
            return {"cases": self._outputs(str(message["cases"]), str(message["path"]))}
        if command == "memory":
            return {"peak_rss_mib": peak_rss_mib()}
        raise AssertionError(f"unknown command {command!r}")

    def _load(self, request: LoadRequest) -> dict[str, object]:
        start = time.perf_counter()
        self.engine.load(request)
        with np.load(request.inputs, allow_pickle=False) as inputs:
            self.run = self.engine.prepare(dict(inputs))
        ready = time.perf_counter()
        self.run()
        end = time.perf_counter()
        note = getattr(self.engine, "note", "")
        return {"version": self.engine.version, "note": note, "load_s": end - start, "run_s": end - ready}

    def _time(self, runs: int, pause_s: float, warm: bool) -> list[float]:
        assert self.run is not None, "time before load"
        time.sleep(pause_s)
        if warm:
            self.run()
        samples = []
        for _ in range(runs):
            start = time.perf_counter()
            self.run()
            samples.append((time.perf_counter() - start) * 1e3)
        return samples

    def _outputs(self, cases: str, path: str) -> int:
        """Run every `case{i}.input.{name}` of the npz file; write `case{i}.output.{name}`."""
        results: dict[str, np.ndarray] = {}
        with np.load(cases, allow_pickle=False) as arrays:
            for case, inputs in split_cases(arrays, "input").items():
                for name, array in self.engine.outputs(inputs).items():
                    results[f"{case}.output.{name}"] = array
        np.savez(path, **results)
        return len(results)


def split_cases(arrays: Mapping[str, np.ndarray], kind: str) -> dict[str, dict[str, np.ndarray]]:
    """`case{i}.{kind}.{name}` keys as case -> name -> array."""
    cases: dict[str, dict[str, np.ndarray]] = {}
    for key in arrays:
        case, found, name = (*key.split(".", 2), "", "")[:3]
        if found == kind:
            cases.setdefault(case, {})[name] = arrays[key]
    return cases
