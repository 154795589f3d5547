"""One loaded library and the one thread that runs it.

TVM's worker pool belongs to the thread that calls a kernel, and the virtual machine is not
thread-safe. So a session owns a runner thread: it builds the virtual machine, configures *its* pool and
serves requests in order; callers on any thread queue. No setting of the host process changes: neither
the affinity of the calling thread nor the pool of another session or of other users of TVM.

Workers are unpinned: they may run on every CPU the creating thread could use. The pool pins by default;
its "share all cores" mode with the full CPU list undoes that per pool.

A call costs about 27 us on top of the virtual machine's own time for one input and one output, 45 us for
three and three; 15 us of it is the hand-over to the runner and back (scripts/runtime_overhead.py).
"""

from __future__ import annotations

import os
import queue
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import tvm_ffi

from ..errors import REFUSED, EnvironmentProblem, InputError, UsageError
from ..targets import usable_cpus
from .devices import Device, HostDevice

T = TypeVar("T")
_SHARE_ALL_CORES = -3  # affinity mode of runtime.config_threadpool
_EXIT_WAIT_S = 5.0


@dataclass
class Request:
    """A task for the runner; the lock is held until it is done."""

    task: Callable[[], object]
    done: threading.Lock = field(default_factory=threading.Lock)
    result: object = None
    error: BaseException | None = None

    def wait(self, timeout_s: float | None = None) -> object:
        """What the task returned or raised; `TimeoutError` while it is not done after so many seconds."""
        if not self.done.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            raise TimeoutError(f"a run was expected to end within {timeout_s} s, and goes on: ask again")
        self.done.release()  # whoever asks next finds it done
        try:
            if self.error is not None:
                raise self.error
            return self.result
        finally:
            del self  # the error refers to this frame: the cycle would keep the inputs alive


class Runner:
    """A thread with a TVM pool of `threads` threads that serves tasks in order; any thread may submit them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pid = os.getpid()
        self._closed = False
        self._submission = threading.Lock()  # orders close() after requests that were accepted
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        # daemon, so that a forgotten runner does not keep the interpreter alive; the finalizer ends it
        # properly when the runner is collected or the interpreter exits, whichever comes first
        self._thread = threading.Thread(target=_serve, args=(self._requests,), name="halo-tvm-runner", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _stop, self._requests, self._thread, self._pid)
        cpus = usable_cpus()
        with ExitStack() as undo:
            undo.callback(self.close)
            self.call(lambda: configure_threads(threads, cpus))
            undo.pop_all()

    def call(self, task: Callable[[], T]) -> T:
        """Run `task` on the runner thread and wait; what it raises is raised here.

        Raises
        ------
        UsageError
            it is closed
        EnvironmentProblem
            the process is a fork of the one that started the thread (threads do not survive a fork)
        """
        request = self.submit(task)
        try:
            return request.wait()  # type: ignore[return-value]
        finally:
            del request  # its error refers to this frame: the cycle would keep the inputs alive

    def submit(self, task: Callable[[], object]) -> Request:
        """Queue `task` and return at once. Raises as `call` does, but for what the task raises: that is waited for."""
        if os.getpid() != self._pid:
            raise EnvironmentProblem(
                f"expected a call from process {self._pid}, which loaded the module, found its fork {os.getpid()}; "
                "load the module in the child process, after the fork"
            )
        request = Request(task)
        request.done.acquire()
        with self._submission:
            if self._closed:
                raise UsageError("expected an open module, found a closed one; load it again")
            self._requests.put(request)
        return request

    def close(self) -> None:
        """End the runner after the requests already queued; closing twice is fine."""
        if os.getpid() != self._pid:
            return  # a fork has no runner, and the lock may be held for ever
        with self._submission:
            self._closed = True
        self._finalizer()


class Session:
    """A virtual machine over `library` on `threads` threads; `arguments` follow the inputs of every call.

    Tensors that come in and go out lie in host memory; `device` has its own of what its kernels read.
    """

    def __init__(
        self,
        library: Path,
        function: str,
        arguments: Sequence[tvm_ffi.Tensor],
        threads: int,
        device: Device | None = None,
    ) -> None:
        self.threads = threads
        self.function = function
        self.device = device or HostDevice()
        self._runner = Runner(threads)
        with ExitStack() as undo:
            undo.callback(self.close)
            self._library = self.call(lambda: _open_library(library))
            self._machine = self.call(self.machine)
            self._main = self.call(lambda: self._machine[function])
            self._arguments = self.call(lambda: self.device.keep(arguments))
            undo.pop_all()

    def machine(self) -> tvm_ffi.Module:
        """A virtual machine of an observer's own; for the session's thread."""
        return self.device.machine(self._library)

    @property
    def arguments(self) -> tuple[tvm_ffi.Tensor, ...]:
        """What follows the inputs of every call, where kernels read it: the weights."""
        return self._arguments

    def run(self, inputs: Sequence[tvm_ffi.Tensor]) -> object:
        """Outputs of one run: a tensor, or an array of tensors."""
        with sizes_refused():
            return self._runner.call(self.device.task(self._main, inputs, self._arguments))

    def bind(self, function: str, arguments: Sequence[tvm_ffi.Tensor]) -> Callable[[Sequence[tvm_ffi.Tensor]], object]:
        """Runs of another function of the library, in turn with those of the first.

        `arguments`, which follow its inputs and which it may write into, are `kept` ones.
        """
        main = self.call(lambda: self._machine[function])
        return lambda inputs: self._runner.call(self.device.task(main, inputs, arguments))

    def keep(self, tensors: Sequence[tvm_ffi.Tensor]) -> tuple[tvm_ffi.Tensor, ...]:
        """`tensors` where kernels read and write them."""
        return self.call(lambda: self.device.keep(tensors))

    def run_async(self, inputs: Sequence[tvm_ffi.Tensor]) -> Request:
        """Queue one run; waiting for it is the caller's, within `sizes_refused`."""
        return self._runner.submit(self.device.task(self._main, inputs, self._arguments))

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

        The run happens on a virtual machine of its own, so that an instrument never slows normal runs.

        Raises
        ------
        EnvironmentProblem
            the library's graph is machine code, whose calls cannot be observed
        """
        device = self.device
        calls: dict[str, list[int]] = {}
        starts: list[int] = []

        def instrument(func: object, name: str, before: bool, ret: object, *args: object) -> int:
            device.synchronize()
            if before:
                starts.append(time.perf_counter_ns())
            else:
                record = calls.setdefault(str(name), [0, 0])
                record[0] += 1
                record[1] += time.perf_counter_ns() - starts.pop()
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
        """Run `task` on the session's thread and wait; what it raises is raised here (see `Runner.call`)."""
        return self._runner.call(self.device.alone(task))

    def close(self) -> None:
        """End the runner after the requests already queued; closing twice is fine."""
        self._runner.close()


