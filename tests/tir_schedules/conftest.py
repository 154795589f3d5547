"""The instruction sets of this host that kernels are compiled for and run on."""

from __future__ import annotations

import pytest
from attention_functions import TARGETS

from halo_tvm.targets import read_host


@pytest.fixture(params=sorted(TARGETS))
def target(request):
    if not TARGETS[request.param].isa.requires <= read_host().flags:
        pytest.skip(f"this CPU lacks {request.param}")
    return TARGETS[request.param]
