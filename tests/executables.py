"""Scheduled modules as code in memory, for tests that need neither a library nor its threads."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from halo_tvm.any_address import PIPELINE
from halo_tvm.build import lowering
from halo_tvm.code_generation import generating
from halo_tvm.known_sizes import KnownSizes
from halo_tvm.targets import Target


def executable_of(mod: tvm.IRModule, target: Target, plan_memory: bool) -> relax.VMExecutable:
    """Code of `mod` for this host's CPU."""
    with generating(target):
        lowered = lowering(plan_memory)(KnownSizes()(mod))
    kernels = [func for _, func in lowered.functions_items() if isinstance(func, tirx.PrimFunc)]
    with generating(target, kernels):
        return relax.build(lowered, target=target.tvm, relax_pipeline=None, tir_pipeline=PIPELINE)
