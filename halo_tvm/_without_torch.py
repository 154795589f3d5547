"""TVM is imported without PyTorch, which it would load wherever it is installed.

`tvm_ffi` and `tvm` try `import torch` at their head: for a conflict on Windows, and for conversions that nothing here
asks for. In an environment that has PyTorch, this cost every command and every child process 2.3 s of processor time
and 200 MB. So while a thread imports one of the two, it finds no `torch`, as in an environment without it.
Where PyTorch is loaded already nothing changes. Tensors of a PyTorch that is loaded later pass by DLPack, as all others
do; only TVM's own `use_torch_stream`, and `torch.dtype` as an argument, need PyTorch to be there before this package.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_ROOTS = ("tvm_ffi", "tvm")


class _Depth(threading.local):
    """How many of `_ROOTS` the thread is importing."""

    imports = 0


_depth = _Depth()


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        _depth.imports += 1
        try:
            super().exec_module(module)
        finally:
            _depth.imports -= 1


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch" and _depth.imports:
            raise ModuleNotFoundError("TVM is imported without PyTorch (halo_tvm/_without_torch.py)", name=name)
        if name not in _ROOTS or "torch" in sys.modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Take part in the process's imports, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
