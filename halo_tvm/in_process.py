"""Compile an imported model for this host and run it in this process: no artifact, no linker, no reference.

program = compile_in_process(imported)
outputs = program(**{"x": array})          # by name
y, z = program.run_tensors([x])            # DLPack in, DLPack out

The phases and options are those of `compile_model`; machine code goes straight into memory.
Programs with equally many threads share one runner thread and its pool, so a thousand programs start no
thousand threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import tvm_ffi

from .artifact import FunctionSpec, TensorSpec
from .compilation import Compilation
from .config import CompileConfig
from .describe import function_spec
from .imported import ImportedModel
from .params import ParamTable
from .phase_reports import Reports
from .phases import build_in_memory, lower, schedule
from .runtime.devices import HostDevice
from .runtime.host import resolve_threads
from .runtime.inputs import bind_inputs
from .runtime.runner import Runner
from .runtime.session import sizes_refused
from .runtime.tensors import aligned_empty, to_arrays, to_tensor
from .targets import usable_cpus


class Program:
    """A compiled `main`. Any thread may call it; runs queue on the runner's thread."""

    def __init__(
        self,
        spec: FunctionSpec,
        main: Callable[..., object],
        runner: Runner,
        params: ParamTable,
        reports: Reports,
    ) -> None:
        self.spec = spec
        self.reports = reports
        self._main = main
        self._runner = runner
        self._params = params
        self._weights = tuple(_owned(params.materialise(name)) for name in spec.params)
        self._arguments = tuple(to_tensor(weight) for weight in self._weights)
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

        self._runner.call(refresh)  # between two runs, never during one

    def __call__(self, *args: object, **kwargs: object) -> dict[str, np.ndarray]:
        """Outputs by name; inputs by position or name, checked and converted as a loaded artifact does."""
        arrays = bind_inputs(self.spec, args, kwargs)
        outputs = to_arrays(self.run_tensors([to_tensor(array) for array in arrays]))
        # a model may hand an input or a weight through: an output must change neither, nor change with them
        foreign = (*arrays, *self._weights)
        own = [o.copy() if any(np.may_share_memory(o, f) for f in foreign) else o for o in outputs]
        return {spec.name: output for spec, output in zip(self.spec.outputs, own, strict=True)}

    def run_tensors(self, inputs: Sequence[tvm_ffi.Tensor]) -> Any:
        """What the virtual machine returns for tensors in the order of `input_specs`, nothing checked or copied.

        Inputs must be dense, lie at multiples of 64 bytes and have elements. An output may be one of the inputs.
        """
        main, arguments = self._main, (*inputs, *self._arguments)
        with sizes_refused():
            return self._runner.call(lambda: main(*arguments))


def compile_in_process(
    imported: ImportedModel, *, threads: int | None = None, level: int = 3, **options: Any
) -> Program:
    """Compile `imported` for this host and keep the code in memory.

    `threads` defaults to HALO_TVM_NUM_THREADS, then to every CPU the calling thread may use; `level` is the opt
    level; `options` are others of `CompileConfig`: `precision`, `log`, `records`. Raises as `compile_model` does.
    """
    count = resolve_threads(threads, usable_cpus())
    config = CompileConfig(model=imported.name, threads=count, opt_level=str(level), **options)
    compilation = Compilation.of(config)
    mod, reports = lower(imported, compilation)
    mod, scheduled = schedule(mod, compilation)
    library = build_in_memory(mod, compilation, imported).jit()
    spec = function_spec(imported, mod)
    runner = _runner(count, os.getpid())
    main = runner.call(lambda: HostDevice().machine(library)["main"])
    return Program(spec, main, runner, imported.params, replace(reports, schedule=scheduled))


@cache
def _runner(threads: int, _pid: int) -> Runner:
    """The one runner with that many threads; a fork has none of its parent's threads and gets its own."""
    return Runner(threads)


def _owned(weight: np.ndarray) -> np.ndarray:
    """`weight` in memory that kernels may read with vectors and DLPack hands over."""
    copy = aligned_empty(weight.shape, weight.dtype)
    copy[...] = weight
    return copy
