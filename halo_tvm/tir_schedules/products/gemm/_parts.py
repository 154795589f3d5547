"""Columns of a product that are taken apart and meet again behind it: a gate, and what it gates.

Before                                                     after
    y[i, c] = acc[i, c] + bias[c]        c < 2 n               y0[i, j] = sums0[i, j] + bias[j]
    g[i, j] = y[i, j]                    j < n                 y1[i, j] = sums1[i, j] + bias[j + w]
    h[i, j] = silu(g[i, j]) * y[i, j + w]                      g[i, j] = y0[i, j]
                                                               h[i, j] = silu(g[i, j]) * y1[i, j]
Each part has products of its own, sums0 and sums1, so that all stages run over the same [m, n].
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from ....errors import Declined
from ...blocks import loads
from ...stages import Stage, offset_of


def taken_apart(
    acc: ir.Var, stages: Sequence[Stage], outputs: Sequence[ir.Var]
) -> tuple[tuple[ir.Var, ...], tuple[Stage, ...], int]:
    """(the products of each part, the stages on them, columns from one part to the next); one part: (acc), 0 columns.

    `outputs` are buffers that must be written. `Declined` for stages of other widths, parts that do not follow one
    another, and outputs that have the columns of all.
    """
    if not stages:
        return (acc,), (), 0
    widths = [int(stage.out.ty.shape[1].value) for stage in stages]
    wide = [stage for stage, width in zip(stages, widths) if width != widths[-1]]
    narrow = list(stages[len(wide) :])
    sources = [acc, *(stage.out for stage in wide)]
    if any(_displaced(s, [stage.out for stage in narrow]) for s in stages) or widths[-1] in widths[: len(wide)]:
        raise Declined("a stage behind the linear block reads another one beside its own place, or one of more columns")
    found = {offset_of(load, s.axes) for s in narrow for load in loads(s.value) if _among(load.source, sources)}
    offsets = sorted(offset for offset in found if offset is not None)
    if not wide and offsets in ([], [0]):
        return (acc,), tuple(stages), 0
    step = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    if not step or offsets != [part * step for part in range(len(offsets))] or len(set(widths)) > 2:
        raise Declined(
            f"stages behind the linear block differ in their number of columns: {sorted(set(widths))}, and read from "
            f"columns {offsets} on: equal parts side by side are served"
        )
    if any(_displaced(stage, sources) for stage in wide):
        raise Declined("a stage over all parts of the columns reads them beside its own place")
    if any(_among(source, outputs) for source in sources):
        raise Declined("the columns of all parts are an output, and so are stages behind: they would not be stored")
    return _instances(acc, wide, narrow, len(offsets), step)


def _instances(
    acc: ir.Var, wide: Sequence[Stage], narrow: Sequence[Stage], parts: int, step: int
) -> tuple[tuple[ir.Var, ...], tuple[Stage, ...], int]:
    shape = narrow[-1].out.ty.shape
    sources = [acc, *(stage.out for stage in wide)]
    copies = [
        [tirx.decl_buffer(shape, str(source.ty.dtype), f"{source.name}_{part}") for source in sources]
        for part in range(parts)
    ]

    def of_part(stage: Stage, part: int) -> ir.Expr:
        """Its value for one part: vectors of columns are read further along, what was made before is the part's."""
        column = stage.axes[-1]

        def load(node: ir.TensorLoad) -> ir.Expr:
            return next((copies[part][i][stage.axes] for i, s in enumerate(sources) if s.same_as(node.source)), node)

        shifted = (ir.Var, lambda var: column + part * step if var.same_as(column) else var)
        return tvm_ffi.structural_map(tvm_ffi.structural_map(stage.value, shifted), (ir.TensorLoad, load), order="post")

    def meeting(stage: Stage) -> ir.Expr:
        def load(node: ir.TensorLoad) -> ir.Expr:
            at = next((i for i, s in enumerate(sources) if s.same_as(node.source)), None)
            return node if at is None else copies[(offset_of(node, stage.axes) or 0) // step][at][stage.axes]

        return tvm_ffi.structural_map(stage.value, (ir.TensorLoad, load), order="post")

    made = [
        Stage(copies[part][i + 1], of_part(stage, part), stage.axes)
        for part in range(parts)
        for i, stage in enumerate(wide)
    ]
    met = [Stage(stage.out, meeting(stage), stage.axes) for stage in narrow]
    return tuple(copy[0] for copy in copies), (*made, *met), step


def _displaced(stage: Stage, sources: Sequence[ir.Var]) -> bool:
    return any(offset_of(load, stage.axes) != 0 for load in loads(stage.value) if _among(load.source, sources))


def _among(buffer: ir.Var, others: Sequence[ir.Var]) -> bool:
    return any(buffer.same_as(other) for other in others)
