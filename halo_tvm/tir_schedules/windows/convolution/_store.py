"""What follows the sums of some windows and one panel: all stages, vector by vector."""

from __future__ import annotations

from tvm import ir
from tvm.script.ir_builder import tirx as T

from .._places import RunningPlace
from .._store import Panels, store_place
from ._problem import Problem


def store(p: Problem, sums: ir.Var, top: ir.Expr, count: ir.Expr, panel: ir.Expr, group: ir.Expr, vector: int) -> None:
    """Run the stages over `count` windows from `top` on, whose sums are the first ones, in vectors of so many lanes."""
    w, panels = p.windows, Panels(p.outer, p.panels, p.nr)
    place = RunningPlace(w, top)
    with T.serial(count) as r:
        store_place(w, sums, r, place.axes, panel, panels, vector, group * p.outer)
        place.advance()
