"""Threads: who computes, where it may run, what the host process notices, how everything ends."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
from children import fork

from halo_tvm.errors import ArtifactCorrupt, EnvironmentProblem, UsageError
from halo_tvm.runtime import Module, load, runner

ROOT = Path(__file__).parents[2]
CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def thread_ids(module: Module) -> list[int]:
    """Ids of the threads that computed, in order of the loop."""
    return list(dict.fromkeys(module(np.zeros(64, np.int64)).tolist()))


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def ended(before: set[str]) -> bool:
    """Whether all threads started since `before` are gone; their last steps are the system's, so it waits."""
    deadline = time.monotonic() + 120  # two busy cores may keep a thread from its end for long
    while tasks() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    return not tasks() - before


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120, cwd="/")


@two_cpus
def test_two_threads_compute_unpinned_and_neither_is_the_caller(threads_artifact: Path) -> None:
    with load(threads_artifact, threads=2) as module:
        ids = thread_ids(module)
        assert len(ids) == 2 and threading.get_native_id() not in ids
        for thread in ids:
            assert sorted(os.sched_getaffinity(thread)) == CPUS
    assert sorted(os.sched_getaffinity(0)) == CPUS


@two_cpus
def test_fewer_threads_than_cpus_may_use_all_of_them(threads_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "usable_cpus", lambda: (CPUS[0], *CPUS))  # pretend there is one more
    with load(threads_artifact, threads=2) as module:
        ids = thread_ids(module)
        assert len(ids) == 2 and all(sorted(os.sched_getaffinity(i)) == CPUS for i in ids)


def test_one_thread(threads_artifact: Path) -> None:
    with load(threads_artifact, threads=1) as module:
        (only,) = thread_ids(module)
        assert only != threading.get_native_id()
        assert sorted(os.sched_getaffinity(only)) == CPUS


@two_cpus
def test_sessions_have_pools_of_their_own(threads_artifact: Path) -> None:
    with load(threads_artifact, threads=1) as one, load(threads_artifact, threads=2) as two:
        assert (len(thread_ids(one)), len(thread_ids(two)), len(thread_ids(one))) == (1, 2, 1)
        assert not set(thread_ids(one)) & set(thread_ids(two))


