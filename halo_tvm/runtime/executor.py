"""A loaded artifact: called like a function, or through set_input / run / get_output.

module = load("gpt2.halo")
logits = module(input_ids=ids)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import tvm_ffi

from ..artifact import Manifest, OpenArtifact, TensorSpec, is_computed, names_in, opened
from ..errors import InputError, UnknownName, UsageError
from ..targets import usable_cpus
from .direct import DirectCalls
from .gpu import device_of
from .host import choose_variant, load_tvm_runtime, resolve_threads
from .inputs import UnknownInput, bind_inputs, generate_inputs, typical_sizes
from .owned import OwnedOutputs
from .pending import Pending
from .session import Session, sizes_refused
from .state import KeptState
from .tensors import to_tensor
from .tracing import Trace, trace
from .weights import MODES, load_weights

Outputs = np.ndarray | tuple[np.ndarray, ...]


@dataclass(frozen=True)
class BenchmarkResult:
    """Milliseconds per run; each sample is the mean of `number` runs."""

    samples: tuple[float, ...]
    number: int

    @property
    def median_ms(self) -> float:
        return self._percentile(50)

    @property
    def p10_ms(self) -> float:
        return self._percentile(10)

    @property
    def p90_ms(self) -> float:
        return self._percentile(90)

    def _percentile(self, q: float) -> float:
        return float(np.percentile(self.samples, q))


def load(
    path: Path | str | OpenArtifact,
    *,
    threads: int | None = None,
    weights: str = "map",
    verify: bool = True,
    function: str = "main",
    seed: int | None = None,
) -> Module:
    """Verify the artifact at `path` (or one that is open), pick the largest variant this host runs, and load it.

    `threads` defaults to HALO_TVM_NUM_THREADS, then to one for each core the calling thread may use. `weights`
    is "map" (shared with the page cache) or "resident" (one copy in huge pages). `verify=False` skips
    the hashes, not the sizes. `seed` says which random numbers a model draws; without one, two loads draw others.

    Raises
    ------
    UsageError
        no artifact at `path`, an option out of range, or a seed for a model that draws nothing
    ArtifactCorrupt
        a file differs from the manifest
    EnvironmentProblem
        the host lacks an instruction set, the runtime is missing, or the artifact is too new
    """
    count = resolve_threads(threads, usable_cpus())
    if weights not in MODES:
        raise UsageError(
            f"weights: expected {' or '.join(map(repr, MODES))}, found {weights!r}; leave it out for 'map'"
        )
    with opened(path, hashes=verify) as artifact:
        manifest = artifact.manifest
        if function not in manifest.functions:
            raise UnknownName("function", function, manifest.functions)
        variant = choose_variant(manifest.variants)
        load_tvm_runtime()
        device = device_of(variant)
        spec = manifest.functions[function]
        state = KeptState(spec, seed)
        loaded = load_weights(artifact, variant.params, spec.params, weights)
        library = artifact.location(variant.library)
        session = Session(library, function, loaded.tensors, count, device, spec.handed_back)
        with ExitStack() as undo:
            undo.callback(session.close)
            session.check(function, spec)
            module = Module(manifest, function, session, loaded.memory, state)
            undo.pop_all()
        return module


class Module:
    """One function of a loaded artifact. Any thread may call it; runs queue on the session's thread.

    `set_input`, `run` and `get_output` keep inputs and outputs on the module, as graph executors do: for one
    caller at a time. Outputs stay valid after later runs.
    """

    def __init__(
        self, manifest: Manifest, function: str, session: Session, weights: np.ndarray, state: KeptState
    ) -> None:
        self.manifest = manifest
        self.spec = manifest.functions[function]
        self._function = function
        self._session = session
        self._state = state
        self._outputs_of = OwnedOutputs(self.spec, weights)
        self._direct = DirectCalls(self.spec, session, self._outputs_of)
        self._inputs: dict[str, object] = {}
        self._outputs: tuple[np.ndarray, ...] = ()

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        return self.spec.inputs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return self.spec.outputs

    @property
    def num_outputs(self) -> int:
        return len(self.spec.outputs)

    @property
    def threads(self) -> int:
        return self._session.threads

    def __call__(self, /, *args: object, **kwargs: object) -> Outputs:
        """Outputs of one run: an array, or a tuple when the model has several.

        A model with state continues where the last call ended and returns the outputs without the state; a call
        that passes the state gets it back, too. Of several threads that call one, each goes on where another ended.
        """
        if self.spec.state and not self._state.passed(args, kwargs):
            outputs = self._state.call(args, kwargs, lambda given: self._run(bind_inputs(self.spec, args, given)))
        else:
            outputs = self._call(args, kwargs)
        return outputs[0] if len(outputs) == 1 else outputs

    def run_async(self, /, *args: object, **kwargs: object) -> Pending[Outputs]:
        """Queue one run and return at once; the handle's `result()` is what the call would return.

        Inputs are checked here. They belong to the run until it is done: an array that changes meanwhile changes
        what is computed. Runs of one module are done in the order they were queued, among them those of `__call__`.
        `UsageError` for a model that keeps state, unless the state is passed: its next call begins with what this
        one leaves.
        """
        if self.spec.state and not self._state.passed(args, kwargs):
            raise UsageError(
                f"run_async was expected to get all inputs, but the state ({', '.join(self.spec.state)}) is what the "
                "run before leaves; pass the state, or call the module"
            )
        tensors = [to_tensor(array) for array in bind_inputs(self.spec, args, kwargs)]
        # Copies are made within the run: behind it the caller may change an input that is handed through.
        request = self._session.run_async(tensors, lambda result: self._owned(result, tensors))

        def wait(timeout_s: float | None) -> Outputs:
            with sizes_refused():
                outputs: tuple[np.ndarray, ...] = request.wait(timeout_s)  # type: ignore[assignment]
            return outputs[0] if len(outputs) == 1 else outputs

        return Pending(lambda: not request.done.locked(), wait)

    def reset_state(self) -> None:
        """Forget the state of earlier calls."""
        self._state.reset()

    def set_input(self, name: str | None = None, value: object = None, /, **inputs: object) -> None:
        """Keep inputs for the next runs, one as (name, value) or several by keyword; checked by `run`."""
        given = {**({name: value} if name is not None else {}), **inputs}
        for key in given:
            if key not in {t.name for t in self.spec.inputs}:
                raise UnknownInput(key, [t.name for t in self.spec.inputs])
        self._inputs.update(given)

    def run(self, /, **inputs: object) -> None:
        """Run on the inputs that were set, with `inputs` set first."""
        if inputs:
            self.set_input(**inputs)
        self._outputs = self._call((), self._inputs)

    def get_output(self, which: int | str = 0) -> np.ndarray:
        """An output of the last `run`, by position or name."""
        if not self._outputs:
            raise UsageError("expected outputs of a run, found none; call run() first")
        if isinstance(which, str):
            names = [t.name for t in self.spec.outputs]
            if which not in names:
                raise UnknownName("output", which, names)
            return self._outputs[names.index(which)]
        if not 0 <= which < len(self._outputs):
            raise UsageError(f"expected an output from 0 to {len(self._outputs) - 1}, found {which}; see num_outputs")
        return self._outputs[which]

    def benchmark(
        self,
        *,
        number: int = 10,
        repeat: int = 10,
        sizes: dict[str, int] | None = None,
        seed: int = 0,
        **inputs: object,
    ) -> BenchmarkResult:
        """Time runs on the session's thread; inputs not given are made by `example_inputs`."""
        if number < 1 or repeat < 1:
            raise UsageError(f"expected number and repeat of at least 1, found {number} and {repeat}; pass more")
        samples = self._session.time(self._example(sizes, seed, inputs), number=number, repeat=repeat)
        return BenchmarkResult(tuple(samples), number)

    def prepared(self, /, **inputs: object) -> Callable[[int], None]:
        """For whoever times runs among others': a call of it runs so many times on these inputs and waits.

        Nothing but the runs is in that time: inputs lie where kernels read them, outputs stay where they are written.
        """
        arrays = bind_inputs(self.spec, (), inputs)
        return self._session.prepared([to_tensor(array) for array in arrays])

    def example_inputs(
        self, given: Mapping[str, object] | None = None, *, sizes: Mapping[str, int] | None = None, seed: int = 0
    ) -> dict[str, np.ndarray]:
        """All inputs in order: those `given`, checked, and seeded ones for the rest.

        A dimension that neither `sizes` nor `given` determine takes the model's typical size, else what
        `generate_inputs` chooses.
        """
        given, names = given or {}, [t.name for t in self.spec.inputs]
        own = _sizes_of(self.spec.inputs, given)
        _check_sizes(self.spec.inputs, own, sizes or {})
        known = {**typical_sizes(self.manifest, self._function), **own, **(sizes or {})}
        generated = generate_inputs(self.spec, sizes=known, seed=seed) if set(names) - set(given) else {}
        return dict(zip(names, bind_inputs(self.spec, (), {**generated, **given}), strict=True))

    def profile(
        self, *, sizes: dict[str, int] | None = None, seed: int = 0, **inputs: object
    ) -> list[tuple[str, int, float]]:
        """(kernel, calls, microseconds) of one run, slowest first; each call carries about 1 us of its own.

        The virtual machine's own functions (`vm.builtin.`) are rows, too. No time is in two rows.
        """
        return self._session.profile(self._example(sizes, seed, inputs))

    def trace(self, *, rounds: int = 10, sizes: dict[str, int] | None = None, seed: int = 0, **inputs: object) -> Trace:
        """Every call of one run in order, with its shapes, weights and median time over `rounds`."""
        if rounds < 1:
            raise UsageError(f"expected rounds of at least 1, found {rounds}; pass more")
        return trace(self._session, self._example(sizes, seed, inputs), rounds)

    def close(self) -> None:
        """End the session's threads; a later call is an error."""
        self._direct.forget()
        self._session.close()

    def __enter__(self) -> Module:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _example(self, sizes: dict[str, int] | None, seed: int, inputs: dict[str, object]) -> list[tvm_ffi.Tensor]:
        return [to_tensor(array) for array in self.example_inputs(inputs, sizes=sizes, seed=seed).values()]

    def _call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[np.ndarray, ...]:
        """One run, on the shortest road that these inputs allow."""
        outputs = self._direct.run(args, kwargs)
        if outputs is None:
            arrays = bind_inputs(self.spec, args, kwargs)
            outputs = self._run(arrays)
            self._direct.learn(arrays)
        return outputs

    def _run(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        tensors = [to_tensor(array) for array in arrays]
        return self._owned(self._session.run(tensors), tensors)

    def _owned(self, result: object, inputs: Sequence[tvm_ffi.Tensor]) -> tuple[np.ndarray, ...]:
        """What a run on `inputs` returned, as arrays of the caller's own; what kernels wrote is the run's own copy,
        which may be handed out once."""
        written = self.spec.written
        return self._outputs_of(
            result, {t.data_ptr() for t, spec in zip(inputs, self.spec.inputs) if spec.name not in written}
        )


def _check_sizes(specs: tuple[TensorSpec, ...], own: Mapping[str, int], asked: Mapping[str, int]) -> None:
    """Refuse sizes of dimensions that there are not, and those that given inputs have otherwise."""
    dims = {name for spec in specs for d in spec.shape for name in names_in(d)}
    for dim, size in asked.items():
        if dim not in dims:
            raise UnknownName("dimension", dim, dims)
        if own.get(dim, size) != size:
            raise InputError(
                f"expected {dim} to be {size}, as asked, found inputs in which it is {own[dim]}: leave one of the two "
                "out"
            )


def _sizes_of(specs: tuple[TensorSpec, ...], inputs: Mapping[str, object]) -> dict[str, int]:
    """Sizes of the symbolic dimensions that the given inputs determine."""
    sizes: dict[str, int] = {}
    for spec in specs:
        shape = np.shape(inputs[spec.name]) if spec.name in inputs else ()  # type: ignore[call-overload]
        if len(shape) == len(spec.shape):
            pairs = zip(spec.shape, shape, strict=True)
            sizes.update({d: n for d, n in pairs if isinstance(d, str) and not is_computed(d)})
    return sizes
