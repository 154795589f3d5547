"""Who runs a library: whoever calls, or a thread of its own with a pool of TVM's workers.

Libraries for CPUs bring their pool along (`launcher/`): `InPlace` runs them on the calling thread, one call at a time,
since a virtual machine is not thread-safe.

Others (for a GPU, from C source, of earlier versions) launch on TVM's pool, which belongs to the thread that calls a
kernel and is configured there. So a `Runner` has a thread: it configures *its* pool and serves requests in order;
callers on any thread queue. No setting of the host process changes: neither the affinity of the calling thread nor the
pool of another runner or of other users of TVM. A thread whose runner was closed is parked for a second, and the next
runner with as many threads on the same CPUs takes it: a process that loads and closes a thousand modules has one.

Workers are unpinned: they may run on every CPU the creating thread could use. The pool pins by default; its "share
all cores" mode with the full CPU list undoes that per pool.

The hand-over to that thread and back costs about 15 us.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar, TypeVarTuple

import tvm_ffi

from ..errors import EnvironmentProblem, UsageError
from ..launcher import END, POOL, USE
from ..targets import usable_cpus

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_SHARE_ALL_CORES = -3  # affinity mode of runtime.config_threadpool
_EXIT_WAIT_S = 5.0
_PARKED_S = 1.0


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


class Runs(Protocol):
    """Who runs tasks, one at a time and in order."""

    def call(self, task: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run `task` on `arguments` and wait; what it raises is raised here.

        Raises
        ------
        UsageError
            it is closed
        EnvironmentProblem
            the process is a fork of the one it was made in (threads do not survive a fork)
        """

    def submit(self, task: Callable[[], object]) -> Request:
        """Queue `task` and return at once. Raises as `call` does, but for what the task raises: that is waited for."""

    def close(self) -> None:
        """End after the requests already queued; closing twice is fine."""


class Runner:
    """A thread with a TVM pool of `threads` threads that serves tasks in order; any thread may submit them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pid = os.getpid()
        self._closed = False
        self._submission = threading.Lock()  # orders close() after requests that were accepted
        self._thread = _Thread.take(threads, tuple(usable_cpus()))
        # when the runner is collected or the interpreter exits, whichever comes first
        self._finalizer = weakref.finalize(self, _Thread.park, self._thread)
        with ExitStack() as undo:
            undo.callback(self.close)
            self.call(self._thread.configure)
            undo.pop_all()

    def call(self, task: Callable[[*Ts], T], *arguments: *Ts) -> T:
        request = self.submit(partial(task, *arguments))
        try:
            return request.wait()  # type: ignore[return-value]
        finally:
            del request  # its error refers to this frame: the cycle would keep the inputs alive

    def submit(self, task: Callable[[], object]) -> Request:
        _refuse_fork(self._pid)
        request = Request(task)
        request.done.acquire()
        with self._submission:
            if self._closed:
                raise UsageError("expected an open module, found a closed one; load it again")
            self._thread.requests.put(request)
        return request

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork has no runner, and the lock may be held for ever
        with self._submission:
            self._closed = True
        self._finalizer()


class LoopThreads:
    """A pool for the parallel loops of libraries that bring one along: of the one that made it, and of others.

    lock: held by whoever uses it, since it serves one call at a time
    """

    def __init__(self, library: tvm_ffi.Module, threads: int) -> None:
        """Of `threads`, the caller is one; the others begin with the first loop that is offered to them."""
        start, end = (library.get_function(name, True) for name in (POOL, END))
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.handle: int = start(threads)
        self._library = library  # its code is what the threads run
        # When this is collected or the interpreter exits; finalizers run newest first: runners end before their pool.
        self._finalizer = weakref.finalize(self, _end_pool, end, self.handle, self.pid, self.lock)

    def close(self) -> None:
        """End the threads and wait for them, unless a run takes longer than that waits; closing twice is fine."""
        if self._finalizer():
            self.handle = 0  # what is queued still runs its loops on TVM's threads
            self.lock.release()


class InPlace:
    """Runs tasks on the calling thread, one at a time; parallel loops use a pool that came with the library.

    What is queued without waiting needs a thread all the same. From the first such request on, every task goes
    there, which keeps their order.
    """

    def __init__(self, library: tvm_ffi.Module, threads: int, shared: LoopThreads | None = None) -> None:
        """For a `library` that has a pool to give: it makes one for itself, unless it uses a `shared` one."""
        self._pool = shared or LoopThreads(library, threads)
        self._own = shared is None
        self._pid = self._pool.pid
        self._closed = False
        self._lock = self._pool.lock
        self._behind: Runner | None = None
        self._use = library.get_function(USE, True)

    @staticmethod
    def fits(library: tvm_ffi.Module) -> bool:
        """Whether `library` brings a pool along."""
        return bool(library.implements_function(POOL, query_imports=True))

    def call(self, task: Callable[[*Ts], T], *arguments: *Ts) -> T:
        _refuse_fork(self._pid)
        if self._behind is None:
            with self._lock:
                if self._closed:
                    raise UsageError("expected an open module, found a closed one; load it again")
                if self._behind is None:
                    return self._within(task, *arguments)
        return self._behind.call(self._locked, task, *arguments)

    def submit(self, task: Callable[[], object]) -> Request:
        _refuse_fork(self._pid)
        if self._behind is None:  # else nobody waits for the lock here, which a run holds; a closed runner refuses, too
            with self._lock:
                if self._closed:
                    raise UsageError("expected an open module, found a closed one; load it again")
                if self._behind is None:
                    self._behind = Runner(1)
        return self._behind.submit(lambda: self._locked(task))

    def _locked(self, task: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """`_within`, on the thread of its own, in turn with whoever else uses the pool."""
        with self._lock:
            return self._within(task, *arguments)

    def _within(self, task: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """`task` with the calling thread's loops on the pool."""
        self._use(self._pool.handle)
        try:
            return task(*arguments)
        finally:
            self._use(0)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            behind = self._behind
        if behind is not None:
            behind.close()
        if self._own:
            self._pool.close()


