"""Compiled models inside PyTorch.

    module = halo_tvm.integrations.torch.HaloModule("gpt2.halo")     an artifact as `nn.Module`
    fast = torch.compile(model.eval(), backend="halo_tvm")           graphs compiled in this process
    print(halo_tvm.integrations.torch.report())                      what was compiled, what was not, and why

See docs/torch_compile.md: what runs compiled, gradients, sizes, changed weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .module import HaloModule
from .reports import EagerFallback, GraphReport, Report, report

if TYPE_CHECKING:
    from .backend import compile_backend

__all__ = ["EagerFallback", "GraphReport", "HaloModule", "Report", "compile_backend", "report"]


def __getattr__(name: str) -> object:
    """The backend with torch.compile, which takes longer to import than all else here, when it is asked for."""
    if name != "compile_backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .backend import compile_backend

    return compile_backend
