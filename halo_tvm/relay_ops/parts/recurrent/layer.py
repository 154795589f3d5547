"""What the three recurrent layers are, apart from the cell each names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from tvm import relax

from ...operator import attrs_of
from . import expansion
from .cell import CELLS, Options, options_of
from .reference import reference
from .signature import check_call


class Layer:
    """Mixed into an operator: its name is the name of a cell."""

    semantic: ClassVar = True
    name: ClassVar[str]

    @classmethod
    def options(cls, attrs: dict[str, object]) -> Options:
        return options_of(CELLS[cls.name], attrs)

    @classmethod
    def infer_type(cls, call: relax.Call) -> relax.TupleType:
        return check_call([arg.ty for arg in call.args], cls.options(attrs_of(call)))

    @classmethod
    def expand(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attrs = attrs_of(call)
        return expansion.expand(bb, cls.options(attrs), call, attrs.get("layer"))

    @classmethod
    def reference(cls, *args: np.ndarray, **attrs: object) -> tuple[np.ndarray, ...]:
        return reference(cls.options(attrs), *args)

    @classmethod
    def flops(cls, shapes: Sequence[tuple[int, ...]], **attrs: object) -> int:
        """The two products; the cell is left out."""
        options = cls.options(attrs)
        s, b, i = shapes[0]
        return 2 * s * b * options.directions * options.rows * (i + options.hidden)
