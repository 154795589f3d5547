"""Which precisions are worth their loss on which target."""

from __future__ import annotations

from ..errors import UsageError
from ._target import Target

FULL = "fp32"


def check_precision(target: Target, precision: str, *, force: bool = False) -> None:
    """`UsageError` for a precision that `target` computes slower than float32, unless it is forced."""
    if force or precision == FULL or precision in target.isa.precisions:
        return
    served = ", ".join((FULL, *target.isa.precisions))
    raise UsageError(
        f"{target.name} computes {precision} slower than fp32: choose one of {served}, "
        "or add --force-precision to have it all the same"
    )
