"""Scheduled modules as code in memory, for tests that need neither a library nor its threads."""

from __future__ import annotations

import tvm
from tvm import relax

from halo_tvm.any_address import PIPELINE
from halo_tvm.build import lowering
from halo_tvm.code_generation import generating
from halo_tvm.known_sizes import KnownSizes
from halo_tvm.targets import Target


def executable_of(mod: tvm.IRModule, target: Target, plan_memory: bool) -> relax.VMExecutable:
    """Code of `mod` for this host's CPU."""
    with generating(target):
        return relax.build(
            KnownSizes()(mod), target=target.tvm, relax_pipeline=lowering(plan_memory), tir_pipeline=PIPELINE
        )