class _Thread:
    """A thread that serves requests until it is told to end, and the pool that hangs on it."""

    _parked: dict[tuple[int, int, tuple[int, ...]], list[_Thread]] = {}  # by process, threads and CPUs
    _parking = threading.Lock()

    def __init__(self, threads: int, cpus: tuple[int, ...]) -> None:
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._key = (os.getpid(), threads, cpus)
        self._configured = False
        # daemon, so that a forgotten runner does not keep the interpreter alive
        self._thread = threading.Thread(target=self._serve, name="halo-tvm-runner", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, threads: int, cpus: tuple[int, ...]) -> _Thread:
        """A parked thread with such a pool, else a new one."""
        with cls._parking:
            free = cls._parked.get((os.getpid(), threads, cpus))
            if free:
                return free.pop()
        return cls(threads, cpus)

    def configure(self) -> None:
        """On the thread itself: give it its pool, once."""
        _, threads, cpus = self._key
        if not self._configured:
            configure_threads(threads, cpus)
            self._configured = True

    def park(self) -> None:
        """Wait for what is queued and keep the thread for the next runner; one that does not come to an end is left
        to end by itself. A fork has no such thread; the thread itself may drop the last reference to its runner."""
        if os.getpid() != self._key[0]:
            return
        if self._thread is not threading.current_thread():
            last = Request(lambda: None)
            last.done.acquire()
            self.requests.put(last)
            if not last.done.acquire(timeout=_EXIT_WAIT_S):
                self.requests.put(None)
                return
        with self._parking:
            self._parked.setdefault(self._key, []).append(self)
        self.requests.put(Request(lambda: None))  # it begins to wait for the end of its time

    def end(self) -> None:
        self.requests.put(None)
        self._thread.join(_EXIT_WAIT_S)

    def _serve(self) -> None:
        while (request := self._next()) is not None:
            try:
                request.result = request.task()
            except BaseException as error:  # noqa: BLE001 - a thread boundary: raised again in the caller
                request.error = error
            if request.done.locked():
                request.done.release()
            del request  # outputs belong to the caller; the idle runner holds none

    def _next(self) -> Request | None:
        """The next request; None when it is time to end."""
        while True:
            waiting = self in self._parked.get(self._key, ())
            try:
                return self.requests.get(timeout=_PARKED_S if waiting else None)
            except queue.Empty:
                with self._parking:
                    parked = self._parked.get(self._key, [])
                    if self in parked:
                        parked.remove(self)
                        return None


def _forget_parked() -> None:
    """In a fork, which has none of its parent's threads, and where the lock may be held for ever."""
    _Thread._parked, _Thread._parking = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget_parked)


@atexit.register
def _end_parked() -> None:
    """Before the interpreter takes itself apart: no thread may be inside of a library then."""
    with _Thread._parking:
        threads = [thread for parked in _Thread._parked.values() for thread in parked]
        _Thread._parked.clear()
    for thread in threads:
        thread.end()


def _end_pool(end: Callable[[int], object], pool: int, pid: int, lock: threading.Lock) -> bool:
    """End a pool that nobody uses, and hold its lock from then on; False where somebody goes on using it.

    The interpreter may exit while a daemon thread runs a model: it must neither lose its pool nor begin another run.
    A fork has none of its parent's threads.
    """
    if os.getpid() != pid or not lock.acquire(timeout=_EXIT_WAIT_S):
        return False
    end(pool)
    return True


def _refuse_fork(pid: int) -> None:
    if os.getpid() != pid:
        raise EnvironmentProblem(
            f"expected a call from process {pid}, which loaded the module, found its fork {os.getpid()}; "
            "load the module in the child process, after the fork"
        )


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
