"""Importers of files that can run code work in a confined process; only data comes back.

    model = convert_restricted("torchscript", Path("model.pt"), {"shapes": ["x=1x512"]})

The process (see `confinement`) can read the file and the installed packages, write to one temporary directory,
and nothing else. Its answer is JSON and safetensors. A crash or an exceeded limit is `UnsupportedModel`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import errors
from ..confinement import NEEDED, Policy
from ..errors import HaloError, UnsupportedModel, UsageError
from ..imported import ImportedModel
from ..processes import Ended, Garbled, JsonProcess, Late, python_path, seconds
from ..text import one_line

_REPLY_LIMIT = 1 << 20
_MESSAGE_LIMIT = 2000
_PASSED_ON = ("UnsupportedModel", "UsageError", "InputError", "EnvironmentProblem")
_WARM = {
    "torchscript": "torch.export",
    "torch_export": "torch.export",
    "transformers": "transformers",
    "tensorflow": "tensorflow",
    "stablehlo": "jax",
    "keras": "keras",  # and the backend that the environment names
}


# Seconds until the process is confined: nothing of the file is read by then, and a busy machine starves its imports.
_START = 300.0


@dataclass(frozen=True)
class Limits:
    """What one conversion may take. Memory is on top of the imports and of a multiple of the file's size."""

    seconds: float = 600.0  # wall clock, for the conversion and for each call of the engine
    memory_bytes: int = 4 << 30
    memory_per_byte: int = 8
    file_bytes: int = 64 << 30