def test_the_pool_of_the_calling_thread_is_left_alone(threads_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm_ffi

    # asking for the number creates the asking thread's pool, which would pin that thread
    monkeypatch.setenv("TVM_BIND_THREADS", "0")

    def ask() -> tuple[int, int, int]:
        count = tvm_ffi.get_global_func("runtime.NumThreads")
        before = count()
        with load(threads_artifact, threads=len(CPUS)) as module:
            thread_ids(module)
            during = count()
        return before, during, count()

    with load(threads_artifact), ThreadPoolExecutor(1) as pool:  # the runtime is loaded
        assert len(set(pool.submit(ask).result())) == 1


@pytest.mark.slow
def test_threads_end_with_the_module(threads_artifact: Path) -> None:
    runner._end_parked()
    before = set()
    while before != tasks():  # pools of earlier tests end
        before = tasks()
        time.sleep(0.5)
    module = load(threads_artifact)
    thread_ids(module)
    assert len(tasks() - before) == len(CPUS)
    module.close()
    module.close()
    assert ended(before)
    with pytest.raises(UsageError, match="expected an open module, found a closed one; load it again"):
        module(np.zeros(64, np.int64))
    module = load(threads_artifact)
    thread_ids(module)
    del module
    gc.collect()
    assert ended(before)


def test_a_failed_load_leaves_no_thread(tmp_path: Path) -> None:
    path = tiny.write_tiny(tmp_path / "t.halo", functions={"other": tiny.SPEC})
    before = tasks()
    with pytest.raises(
        ArtifactCorrupt, match="expected a library with the function 'other' of the manifest, found none"
    ):
        load(path, function="other")
    gc.collect()
    assert ended(before)


@pytest.mark.parametrize("shape", [("batch", tiny.K, 1), ("batch", tiny.K)])
def test_tensors_that_the_library_does_not_take_are_refused(tmp_path: Path, shape: tuple[str | int, ...]) -> None:
    """A sealed manifest may promise other ranks and types than the library has."""
    x = dataclasses.replace(tiny.SPEC.inputs[0], shape=shape, dtype="float32" if len(shape) == 3 else "float64")
    spec = dataclasses.replace(tiny.SPEC, inputs=(x, *tiny.SPEC.inputs[1:]))
    with load(tiny.write_tiny(tmp_path / "t.halo", functions={"main": spec})) as module:
        with pytest.raises(ArtifactCorrupt, match="expected tensors of the ranks and types that the library takes"):
            module(x=np.zeros([2 if d == "batch" else d for d in shape], x.dtype), ids=np.zeros(2, np.int64))


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.sampled(1)
def test_loading_and_closing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: bool) -> None:
    """Threads, descriptors, mapped and temporary files, memory; `scripts/load_and_close.py` is the long form."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import load_and_close

    path = tiny.write_threads(tmp_path / "t.halo", pool)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, after = load_and_close.cycles(load_and_close.net(path), 20, within_s=60)
    assert not load_and_close.more(before, after)


def test_much_memory_of_runs_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import load_and_close

    x, before = np.ones(1 << 26, np.float32), load_and_close.state()["MB"]
    with load(tiny.write_busy(tmp_path / "t.halo")) as module:
        module(x=x, rounds=np.zeros(1, np.float32))
        assert load_and_close.state()["MB"] > before + 200
    assert load_and_close.state()["MB"] < before + 32


def test_eight_callers_get_their_own_answers(module: Module) -> None:
    w = tiny.weight().astype(np.float64)

    def caller(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(40):
            x = random.standard_normal((int(random.integers(1, 17)), tiny.K), dtype=np.float32)
            ids = random.integers(0, 100, len(x))
            y, x_out, ids_out = module(x=x, ids=ids)
            np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-4)
            np.testing.assert_array_equal(x_out, x)
            np.testing.assert_array_equal(ids_out, ids)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(caller, seed) for seed in range(8)]:
            future.result()


def test_closing_while_others_call_never_hangs(artifact: Path) -> None:
    module = load(artifact)
    x, ids = np.zeros((2, tiny.K), np.float32), np.zeros(2, np.int64)
    started = threading.Barrier(5)

    def caller() -> int:
        started.wait()
        for count in range(1_000_000):
            try:
                module(x, ids)
            except UsageError:
                return count
        raise AssertionError("the module was never closed")

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(caller) for _ in range(4)]
        started.wait()
        module.close()
        for future in futures:
            future.result(timeout=60)


def test_an_error_in_a_run_reaches_its_caller_only(module: Module) -> None:
    def fail() -> None:
        raise ZeroDivisionError("in the runner")

    with pytest.raises(ZeroDivisionError, match="in the runner"):
        module._session.call(fail)
    assert module(np.zeros((1, tiny.K), np.float32), np.zeros(1, np.int64))[0].shape == (1, tiny.N)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_is_told_to_load_again_and_can(threads_artifact: Path) -> None:
    module = load(threads_artifact)
    thread_ids(module)
    read, write = os.pipe()
    child = fork()
    if child == 0:
        try:
            thread_ids(module)
            message = "no error"
        except EnvironmentProblem as error:
            module.close()
            message = str(error)
        with load(threads_artifact) as again:
            message += f" | {len(thread_ids(again))}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        message = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "load the module in the child process, after the fork" in message
    assert message.endswith(f"| {len(CPUS)}")
    assert len(thread_ids(module)) == len(CPUS)
    module.close()


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "del m",
        "m.close()",
        "import sys; sys.exit(3)",
        "raise RuntimeError",
        "import threading; m.t = threading.Thread(target=m, args=(x,)); m.t.start()",
    ],
)
def test_the_interpreter_ends_quietly(threads_artifact: Path, ending: str) -> None:
    code = (
        "from halo_tvm.runtime import load; import numpy as np; x = np.zeros(64, 'int64')\n"
        f"m = load({str(threads_artifact)!r}); m(x)\n{ending}"
    )
    done = run_python(code)
    assert done.returncode == (3 if "exit" in ending else 1 if "raise" in ending else 0), done.stderr
    assert "raise" in ending or done.stderr == ""


LOADED = "set(l.split('/')[-1].strip() for l in open('/proc/self/maps') if 'libtvm_' in l and 'libtvm_ffi' not in l)"


def test_only_the_runtime_library_is_loaded(threads_artifact: Path) -> None:
    done = run_python(
        "import sys, numpy as np; from halo_tvm.runtime import load\n"
        f"with load({str(threads_artifact)!r}) as m: print(m(np.zeros(64, 'int64')).shape)\n"
        f"print(sorted({LOADED})); print('tvm' in sys.modules, 'onnx' in sys.modules)"
    )
    assert done.stdout.splitlines() == ["(64,)", "['libtvm_runtime.so']", "False False"], done.stderr


@pytest.mark.parametrize("first", ["import tvm", "load"])
def test_together_with_the_compiler_in_either_order(threads_artifact: Path, first: str) -> None:
    steps = [
        "import tvm; assert tvm.get_global_func('target.llvm_get_system_cpu')()",
        f"m = load({str(threads_artifact)!r}); m(x)",
    ]
    if first == "load":
        steps.reverse()
    done = run_python(
        "from halo_tvm.runtime import load; import numpy as np; x = np.zeros(64, 'int64')\n"
        + "\n".join([*steps, "m(x); print('fine')"])
    )
    assert done.stdout == "fine\n", done.stderr


@two_cpus
def test_a_narrowed_affinity_mask_is_respected(threads_artifact: Path) -> None:
    code = (
        f"import os; os.sched_setaffinity(0, {{{CPUS[-1]}}})\n"
        "from halo_tvm.runtime import load; import numpy as np\n"
        f"m = load({str(threads_artifact)!r}); ids = set(m(np.zeros(64, 'int64')).tolist())\n"
        "print(m.threads, len(ids), [sorted(os.sched_getaffinity(i)) for i in ids])"
    )
    done = run_python(code)
    assert done.stdout == f"1 1 [[{CPUS[-1]}]]\n", done.stderr


@pytest.mark.parametrize("call", ["module(x, rounds)", "module.run_async(x, rounds).result()"])
@pytest.mark.sampled(1)
def test_the_interpreter_exits_while_a_thread_runs_a_model(call: str, tmp_path: Path) -> None:
    path = tiny.write_busy(tmp_path / "busy.halo")
    code = f"""
import threading, time
import numpy as np
from halo_tvm.runtime import load
module = load({str(path)!r}, threads=2)
x, rounds = np.zeros(4096, np.float32), np.full(1, 500, np.float32)
def work():
    while True:
        {call}
{call}
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
