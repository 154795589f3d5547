"""Compile an imported model for this host and run it in this process: no artifact, no reference.

program = compile_in_process(imported)
outputs = program(**{"x": array})          # by name
y, z = program.run_tensors([x])            # DLPack in, DLPack out

The phases and options are those of `compile_model`, and so is the library, which is loaded and deleted. Programs with
equally many threads share one pool, so a thousand programs start no thousand threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tvm_ffi

from .artifact import FunctionSpec, TensorSpec
from .compilation import Compilation
from .config import CompileConfig
from .describe import function_spec
from .imported import ImportedModel
from .level_of_products import precision_of_products
from .params import ParamTable
from .phase_reports import Reports
from .phases import build_alone, lower, schedule
from .records.home import check_named_log
from .runtime.host import resolve_threads
from .runtime.inputs import bind_inputs
from .runtime.runner import LoopThreads
from .runtime.session import Session
from .runtime.tensors import aligned_empty, as_complex, is_complex, to_arrays, to_tensor
from .targets import usable_cpus


class Program:
    """A compiled `main`. Any thread may call it; runs of programs with equally many threads take turns."""

    def __init__(self, spec: FunctionSpec, library: Path, params: ParamTable, threads: int, reports: Reports) -> None:
        """Of the `library` only what is loaded is needed from then on."""
        self.spec = spec
        self.reports = reports
        self._params = params
        self._weights = tuple(_owned(params.materialise(name)) for name in spec.params)
        arguments = [to_tensor(weight) for weight in self._weights]
        self._session = Session(library, "main", arguments, threads, shared=partial(_threads, threads))
        main, kept = self._session.main, self._session.arguments
        self._run = lambda inputs: main(*inputs, *kept)
        self.weight_addresses = frozenset(weight.ctypes.data for weight in self._weights)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        return self.spec.inputs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return self.spec.outputs

    def refresh_weights(self) -> None:
        """Read the weights again from where they came from, and pack them again: they may have changed there."""

        def refresh() -> None:
            for name, weight in zip(self.spec.params, self._weights, strict=True):
                weight[...] = self._params.materialise(name)

        self._session.call(refresh)  # between two runs, never during one

    def __call__(self, *args: object, **kwargs: object) -> dict[str, np.ndarray]:
        """Outputs by name; inputs by position or name, checked and converted as a loaded artifact does."""
        arrays = bind_inputs(self.spec, args, kwargs)
        outputs = to_arrays(self.run_tensors([to_tensor(array) for array in arrays]))
        # A model may hand an input or a weight through, or one value twice: an output changes nothing but itself.
        foreign, own = [*arrays, *self._weights], []
        for output in outputs:
            own.append(output.copy() if any(np.may_share_memory(output, f) for f in foreign) else output)
            foreign.append(own[-1])
        return {
            spec.name: as_complex(output) if is_complex(spec.dtype) else output
            for spec, output in zip(self.spec.outputs, own, strict=True)
        }

    def run_tensors(self, inputs: Sequence[Any]) -> Any:
        """What the virtual machine returns for tensors in the order of `input_specs`, nothing checked or copied.

        One output of torch's inputs is a tensor of torch; several are an array of tvm_ffi's. Inputs must be dense, lie
        at multiples of 64 bytes and have elements. An output may be one of the inputs.
        """
        return self._session.run_within(self._run, inputs)


def compile_in_process(
    imported: ImportedModel, *, threads: int | None = None, level: int = 3, **options: Any
) -> Program:
    """Compile `imported` for this host and keep the code in memory.

    `threads` defaults to HALO_TVM_NUM_THREADS, then to one for each core the calling thread may use; `level` is the opt
    level; `options` are others of `CompileConfig`: `precision`, `log`, `records`. Raises as `compile_model` does.
    """
    config = config_of(imported.name, threads=threads, level=level, **options)
    assert config.threads is not None, "which `config_of` decides"
    products = precision_of_products(imported) if config.precision is None else None
    compilation = Compilation.of(config, products=products)
    compilation.warn_of_unread()
    mod, reports = lower(imported, compilation)
    mod, scheduled = schedule(mod, compilation)
    with TemporaryDirectory(prefix="halo-tvm-") as folder:
        library = Path(folder) / "main.so"
        build_alone(mod, compilation, imported, library)
        spec, reports = function_spec(imported, mod), replace(reports, schedule=scheduled)
        return Program(spec, library, imported.params, config.threads, reports)


def config_of(name: str, *, threads: int | None = None, level: int = 3, **options: Any) -> CompileConfig:
    """The options of `compile_in_process` as those of `compile`; `UsageError` for a value that it refuses."""
    config = CompileConfig(model=name, threads=threads, opt_level=str(level), **options)
    check_named_log(config.log)
    return replace(config, threads=resolve_threads(config.threads, usable_cpus()))


_POOLS: dict[tuple[int, int], LoopThreads] = {}  # by process, since a fork has none of its parent's threads
_MAKING = threading.Lock()


def _threads(count: int, library: tvm_ffi.Module) -> LoopThreads:
    """The pool of so many threads that all programs share; `library` makes it where there is none yet."""
    with _MAKING:
        key = (os.getpid(), count)
        if key not in _POOLS:
            _POOLS[key] = LoopThreads(library, count)
        return _POOLS[key]


def _owned(weight: np.ndarray) -> np.ndarray:
    """`weight` in memory that kernels may read with vectors and DLPack hands over."""
    copy = aligned_empty(weight.shape, weight.dtype)
    copy[...] = weight
    return copy
