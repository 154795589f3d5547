"""Numbers that count from a start to a stop: of `arange` and ONNX's Range."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, tirx


def counted(
    emit: Callable[[relax.Expr], relax.Var],
    start: int | tirx.PrimExpr,
    stop: int | tirx.PrimExpr,
    step: int | tirx.PrimExpr,
) -> relax.Var:
    """int64 start, start + step, ... in front of `stop`; all three are numbers or expressions of sizes.

    Downwards it counts up and turns the sign: relax.op.arange takes the length of a step below zero for two more than
    it is, where only the run knows sizes.
    """
    if isinstance(step, int) and step < 0:
        return emit(relax.op.negative(emit(relax.op.arange(-start, -stop, -step, "int64"))))
    return emit(relax.op.arange(start, stop, step, "int64"))
