"""The measurement worker and the tests import `toy_rules` by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import toy_rules

from halo_tvm.targets import TARGETS

# The toy target is registered while a test here runs: tests of the registry must not see it.
del TARGETS["toy"]


@pytest.fixture(autouse=True)
def toy_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "toy", toy_rules.SPEC)
