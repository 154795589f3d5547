"""Markers, a home directory of the test run's own, and golden files."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than ten seconds; run with --slow")
    config.addinivalue_line("markers", "arm: needs the ARM cross compiler")
    config.addinivalue_line("markers", "cuda: needs an NVIDIA GPU")
    # No test reads or writes the user's tuning logs, in this process or in those it starts.
    config.halo_home = tempfile.mkdtemp(prefix="halo-tvm-home-")
    os.environ["HALO_TVM_HOME"] = config.halo_home
    for name in ("HALO_TVM_NUM_THREADS", "HALO_TVM_LOG"):
        os.environ.pop(name, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.halo_home, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from halo_tvm.targets import read_gpus

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


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are written instead of compared with."""
    return bool(request.config.getoption("--update-golden"))
