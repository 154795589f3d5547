"""onnxruntime in a process of its own: what ends it (an overflow of integers, memory) does not end ours.

    with Model(path) as model:          calls inside share one session
        (y,) = model(("y",), {"x": x})

All models of a process share one such process. It is started when it is first needed, and again when it has ended,
and stays, without sessions, until ours ends. Arrays travel as npz files in a folder of its own.
`python -m halo_tvm.onnxruntime_apart` is its other end; it imports no TVM.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .model_names import place_of
from .processes import JsonProcess, ProcessTrouble, inherited_environment, line_to_parent, seconds

_LIMIT_S = 3600.0  # of one reply
_INPUTS, _OUTPUTS = "inputs.npz", "outputs.npz"


class Refused(Exception):
    """What onnxruntime says about a model or its inputs."""


class Model:
    """A model, its file or its bytes; `exact`: as the graph is written, without onnxruntime's optimisations.

    A call raises `Refused`, or `processes.ProcessTrouble` where no answer came.
    """

    _numbers = itertools.count()

    def __init__(self, model: str | bytes, *, exact: bool) -> None:
        self._model, self._exact, self._number = model, exact, next(self._numbers)
        self._entered = 0

    def __enter__(self) -> Model:
        self._entered += 1
        return self

    def __exit__(self, *_error: object) -> None:
        self._entered -= 1
        if not self._entered:
            with _LOCK:
                if _running is not None:
                    _running.forget(self._number)

    def __call__(self, outputs: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with _LOCK:
            process = _process()
            try:
                if not process.knows(self._number):
                    process.load(self._number, self._model, self._exact)
                found = process.run(self._number, outputs, inputs)
                if not self._entered:
                    process.forget(self._number)
                return found
            except Refused:
                raise
            except BaseException:  # an interrupt, too: a reply would be left that belongs to no request
                process.close()
                raise


class _Process:
    """Our end of it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="halo-tvm-onnxruntime-"))
        command = [sys.executable, "-m", __name__, str(self._folder)]
        self._process = JsonProcess(command, environment=inherited_environment())
        self.close = weakref.finalize(self, _end, self._process, self._folder)
        self._known: set[int] = set()

    def knows(self, number: int) -> bool:
        return number in self._known

    def load(self, number: int, model: str | bytes, exact: bool) -> None:
        path = Path(model if isinstance(model, str) else self._folder / "model.onnx")
        if isinstance(model, bytes):
            path.write_bytes(model)
        self._ask(command="load", number=number, model=str(place_of(path)), exact=exact)
        self._known.add(number)

    def run(self, number: int, outputs: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        # By place: names of tensors may be no names of files in an archive.
        given: dict[str, Any] = {str(i): array for i, array in enumerate(inputs.values())}
        np.savez(self._folder / _INPUTS, **given)
        self._ask(command="run", number=number, inputs=list(inputs), outputs=list(outputs))
        with np.load(self._folder / _OUTPUTS, allow_pickle=False) as found:
            return [found[str(i)] for i in range(len(outputs))]

    def forget(self, number: int) -> None:
        """Free the session; one that is gone with its process is forgotten too."""
        if number in self._known and self.close.alive:
            self._known.remove(number)
            try:
                self._ask(command="forget", number=number)
            except ProcessTrouble:
                self.close()

    def _ask(self, **request: object) -> None:
        self._process.send(request)
        reply = self._process.receive(seconds(_LIMIT_S))
        if "refused" in reply:
            raise Refused(reply["refused"])


def _end(process: JsonProcess, folder: Path) -> None:
    process.close()
    shutil.rmtree(folder, ignore_errors=True)


_LOCK = threading.Lock()
_running: _Process | None = None


def _process() -> _Process:
    """The one that runs, or a new one; a fork of ours has none yet."""
    global _running
    if _running is None or not _running.close.alive or _running.owner != os.getpid():
        _running = _Process()
    return _running


def main(folder: Path) -> None:
    """Answer requests on the standard streams, until they end."""
    send = line_to_parent()
    sessions: dict[int, Any] = {}
    for line in sys.stdin:
        send(_answer(json.loads(line), sessions, folder))


def _answer(request: Mapping[str, Any], sessions: dict[int, Any], folder: Path) -> dict[str, object]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    refusals = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)
    try:
        if request["command"] == "load":
            sessions[request["number"]] = _session(request["model"], request["exact"])
        elif request["command"] == "run":
            with np.load(folder / _INPUTS, allow_pickle=False) as arrays:
                given = {name: arrays[str(i)] for i, name in enumerate(request["inputs"])}
            found = sessions[request["number"]].run(request["outputs"], given)
            made: dict[str, Any] = {str(i): _plain(array) for i, array in enumerate(found)}
            np.savez(folder / _OUTPUTS, **made)
        else:
            del sessions[request["number"]]
    except refusals as reason:
        return {"refused": str(reason).strip().splitlines()[0][:200]}
    return {}


def _plain(array: Any) -> np.ndarray:
    """Strings, which onnxruntime returns as Python's objects, as characters: archives hold no objects."""
    found = np.asarray(array)
    return found.astype(str) if found.dtype == object else found


def _session(model: str, exact: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses is raised as well
    if exact:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