@contextmanager
def sizes_refused() -> Iterator[None]:
    """A run that ends because sizes do not fit each other ends with an `InputError`.

    Sizes that depend on values, or that a model assumes, are compared while it runs.
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
        else:
            raise
        raise InputError(
            f"sizes do not fit each other: expected inputs that make them equal and not negative, found {found}; "
            "give inputs of other sizes"
        ) from error


def configure_threads(threads: int, cpus: Sequence[int]) -> None:
    """Give the calling thread a TVM pool of `threads` threads (itself included), free to run on all `cpus`.

    The pool's size is the length of the first CPU list this thread ever configures with; a later call
    only changes where the threads may run.
    """
    names = [str(cpu) for cpu in cpus]
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    configure(_SHARE_ALL_CORES, threads, names[:threads])
    if 1 < threads < len(cpus):
        configure(_SHARE_ALL_CORES, threads, names)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)  # this thread only; the pool has just narrowed it


def _open_library(path: Path) -> tvm_ffi.Module:
    """Load `path` under a name no loaded library has.

    The dynamic loader takes an equal name for an equal file, so an artifact compiled again at the
    same path would otherwise silently give the library that was loaded before.
    """
    with tempfile.TemporaryDirectory(prefix="halo-tvm-") as folder:
        link = Path(folder) / path.name
        link.symlink_to(path.absolute())
        library: tvm_ffi.Module = tvm_ffi.load_module(str(link))
        return library


def _serve(requests: queue.SimpleQueue[Request | None]) -> None:
    while (request := requests.get()) is not None:
        try:
            request.result = request.task()
        except BaseException as error:  # noqa: BLE001 - a thread boundary: raised again in the caller
            request.error = error
        request.done.release()
        del request  # outputs belong to the caller; the idle runner holds none


def _stop(requests: queue.SimpleQueue[Request | None], thread: threading.Thread, pid: int) -> None:
    """End the runner and its workers; in a fork there is none. The runner itself may drop the last reference."""
    if os.getpid() != pid:
        return
    requests.put(None)
    if thread is not threading.current_thread():
        thread.join(_EXIT_WAIT_S)
