"""Artifacts shared by the runtime tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from halo_tvm.runtime import Module, load


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only for tests; those that damage an artifact write their own."""
    return tiny.write_tiny(tmp_path_factory.mktemp("artifact") / "tiny.halo")


@pytest.fixture(scope="session")
def module(artifact: Path) -> Iterator[Module]:
    with load(artifact) as module:
        yield module


@pytest.fixture(scope="session")
def threads_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_threads(tmp_path_factory.mktemp("artifact") / "threads.halo")
