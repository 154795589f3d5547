"""TVM's own rules for GPUs, each by name, for what the rules here decline.

They fix their tile sizes, so there is nothing to decide. TVM's bare None is recorded as "gives no reason", an error
over a function that they half recognise as `Stopped`. Those for what ours serve (transposes, norms, products of one
row) are not here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight

from ...errors import Declined, Stopped
from ..blocks import is_scheduled
from ..rule import Rule

if TYPE_CHECKING:
    from ...targets import Target


@dataclass(frozen=True)
class Decision:
    """TVM's rules decide by themselves."""


class _Theirs:
    """What all of them share; `theirs` is TVM's rule."""

    Decision = Decision
    theirs: ClassVar[type[dlight.base.ScheduleRule]]

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        _scheduled(self.theirs, func, target)
        return Decision()

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        mod = _scheduled(self.theirs, func, target)
        # Threads that add up together are found by the form of their blocks, which what follows may change.
        lowered = s_tir.transform.LowerCrossThreadReduction()(mod)
        return lowered[mod.get_global_vars()[0]].with_attr("tirx.is_scheduled", True)


@functools.lru_cache(maxsize=1)  # what serves a function is applied to it next
def _scheduled(theirs: type[dlight.base.ScheduleRule], func: tirx.PrimFunc, target: Target) -> tvm.IRModule:
    if is_scheduled(func):
        raise Declined("the function is scheduled already")
    apply = theirs().apply
    with target.tvm:
        try:
            found = apply(func, target.tvm, False)
        except Exception as reason:  # foreign code: whatever it trips over (unpacking, a missing loop) is its refusal
            first = (str(reason).strip() or "nothing more").splitlines()[0][:200]
            raise Stopped(f"TVM's rule stops with {type(reason).__name__}: {first}") from reason
    if found is None:
        raise Declined("TVM's rule gives no reason")
    return found.mod


class DlightReduction(_Theirs, Rule[Decision]):
    """Reductions over trailing or leading axes, with what is fused behind them."""

    name = "dlight_reduction"
    theirs = dlight.gpu.Reduction


class DlightGeneralReduction(_Theirs, Rule[Decision]):
    """Chains of reductions over the same trailing axes."""

    name = "dlight_general_reduction"
    theirs = dlight.gpu.GeneralReduction


class DlightMatmul(_Theirs, Rule[Decision]):
    """Products of matrices."""

    name = "dlight_matmul"
    theirs = dlight.gpu.Matmul
