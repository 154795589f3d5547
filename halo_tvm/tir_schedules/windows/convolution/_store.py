"""What follows the sums of some windows and one panel: all stages, vector by vector."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import ceil_div, index, kept, simplify, unravel
from ...stages import emit_stages
from ._problem import Problem


def store(p: Problem, sums: ir.Var, top: ir.Expr, count: ir.Expr, panel: ir.Expr, group: ir.Expr, vector: int) -> None:
    """Run the stages over `count` windows from `top` on, whose sums are the first ones, in vectors of so many lanes."""
    w = p.windows
    with T.serial(count) as r:
        place = [kept(simplify(at)) for at in unravel(simplify(top + r), [w.batch, *w.places])]

        def columns(number: ir.Expr | int, lanes: int) -> None:
            """`number` columns of the panel, at least one vector; the last two vectors may overlap."""
            number = index(number) if isinstance(number, int) else number
            with T.serial(ceil_div(number, lanes)) as v:
                at = kept(tirx.min(v * lanes, number - lanes))

                def total(lane: ir.Expr) -> ir.Expr:
                    return sums[r, at + lane]

                def where(lane: ir.Expr) -> list[ir.Expr]:
                    return [*place, group * p.outer + panel * p.nr + at + lane]

                emit_stages(w.stages, {w.acc: total}, w.outputs, where, lanes)

        left = p.outer - (p.panels - 1) * p.nr
        if left >= vector:
            columns(simplify(tirx.min(index(p.nr), p.outer - panel * p.nr)), vector)
            return
        narrow = 1 << (left.bit_length() - 1)
        if p.panels == 1:
            columns(left, narrow)
            return
        with T.If(panel < p.panels - 1):
            with T.Then():
                columns(p.nr, vector)
            with T.Else():
                columns(left, narrow)
