"""The file's own interpreter: what every conversion is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ...errors import UnsupportedModel
from .._reasons import lines_of
from ._program import flat
from ._writes import attributes_set, attributes_written


class Source:
    """A loaded TorchScript file that is only ever run from the state it was saved in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.script = self._load()  # never run: the walker reads its attributes
        graph = self.script.inlined_graph
        self.stateful = bool(attributes_set(graph) or attributes_written(graph))
        self._runner: torch.jit.ScriptModule | None = None

    def _load(self) -> torch.jit.ScriptModule:
        try:
            script = torch.jit.load(str(self._path), map_location="cpu")
        except (RuntimeError, ValueError, OSError, AttributeError, ImportError, UnicodeDecodeError) as reason:
            raise UnsupportedModel(
                f"expected a whole TorchScript file, found that {self._path.name} cannot be loaded "
                f"({last_line(reason)[:200]}): save or download it again"
            ) from reason
        if not isinstance(script, torch.jit.ScriptModule) or not hasattr(script, "forward"):
            raise UnsupportedModel(
                f"expected a module with a method forward in {self._path.name}, found none: save such a module"
            )
        return script.eval()

    def run(self, arguments: Sequence[object]) -> list[torch.Tensor]:
        """Outputs of a first call; whatever the interpreter raises, as RuntimeError or its like."""
        if self._runner is None or self.stateful:
            self._runner = self._load()
        values = (a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)
        with torch.no_grad():
            return flat(self._runner(*values))

    def accepts(self, arguments: Sequence[object]) -> bool:
        """Whether the model takes arguments of these shapes."""
        try:
            self.run(arguments)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return False
        return True


def last_line(reason: BaseException) -> str:
    """The line of a TorchScript error that says what happened."""
    lines = lines_of(reason)
    return next((text for text in reversed(lines) if ":" in text), lines[-1])
