"""TVM's own rules for GPUs, each by name, for what the rules here decline.

They fix their tile sizes, so there is nothing to decide; TVM's bare None is recorded as "gives no reason". Those that
serve nothing beyond ours (transposes, norms, products of one row) are not here; docs/cuda.md has what was emulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tvm import s_tir, tirx
from tvm.s_tir import dlight

from ..errors import Declined
from ._blocks import is_scheduled
from ._rule import Rule

if TYPE_CHECKING:
    from ..targets import Target

# What TVM's rules raise over functions that they half recognise: a wrong number of blocks, a loop that is not there.
_UNREADABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Decision:
    """TVM's rules decide by themselves."""


class _Theirs:
    """What all of them share; `theirs` is TVM's rule."""

    Decision = Decision
    theirs: ClassVar[type[dlight.base.ScheduleRule]]

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        self._schedule(func, target)
        return Decision()

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        mod = self._schedule(func, target).mod
        # Threads that add up together are found by the form of their blocks, which what follows may change.
        lowered = s_tir.transform.LowerCrossThreadReduction()(mod)
        return lowered[mod.get_global_vars()[0]].with_attr("tirx.is_scheduled", True)

    def _schedule(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule:
        if is_scheduled(func):
            raise Declined("the function is scheduled already")
        try:
            with target.tvm:
                found = self.theirs().apply(func, target.tvm, False)
        except _UNREADABLE as reason:
            first = (str(reason).strip() or "nothing more").splitlines()[0][:200]
            raise Declined(f"TVM's rule stops with {type(reason).__name__}: {first}") from reason
        if found is None:
            raise Declined("TVM's rule gives no reason")
        return found[0] if isinstance(found, list) else found


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
