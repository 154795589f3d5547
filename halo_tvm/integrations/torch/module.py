"""An artifact as `nn.Module`: tensors in, tensors out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ...errors import UsageError
from ...runtime.tensors import is_numpys


class HaloModule(torch.nn.Module):
    """An artifact as a module: tensors in, tensors out, no copies of dense tensors of more than 16 KiB.

    It takes inputs by position or name and returns one tensor, or a dict by output name. It has no parameters
    that torch could train: under gradients its inputs must not require any.
    """

    def __init__(self, artifact: Path | str, *, threads: int | None = None, seed: int | None = None) -> None:
        from ...runtime import load

        super().__init__()
        self._program = load(artifact, threads=threads, seed=seed)

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        for value in (*args, *kwargs.values()):
            if torch.is_grad_enabled() and isinstance(value, torch.Tensor) and value.requires_grad:
                raise UsageError(
                    "expected inputs of inference, found one that requires gradients: call under torch.no_grad()"
                )
        outputs = self._program(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
        if not isinstance(outputs, tuple):
            return _tensor(outputs)
        names = [spec.name for spec in self._program.output_specs]
        if len(outputs) < len(names):  # the module keeps its state
            names = [name for name in names if name not in self._program.spec.state]
        return {name: _tensor(value) for name, value in zip(names, outputs, strict=True)}

    def extra_repr(self) -> str:
        return ", ".join(f"{spec.name}{list(spec.shape)}" for spec in self._program.input_specs)


def _plain(value: object) -> object:
    return value.detach().resolve_conj() if isinstance(value, torch.Tensor) else value


def _tensor(array: np.ndarray) -> torch.Tensor:
    if is_numpys(array.dtype):
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
