"""Markers, a home directory of the test run's own, and golden files."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from covering import smallest_cover
from hypothesis import HealthCheck, settings

MARKERS = (
    "slow: takes more than about two seconds on an idle core; run with --slow",
    "long: takes about a minute and shares no fixture; begins before all others, so that no process ends long after the"
    " rest",
    "covering(strength): of the combinations of parameters (of fixtures, too) run as many as hold every value (1, the"
    " default) or every pair of values (2); the others are swept",
    "sweep: one more combination of what others hold; run with --sweep",
    "sampled(count, most): run so many of its cases, spread evenly; the next are slow, up to `most` (by"
    " default all), the rest are swept. Of a slow test run `count`, and sweep the rest",
    "arm: needs the ARM cross compiler",
    "cuda: needs an NVIDIA GPU",
)

CPUS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow, as CI does")
    parser.addoption("--sweep", action="store_true", help="also run the combinations that `covering` leaves out")
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


# No test depends on how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


# TVM's decorators of scripts ask for the whole stack. Python looks through all modules, thousands of times, for a frame
# of its own import machinery, which has no file, unless it knows the module.
inspect.modulesbyfile.update({f"<frozen {name}>": name for name in ("importlib._bootstrap", "runpy")})


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    # No test reads or writes the user's tuning logs, in this process or in those it starts.
    config.halo_home = tempfile.mkdtemp(prefix="halo-tvm-home-")
    if hasattr(config, "workerinput"):  # one of several processes, whose home so far is that of the one who started it
        builds = Path(os.environ["HALO_TVM_HOME"], "builds")
        builds.mkdir(exist_ok=True)
        Path(config.halo_home, "builds").symlink_to(builds)
        os.environ["OMP_NUM_THREADS"] = "1"  # torch's: the processes fill the cores
        os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "0"  # threads that wait leave the core to the other processes
    os.environ["HALO_TVM_HOME"] = config.halo_home
    for name in ("HALO_TVM_NUM_THREADS", "HALO_TVM_LOG"):
        os.environ.pop(name, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.halo_home, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from halo_tvm.targets import read_gpus

    mark_swept(items)
    mark_beyond_samples(items)
    if not config.getoption("--sweep"):
        swept = [item for item in items if "sweep" in item.keywords]
        config.hook.pytest_deselected(items=swept)
        items[:] = [item for item in items if "sweep" not in item.keywords]
    items.sort(key=lambda item: "long" not in item.keywords)
    reasons = {
        "slow": None if config.getoption("--slow") else "slow: run with --slow",
        "arm": None
        if shutil.which("aarch64-linux-gnu-g++")
        else "no ARM cross compiler: apt-get install g++-aarch64-linux-gnu",
        "cuda": None if read_gpus() else "no NVIDIA GPU",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """What the imports of all test files made stays: no collection walks through it again. Later ones are rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 50)  # by default 700, 10, 10, which takes a twentieth of the time


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A test that leaves its thread bound to fewer processors is named, and takes them from no other test."""
    if CPUS and os.sched_getaffinity(0) != CPUS:
        os.sched_setaffinity(0, CPUS)
        item.warn(pytest.PytestWarning(f"{item.nodeid} left its thread bound to fewer than {len(CPUS)} processors"))


def mark_swept(items: list[pytest.Item]) -> None:
    """`sweep` for the combinations of a test's parameters that its marker `covering` does not need."""
    tests: dict[tuple[object, ...], list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("covering") and hasattr(item, "callspec"):
            tests.setdefault((item.path, item.cls, item.originalname, "slow" in item.keywords), []).append(item)
    for combinations in tests.values():
        strength = (combinations[0].get_closest_marker("covering").args or (1,))[0]
        needed = smallest_cover([choices_of(item) for item in combinations], strength)
        for number, item in enumerate(combinations):
            if number not in needed:
                item.add_marker(pytest.mark.sweep)


def mark_beyond_samples(items: list[pytest.Item]) -> None:
    """`slow` or `sweep` for the cases of a test beyond those that its marker `sampled` keeps, the first among them."""
    tests: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and "sweep" not in item.keywords:
            tests.setdefault((item.path, item.cls, item.originalname, "slow" in item.keywords), []).append(item)
    for (*_, is_slow), cases in tests.items():
        count, most = (*cases[0].get_closest_marker("sampled").args, len(cases))[:2]
        kept = [{round(i * len(cases) / some) for i in range(some)} for some in (count, count if is_slow else most)]
        for number, item in enumerate(cases):
            if number not in kept[1]:
                item.add_marker(pytest.mark.sweep)
            elif number not in kept[0]:
                item.add_marker(pytest.mark.slow)


def choices_of(item: pytest.Function) -> dict[str, tuple[int, ...]]:
    """What each list of parameters of a test gives it: values of one `parametrize` belong together."""
    given = {name: id(value) for name, value in item.callspec.params.items()}  # one object in all combinations
    choices = {}
    for marker in item.iter_markers("parametrize"):
        names = marker.args[0] if "argnames" not in marker.kwargs else marker.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        choices[",".join(names)] = tuple(given.pop(name) for name in names)
    return choices | {name: (value,) for name, value in given.items()}  # of fixtures


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are written instead of compared with."""
    return bool(request.config.getoption("--update-golden"))
