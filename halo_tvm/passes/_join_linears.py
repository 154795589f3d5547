"""Linears of one input become one linear: its weight, a recipe, holds their columns side by side."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ..errors import Declined
from ..relay_ops import OPERATORS
from ..relay_ops.operator import attrs_of
from .weights import WeightEditor


def joined(
    projections: Sequence[relax.Call], editor: WeightEditor, layer: object, width: int | None = None
) -> relax.Call:
    """One linear for `projections`, which read the same tensor; `Declined` where they cannot be one.

    With `width` each takes so many columns: zeros stand behind its own.
    """
    first = projections[0]
    layout = attrs_of(first)["layout"]
    if any(attrs_of(p)["layout"] != layout or len(p.args) != len(first.args) for p in projections):
        raise Declined("the projections differ in layout or bias")
    columns = sum(width or _columns(p) for p in projections)
    args = [first.args[0]]
    for position in range(1, len(first.args)):
        names = [editor.name(p.args[position]) for p in projections]
        known = [name for name in names if name is not None]
        if len(known) < len(names) or layout == "packed":
            raise Declined("a projection's weight is no plain parameter")
        axis = 1 if layout == "kn" and position == 1 else 0
        args.append(_side_by_side(known, axis, columns, width, editor))
    return OPERATORS["linear"].call(*args, layout=layout, n=columns, layer=layer)


def _columns(projection: relax.Call) -> int:
    return int(projection.ty.shape.values[-1])


def _side_by_side(names: Sequence[str], axis: int, columns: int, width: int | None, editor: WeightEditor) -> relax.Var:
    shapes = [list(editor.params.shape(name)) for name in names]
    if width is not None:
        names = [_widened(name, axis, width, editor) for name in names]
    whole = [columns if i == axis else size for i, size in enumerate(shapes[0])]
    return editor.derive("+".join(names), "concat", names, whole, axis=axis)


def _widened(name: str, axis: int, width: int, editor: WeightEditor) -> str:
    shape = list(editor.params.shape(name))
    missing = [width - size if i == axis else 0 for i, size in enumerate(shape)]
    if not any(missing):
        return name
    output = f"{name}|{width}"
    wide = [size + more for size, more in zip(shape, missing)]
    editor.derive(output, "pad", [name], wide, widths=[[0, more] for more in missing])
    return output
