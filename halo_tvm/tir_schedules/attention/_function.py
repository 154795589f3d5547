"""From a plan to the scheduled function, for the rules that write attention as text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Protocol, TypeVar

from tvm import tirx

from ...prim_text import prim_func
from ..blocks import written_out
from ..code.pair_dot import PRAGMA
from ._problem import Problem
from ._text import Source


class Planned(Protocol):
    """What a rule decided for one call."""

    @property
    def problem(self) -> Problem: ...


P = TypeVar("P", bound=Planned)


def scheduled_as(
    func: tirx.PrimFunc,
    plan: P,
    *stages: Callable[[Source, P], None],
    imports: str = "",
    through_memory: bool = True,
) -> tirx.PrimFunc:
    """`func` with a body that `stages` write one after the other, and may call LLVM text; its attributes stay."""
    src = Source(through_memory)
    src("@T.prim_func(s_tir=True, private=True)")
    with src.under(f"def attention({', '.join(plan.problem.header)}):"):
        src('T.func_attr({"tirx.noalias": True})', *plan.problem.declarations)
        with (
            src.block("root"),
            src.under(f'with T.attr(T.int32(0), "{PRAGMA}", imports):') if imports else nullcontext(),
        ):
            for stage in stages:
                stage(src, plan)
    out = prim_func(src.text(), imports)
    kept = {str(key): func.attrs[key] for key in func.attrs.keys()}
    return written_out(out, out.body).with_attrs({**kept, "tirx.noalias": True})
