"""What the labs share whose candidates are built on this machine, wherever they are measured."""

from __future__ import annotations

from itertools import count

from ...targets import Target
from ..task import Task
from . import protocol as p
from .builders import Builders
from .confined import arguments_of
from .lab import LabOptions
from .requests import builder_bytes
from .scratch import Scratch


class BuildingLab:
    """A `Lab` with builders and a directory for their libraries."""

    def __init__(self, target: Target, options: LabOptions, *, builders: int, memory_bytes: int, seed: int) -> None:
        self._target = target
        self._options = options
        self._seed = seed
        self._scratch = Scratch()
        arguments = arguments_of(builder_bytes(target, memory_bytes), options.file_bytes, options.modules)
        self._builders = Builders(builders, arguments, self._scratch.path)
        self._ids = count(p.DEFAULT_ID + 1)  # of candidates, in the order in which they are asked for

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes here and what measures, and remove all files."""
        try:
            self._builders.close()
            self._end_measuring()
        finally:
            self._scratch.close()

    def _end_measuring(self) -> None:
        raise NotImplementedError

    def _open_request(self, request: dict[str, object], task: Task, l3_bytes: int) -> dict[str, object]:
        """OPEN of the protocol; `request` is the task's TASK."""
        return {
            **request,
            "op": p.OPEN,
            "sizes": [s.dims for s in task.sizes],
            "outputs": task.outputs,
            "weights": task.weights,
            "seed": self._seed,
            "l3_bytes": l3_bytes,
        }
