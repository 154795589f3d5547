"""Compile an imported model for this host and run it in this process: no artifact, no linker, no reference.

program = compile_in_process(imported)
outputs = program(**{"x": array})          # by name
y, z = program.run_tensors([x])            # DLPack in, DLPack out

The phases are those of `compile_model`, without tuning records; machine code goes straight into memory.
Programs with equally many threads share one runner thread and its pool, so a thousand programs start no
thousand threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import tvm_ffi

from .artifact import FunctionSpec, TensorSpec
from .build import executable_of, with_bounds
from .describe import function_spec
from .imported import ImportedModel
from .passes import Context, Overrides, pipeline
from .passes.schedule import schedule_functions
from .plugins import load_plugins
from .runtime.devices import HostDevice
from .runtime.host import resolve_threads
from .runtime.inputs import bind_inputs
from .runtime.session import Runner, sizes_refused
from .runtime.tensors import aligned_empty, to_arrays, to_tensor
from .targets import Target, resolve, usable_cpus


class Program:
    """A compiled `main`. Any thread may call it; runs queue on the runner's thread."""

    def __init__(
        self,
        spec: FunctionSpec,
        main: Callable[..., object],
        runner: Runner,
        weights: Sequence[np.ndarray],
        reports: Mapping[str, object],
    ) -> None:
        self.spec = spec
        self.reports = reports
        self._main = main
        self._runner = runner
        self._weights = tuple(weights)
        self._arguments = tuple(to_tensor(weight) for weight in weights)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        return self.spec.inputs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return self.spec.outputs

    def __call__(self, *args: object, **kwargs: object) -> dict[str, np.ndarray]:
        """Outputs by name; inputs by position or name, checked and converted as a loaded artifact does."""
        arrays = bind_inputs(self.spec, args, kwargs)
        outputs = to_arrays(self.run_tensors([to_tensor(array) for array in arrays]))
        # a model may hand an input or a weight through: an output must change neither, nor change with them
        foreign = (*arrays, *self._weights)
        own = [o.copy() if any(np.may_share_memory(o, f) for f in foreign) else o for o in outputs]
        return {spec.name: output for spec, output in zip(self.spec.outputs, own, strict=True)}

    def run_tensors(self, inputs: Sequence[tvm_ffi.Tensor]) -> object:
        """What the virtual machine returns for tensors in the order of `input_specs`, nothing checked or copied.

        Inputs must be dense, lie at multiples of 64 bytes and have elements. An output may be one of the inputs.
        """
        main, arguments = self._main, (*inputs, *self._arguments)
        with sizes_refused():
            return self._runner.call(lambda: main(*arguments))


def compile_in_process(
    imported: ImportedModel, *, target: str | Target = "cpu", threads: int | None = None, level: int = 3
) -> Program:
    """Compile `imported` for this host and keep the code in memory.

    `threads` defaults to HALO_TVM_NUM_THREADS, then to every CPU the calling thread may use; `level` is the opt
    level. Raises a `HaloError` as `compile_model` does.
    """
    count = resolve_threads(threads, usable_cpus())
    resolved = _target(target, count) if isinstance(target, str) else target
    steps = pipeline.Pipeline.of(level)
    context = Context(imported.params, resolved, imported.ranges, imported.typical, Overrides())
    mod, lift = steps.run(pipeline.LIFT, imported.mod, context)
    mod, optimise = steps.run(pipeline.OPTIMISE, mod, context)
    mod, schedule = schedule_functions(mod, resolved, vector_math=steps.runs_named("vector_math"))
    mod = with_bounds(mod, imported.ranges)
    spec = function_spec(imported, mod)
    library = executable_of(mod, resolved, steps.runs_named("plan_memory")).jit()
    runner = _runner(count, os.getpid())
    main = runner.call(lambda: HostDevice().machine(library)["main"])
    weights = [_owned(imported.params.materialise(name)) for name in spec.params]
    reports = {
        "import": imported.report,
        "lift": lift.get("lift", {}),
        "optimise": optimise,
        "schedule": schedule,
    }
    return Program(spec, main, runner, weights, reports)


@cache
def _target(text: str, threads: int) -> Target:
    """Plug-ins loaded and the host read once per process: together a tenth of a small compilation."""
    load_plugins()
    return resolve(text, cores=threads)


@cache
def _runner(threads: int, _pid: int) -> Runner:
    """The one runner with that many threads; a fork has none of its parent's threads and gets its own."""
    return Runner(threads)


def _owned(weight: np.ndarray) -> np.ndarray:
    """`weight` in memory that kernels may read with vectors and DLPack hands over."""
    copy = aligned_empty(weight.shape, weight.dtype)
    copy[...] = weight
    return copy
