"""One loaded library, its virtual machine and who runs it: a thread of its own, or whoever calls (`runner.py`)."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import tvm_ffi

from ..artifact import FunctionSpec
from ..errors import REFUSED, ArtifactCorrupt, EnvironmentProblem, InputError
from . import pools
from .devices import Device, HostDevice
from .runner import InPlace, LoopThreads, Request, Runner, Runs

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class Session:
    """A virtual machine over `library` on `threads` threads; `arguments` follow the inputs of every call.

    Tensors that come in and go out lie in host memory; `device` has its own of what its kernels read. Inputs at the
    places `handed_back`, which kernels write, come out behind what the function returns. `shared` gives, for a loaded
    library, threads that it has in common with others; without it the session has its own.
    """

    def __init__(
        self,
        library: Path,
        function: str,
        arguments: Sequence[tvm_ffi.Tensor],
        threads: int,
        device: Device | None = None,
        handed_back: Sequence[int] = (),
        shared: Callable[[tvm_ffi.Module], LoopThreads] | None = None,
    ) -> None:
        self.threads = threads
        self.function = function
        self._process = os.getpid()
        pools.opened()
        self.device = device or HostDevice()
        self._library = _open_library(library)
        self._runner: Runs
        if self.on_host and InPlace.fits(self._library):
            self._runner = InPlace(self._library, threads, shared(self._library) if shared else None)
        else:
            self._runner = Runner(threads)
        with ExitStack() as undo:
            undo.callback(self.close)
            self._machine = self.call(self.machine)
            self._main = _with_inputs(self.call(lambda: self._entry(function)), handed_back)
            self._arguments = self.call(lambda: self.device.keep(arguments))
            undo.pop_all()

    def machine(self) -> tvm_ffi.Module:
        """A virtual machine of an observer's own; for the session's thread."""
        return self.device.machine(self._library)

    @property
    def arguments(self) -> tuple[tvm_ffi.Tensor, ...]:
        """What follows the inputs of every call, where kernels read it: the weights."""
        return self._arguments

    @property
    def main(self) -> Callable[..., object]:
        """The function, for a task of `run_within`: of inputs and what follows them."""
        return self._main

    @property
    def on_host(self) -> bool:
        """Whether tensors are where kernels need them."""
        return isinstance(self.device, HostDevice)

    def check(self, function: str, spec: FunctionSpec) -> None:
        """`ArtifactCorrupt` where the library's function takes another number of arguments than its manifest says."""
        found, said = self.call(lambda: self._arity(function)), len(spec.inputs + spec.params)
        if found != said:
            raise ArtifactCorrupt(
                f"expected a library whose function {function} takes the {said} inputs and weights of the manifest, "
                f"found one that takes {found}; compile the model again"
            )

    def _entry(self, function: str) -> Callable[..., object]:
        self._arity(function)
        entry: Callable[..., object] = self._machine[function]
        return entry

    def _arity(self, function: str) -> int:
        """How many arguments `function` takes; `ArtifactCorrupt` where the library has none of that name."""
        try:
            found: int = self._machine["get_function_arity"](function)
        except ValueError as error:  # TVM knows no function of that name
            raise ArtifactCorrupt(
                f"expected a library with the function {function!r} of the manifest, found none; "
                "compile the model again"
            ) from error
        return found

    def run(self, inputs: Sequence[tvm_ffi.Tensor]) -> object:
        """Outputs of one run: a tensor, or an array of tensors."""
        with sizes_refused():
            return self._runner.call(self.device.task(self._main, inputs, self._arguments))

    def bind(self, function: str, arguments: Sequence[tvm_ffi.Tensor]) -> Callable[[Sequence[tvm_ffi.Tensor]], object]:
        """Runs of another function of the library, in turn with those of the first.

        `arguments`, which follow its inputs and which it may write into, are `kept` ones.
        """
        main = self.call(lambda: self._entry(function))
        return lambda inputs: self.run_within(self.device.task(main, inputs, arguments))

    def keep(self, tensors: Sequence[tvm_ffi.Tensor]) -> tuple[tvm_ffi.Tensor, ...]:
        """`tensors` where kernels read and write them."""
        return self.call(lambda: self.device.keep(tensors))

    def run_within(self, task: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """`task`, which calls `main`, as one run on the host: no other is between what it does before and after."""
        try:
            return self._runner.call(task, *arguments)
        except (RuntimeError, ValueError):
            with sizes_refused():
                raise

    def run_async(self, inputs: Sequence[tvm_ffi.Tensor], finish: Callable[[object], object]) -> Request:
        """Queue one run, of which `finish` makes the result; waiting for it is the caller's, within `sizes_refused`."""
        run = self.device.task(self._main, inputs, self._arguments)
        return self._runner.submit(lambda: finish(run()))

    def time(self, inputs: Sequence[tvm_ffi.Tensor], *, number: int, repeat: int) -> list[float]:
        """Milliseconds per run, `repeat` samples, each the mean of `number` runs, after one warm-up run.

        Inputs are where kernels read them beforehand, and outputs stay where they are written.
        """
        main, device = self._main, self.device

        def measure() -> list[float]:
            arguments = (*device.keep(inputs), *self._arguments)
            main(*arguments)
            device.synchronize()
            samples = []
            for _ in range(repeat):
                start = time.perf_counter_ns()
                for _ in range(number):
                    main(*arguments)
                device.synchronize()
                samples.append((time.perf_counter_ns() - start) / number / 1e6)
            return samples

        return self.call(measure)

    def prepared(self, inputs: Sequence[tvm_ffi.Tensor]) -> Callable[[int], None]:
        """What runs so many times on `inputs` and waits; they lie where kernels read them, outputs stay there."""
        main, device = self._main, self.device
        arguments = (*self.call(lambda: device.keep(inputs)), *self._arguments)

        def run(number: int) -> None:
            for _ in range(number):
                main(*arguments)
            device.synchronize()

        return lambda number: self.call(lambda: run(number))

    def profile(self, inputs: Sequence[tvm_ffi.Tensor]) -> list[tuple[str, int, float]]:
        """(function, calls, microseconds) of one run, slowest first.

        A function's time is its own: without that of the functions it calls, so that the times add up to the run.
        The run happens on a virtual machine of its own, so that an instrument never slows normal runs.

        Raises
        ------
        EnvironmentProblem
            the library's graph is machine code, whose calls cannot be observed
        """
        device = self.device
        calls: dict[str, list[int]] = {}
        opened: list[list[int]] = [[0, 0]]  # of the run and of every call that has not returned: start, time in calls

        def instrument(func: object, name: str, before: bool, ret: object, *args: object) -> int:
            device.synchronize()
            if before:
                opened.append([time.perf_counter_ns(), 0])
            else:
                start, within = opened.pop()
                elapsed = time.perf_counter_ns() - start
                opened[-1][1] += elapsed
                record = calls.setdefault(str(name), [0, 0])
                record[0] += 1
                record[1] += elapsed - within
            return 0  # let the call happen

        def measure() -> None:
            arguments = (*device.keep(inputs), *self._arguments)
            machine = self.machine()
            machine[self.function](*arguments)
            machine["set_instrument"](instrument)
            machine[self.function](*arguments)

        self.call(measure)
        if not calls:
            raise EnvironmentProblem(
                "expected a library whose graph is bytecode, found one compiled to machine code, whose calls "
                "cannot be observed; compile the model with the default exec_mode to profile it"
            )
        table = [(name, count, elapsed_ns / 1e3) for name, (count, elapsed_ns) in calls.items()]
        return sorted(table, key=lambda row: -row[2])

    def call(self, task: Callable[[], T]) -> T:
        """Run `task` on the session's thread and wait; what it raises is raised here (see `Runs.call`).

        Sizes that do not fit each other end every kind of run with the same sentence.
        """
        with sizes_refused():
            return self._runner.call(self.device.alone(task))

    def close(self) -> None:
        """End the runner after the requests already queued, and give back much memory of runs; twice is fine."""
        self._runner.close()
        self._machine = self._main = _closed  # a machine keeps what it returned last
        if os.getpid() == self._process:  # in a fork the pools' lock may be held for ever
            with suppress(RuntimeError):  # of a GPU that is lost
                pools.closed(self.on_host)


def _closed(*_arguments: object) -> object:
    """In place of the functions of a closed module, which no runner calls."""
    raise AssertionError("a run of a closed module")


def _with_inputs(function: Callable[..., object], places: Sequence[int]) -> Callable[..., object]:
    """`function` that gives its arguments at `places`, too, behind its results."""
    if not places:
        return function
    return lambda *arguments: (function(*arguments), *(arguments[place] for place in places))


# What TVM says of a tensor of another rank or type, at a function's entry and at a kernel's.
_OF_ANOTHER_KIND = re.compile(
    r"Tensor with (?:ndim|dtype) \S+ but get \S+|Mismatched \S+\.(?:ndim|dtype)(?= on argument)"
)


@contextmanager
def sizes_refused() -> Iterator[None]:
    """A run that ends because sizes do not fit each other ends with an `InputError`.

    Sizes that depend on values, or that a model assumes, are compared while it runs. Ranks and types that the library
    does not take are `ArtifactCorrupt`.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        text = str(error)
        if REFUSED in text:
            found = text[text.index(REFUSED) + len(REFUSED) :].split("\n")[0].strip()
        elif "match_cast" in text:
            pair = re.search(r"\((-?\d+) vs\.? (-?\d+)\)", text)
            found = f"{pair[1]} where the model needs {pair[2]}" if pair else "others"
        elif other := _OF_ANOTHER_KIND.search(text):
            raise ArtifactCorrupt(
                f"expected tensors of the ranks and types that the library takes, found {other[0]}: its manifest or "
                "its weights are not those that it was compiled with; compile the model again"
            ) from error
        else:
            raise
        raise InputError(
            f"sizes do not fit each other: expected inputs that make them equal and not negative, found {found}; "
            "give inputs of other sizes"
        ) from error


def _open_library(path: Path) -> tvm_ffi.Module:
    """Load `path` under a name no loaded library has.

    The dynamic loader takes an equal name for an equal file, so an artifact compiled again at the
    same path would otherwise silently give the library that was loaded before.
    """
    with tempfile.TemporaryDirectory(prefix="halo-tvm-") as folder:
        link = Path(folder) / "library.so"  # `path` may be that of an open file, which has no suffix
        link.symlink_to(path.absolute())
        library: tvm_ffi.Module = tvm_ffi.load_module(str(link))
        return library
