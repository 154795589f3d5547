"""What follows the sums of some windows and one panel: all stages, vector by vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..code.lanes import ceil_div, index, kept, simplify
from ..stages import emit_stages
from ._match import Windows


@dataclass(frozen=True)
class Panels:
    """How many channels of the result are cut into panels of `nr`, the last of which may be filled up with zeros."""

    columns: int
    number: int
    nr: int


def store_place(
    w: Windows,
    sums: ir.Var,
    row: ir.Expr,
    place: Sequence[ir.Expr],
    panel: ir.Expr,
    panels: Panels,
    vector: int,
    first: ir.Expr | int = 0,
) -> None:
    """Run the stages over the window at `place`, whose sums are sums[row], in vectors of so many lanes.

    They are those of panel `panel` of the channels from `first` on.
    """

    def columns(number: ir.Expr | int, lanes: int) -> None:
        """`number` columns of the panel, at least one vector; the last two vectors may overlap."""
        number = index(number) if isinstance(number, int) else number
        with T.serial(ceil_div(number, lanes)) as v:
            at = kept(tirx.min(v * lanes, number - lanes))

            def total(lane: ir.Expr) -> ir.Expr:
                return sums[row, at + lane]

            def where(lane: ir.Expr) -> list[ir.Expr]:
                return [*place, first + panel * panels.nr + at + lane]

            emit_stages(w.stages, {w.acc: total}, w.outputs, where, lanes)

    left = panels.columns - (panels.number - 1) * panels.nr
    if left >= vector:
        columns(simplify(tirx.min(index(panels.nr), panels.columns - panel * panels.nr)), vector)
        return
    narrow = 1 << (left.bit_length() - 1)
    if panels.number == 1:
        columns(left, narrow)
        return
    with T.If(panel < panels.number - 1):
        with T.Then():
            columns(panels.nr, vector)
        with T.Else():
            columns(left, narrow)
