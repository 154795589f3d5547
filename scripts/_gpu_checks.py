"""What gpu_check.py checks: results against references, in one worker, within the time that each section has."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import _gpu_engines as engines

from halo_tvm.errors import HaloError, PeerFailed
from halo_tvm.peers.client import Peer

SHARES = {"operators": 3, "models": 2, "step": 5, "gemm": 2, "flash": 4}
LEAST_S = 3.0  # below that a section is not begun


class Clock:
    """Sections one after another, each with its share of what is left."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.sections = dict(SHARES)
        self.until = self.end

    def begin(self, section: str) -> None:
        left = self.end - time.monotonic()
        self.until = time.monotonic() + left * self.sections[section] / sum(self.sections.values())
        del self.sections[section]

    @property
    def left(self) -> float:
        """Seconds of this section."""
        return self.until - time.monotonic()


class Restarted:
    """The worker that checks: a fault of the GPU ends its process, and the next case gets another."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._peer: Peer | None = None

    def ask(self, command: str, seconds: float, **fields: object) -> dict[str, object]:
        if self._peer is None:
            self._peer = Peer("halo_tvm", self._command)
        try:
            return self._peer.ask(command, timeout_s=max(seconds, 1.0), **fields)
        except PeerFailed as failure:
            if not failure.missing:
                self.close()  # gone, silent, or without a device: after an error of CUDA a process has none any more
            raise

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None


def operators(
    checker: Restarted, folder: Path, plan: dict, clock: Clock, result: dict[str, object]
) -> list[dict[str, object]]:
    """Every case against its NumPy reference."""
    rows: list[dict[str, object]] = []
    for part in (name for name in plan["parts"] if name.startswith("operators/")):
        manifest = json.loads((folder / f"{part}.halo" / "manifest.json").read_text())
        for function in sorted(manifest["functions"], key=lambda name: int(name.removeprefix("case"))):
            name = f"{part.removeprefix('operators/')} {function}"
            if clock.left < LEAST_S:
                result["left_out"].append(f"{name}: no time was left")
                continue
            case = {"artifact": f"{part}.halo", "function": function}
            rows += _checked(checker, "function", name, case, clock, result)
    return rows


def models(
    checker: Restarted, folder: Path, plan: dict, clock: Clock, result: dict[str, object]
) -> list[dict[str, object]]:
    """Every model, and the step, against its own."""
    rows: list[dict[str, object]] = []
    for part in (name for name in plan["parts"] if name.startswith(("models/", "step"))):
        if clock.left < LEAST_S:
            result["left_out"].append(f"{part}: no time was left")
            continue
        if part.startswith("step"):
            try:
                engines.materialise(folder)
            except (HaloError, OSError) as error:
                result["failures"].append(f"{part}: its weights could not be written: {error}")
                rows.append(failed(part))
                continue
        rows += _checked(checker, "model", part, {"artifact": f"{part}.halo"}, clock, result)
    return rows


def _checked(
    checker: Restarted, command: str, name: str, case: dict[str, object], clock: Clock, result: dict[str, object]
) -> list[dict[str, object]]:
    try:
        rows = checker.ask(command, clock.left, case=case)["rows"]
    except PeerFailed as failure:
        if failure.missing:
            result["left_out"].append(f"{name}: {failure}")
            return []
        result["failures"].append(f"{name}: {failure}")
        return [failed(name)]
    return [{**row, "name": name} for row in rows]


def failed(name: str) -> dict[str, object]:
    """The row of what gave no result."""
    return {"name": name, "passed": False, "max_abs_error": None, "bound": None, "dtype": ""}
