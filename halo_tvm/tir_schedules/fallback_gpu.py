"""The net for GPUs: TVM's own rule, which binds every spatial loop to blocks and threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.s_tir.dlight.gpu import Fallback as ThreadBinding

from ..errors import Declined
from ._blocks import is_scheduled
from ._rule import Rule, scheduled

if TYPE_CHECKING:
    from ..targets import Target


@dataclass(frozen=True)
class Decision:
    """TVM's rule takes its number of threads from the target: nothing to decide."""


class FallbackGPU(Rule[Decision]):
    """Inline what can be inlined, bind the rest."""

    name = "fallback_gpu"
    Decision = Decision

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        return Decision()

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        if is_scheduled(func):
            return func
        with target.tvm:
            schedule = ThreadBinding().apply(func, target.tvm, False)
        if schedule is None:
            raise Declined("TVM's GPU fallback gave no schedule, no reason given: its blocks cannot be normalised")
        return scheduled(schedule).with_attr("tirx.is_scheduled", True)
