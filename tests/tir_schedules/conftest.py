"""The instruction sets of this host that kernels are compiled for and run on."""

from __future__ import annotations

import re

import pytest
from attention_functions import TARGETS

FLAGS = set(re.search(r"^flags\s*:(.*)$", open("/proc/cpuinfo").read(), re.M)[1].split())


@pytest.fixture(params=sorted(TARGETS))
def target(request):
    if not TARGETS[request.param].isa.requires <= FLAGS:
        pytest.skip(f"this CPU lacks {request.param}")
    return TARGETS[request.param]