def convert_restricted(
    kind: str,
    path: Path,
    options: Mapping[str, object],
    *,
    trust: bool = False,
    limits: Limits | None = None,
    reads: tuple[Path, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> ImportedModel:
    """Import `path` (a file or a directory) with the converter `kind` in a confined process.

    `options` are plain values for the converter, which may read the files `reads`, too, and finds `environment` set.
    `trust` goes on where the host offers no confinement.
    The restrictions that held are in the model's report under "restrictions". The model's engine asks the same
    process, which ends with the model.

    Raises
    ------
    UnsupportedModel
        the converter refused the file, crashed, or exceeded a limit
    UsageError
        no confinement on this host, and the file is not trusted
    """
    from ._handover import load_model

    limits = limits or Limits()
    worker = _Worker(path.resolve(), trust, limits, reads, environment or {})
    worker.ask(
        {
            "command": "convert",
            "kind": kind,
            "path": str(path.resolve()),
            "options": dict(options),
            "warm": _WARM.get(kind),
            # The worker dies with the thread that started it, and a model's engine may be asked by another one.
            "parent": os.getpid() if threading.current_thread() is threading.main_thread() else None,
        }
    )
    try:
        model, has_engine = load_model(worker.directory)
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as reason:
        raise UnsupportedModel(f"expected a model from the worker, found {reason!r}: report {path.name}") from reason
    for name in ("module.json", "weights.safetensors", "model.json"):
        (worker.directory / name).unlink()
    if not has_engine:
        worker.close()
    report = {**model.report, "restrictions": worker.held or "none: the file is trusted"}
    return dataclasses.replace(model, report=report, engine=worker.engine if has_engine else None)


class _Worker:
    """The parent's end: the process, its directory, and what its death means."""

    def __init__(
        self, path: Path, trust: bool, limits: Limits, reads: tuple[Path, ...], environment: Mapping[str, str]
    ) -> None:
        self._name, self._limits = path.name, limits
        self.directory = Path(tempfile.mkdtemp(prefix="halo-tvm-import-"))
        files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
        policy = Policy(
            str(self.directory),
            (str(path), *map(str, reads)),
            memory_bytes=limits.memory_bytes + limits.memory_per_byte * sum(f.stat().st_size for f in files),
            cpu_seconds=int(limits.seconds * 4) + 60,
            file_bytes=limits.file_bytes,
        )
        self._process = JsonProcess(
            [sys.executable, "-m", "halo_tvm.confinement", "halo_tvm.importers._worker", policy.text()],
            environment={**_environment(self.directory), **environment},
            directory=self.directory,
            apart=True,
            line_bytes=_REPLY_LIMIT,
        )
        self.close = weakref.finalize(self, _end, self._process, self.directory)
        self.held: dict[str, str] = dict(self._reply(_START)["held"])
        missing = [name for name in NEEDED if name not in self.held]
        if missing and not trust:
            self.close()
            raise UsageError(
                f"expected a system that can confine the import of {self._name}, found one without "
                f"{' and '.join(missing)} (Landlock and seccomp of Linux): use such a system, or say --trust-model"
            )

    def ask(self, request: Mapping[str, object]) -> None:
        """One request; raises what the worker answers instead of success."""
        try:
            self._process.send(request)
        except Ended as end:
            raise self._died(end) from None
        reply = self._reply(self._limits.seconds)
        if reply.get("ok") is True:
            return
        if request["command"] == "convert":
            self.close()
        raise self._error(str(reply.get("error")), _message(str(reply.get("message"))))

    def engine(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs of the source model, by name."""
        from ._handover import map_arrays, write_arrays

        headers = {name: (str(value.dtype), value.shape) for name, value in inputs.items()}
        write_arrays(self.directory / "inputs.safetensors", headers, inputs.values())
        self.ask({"command": "engine"})
        file = self.directory / "outputs.safetensors"
        outputs = {name: np.array(value) for name, value in map_arrays(file).items()}
        file.unlink()
        return outputs

    def _error(self, kind: str, message: str) -> HaloError:
        if kind == "MemoryError":
            return UnsupportedModel(
                f"expected {self._name} to fit into bounded memory, found that it asks for more than "
                f"{self._limits.memory_bytes >> 20} MiB: give smaller shapes"
            )
        known = getattr(errors, kind, None)
        for name in _PASSED_ON:
            base = getattr(errors, name)
            if isinstance(known, type) and issubclass(known, base):
                return base(message)
        return UnsupportedModel(
            f"expected a model in {self._name} that can be converted, found {message}: "
            "check that the file is whole, or export it as ONNX"
        )

    def _reply(self, limit: float) -> dict[str, object]:
        try:
            return self._process.receive(seconds(limit))
        except Late:
            self.close()
            raise UnsupportedModel(
                f"expected {self._name} to be converted within {limit:g} s, found it still at work: "
                "it was stopped; give smaller shapes, or export it as ONNX"
            ) from None
        except Ended as end:
            raise self._died(end) from None
        except Garbled as found:
            self.close()
            raise UnsupportedModel(
                f"expected an answer about {self._name}, found {found.line[:60]!r}: the file is not sound"
            ) from None

    def _died(self, end: Ended) -> UnsupportedModel:
        self.close()
        if end.code == -signal.SIGXCPU or end.code == -signal.SIGKILL:
            how = "it exceeded its processor time or memory"
        else:
            last = end.last_words.splitlines()
            how = f"it ended with {end.how}" + (f" ({_message(last[-1])[:200]})" if last else "")
        return UnsupportedModel(
            f"expected {self._name} to be converted, found that the process which read it died, {how}: "
            "check that the file is whole, or export it as ONNX"
        )


def _environment(directory: Path) -> dict[str, str]:
    """Nothing of the user's: where to find packages, and a home that is the worker's directory."""
    return {
        "PYTHONPATH": python_path(p for p in sys.path if _holds_packages(Path(p))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "LC_ALL": "C.UTF-8",
        "MALLOC_ARENA_MAX": "2",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1)),
    }


def _holds_packages(path: Path) -> bool:
    """Whether installed packages lie there; a script's own folder is none of the worker's business."""
    if not path.is_absolute():
        return False
    return any(path.is_relative_to(p) for p in (sys.prefix, sys.base_prefix)) or any(path.glob("*.dist-info"))


def _end(process: JsonProcess, directory: Path) -> None:
    """End the process with all that it started, and remove its directory."""
    process.close()
    shutil.rmtree(directory, ignore_errors=True)


def _message(text: str) -> str:
    """Text of a file nobody vouches for, fit for a terminal."""
    return " ".join(one_line(text).split())[:_MESSAGE_LIMIT]
