"""Scans of state-space models of transformers, exported for any length: as doublings instead of a loop over the steps.

transformers writes h[t] = a[t] * h[t - 1] + b[t] as a Python loop, which torch.export unrolls for one length, and for
`torch.compile` as `associative_scan`, of which torch.export has no operators. Composed with what lies 1, 2, 4, .. steps
back, all steps are there after as many rounds as the longest length has bits.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch

_MODULE = "torch._higher_order_ops.associative_scan"


@contextmanager
def scans_of_any_length(model: torch.nn.Module, longest: int) -> Iterator[None]:
    """Where `model` is exported for lengths up to `longest`; nothing changes for models that do not scan so."""
    module = sys.modules[type(model).__module__]
    switches = {"is_torchdynamo_compiling": True, "is_torchdynamo_exporting": False}
    scans = bool(getattr(getattr(model, "config", None), "use_associative_scan", False))
    with ExitStack() as patches:
        if scans and all(hasattr(module, name) for name in switches):
            for name, value in switches.items():
                patches.enter_context(mock.patch.object(module, name, lambda value=value: value))
            patches.enter_context(mock.patch.object(importlib.import_module(_MODULE), "associative_scan", _of(longest)))
        yield


def _of(longest: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def scan(
        _combine: object, pair: Sequence[torch.Tensor], dim: int, **_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = pair
        return recurrence(a, b, dim, longest)

    return scan


def recurrence(a: torch.Tensor, b: torch.Tensor, dim: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The products of `a` and h[t] = a[t] * h[t - 1] + b[t] along `dim`, of at most `longest` steps, h[-1] = 0."""
    length, back = a.shape[dim], 1
    while back < longest:
        beside = [0, 0] * (a.dim() - 1 - dim) + [back, 0]
        before = [torch.nn.functional.pad(x, beside, value=v).narrow(dim, 0, length) for x, v in ((a, 1.0), (b, 0.0))]
        a, b, back = a * before[0], a * before[1] + b, 2 * back
    return a, b
