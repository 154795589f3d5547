"""How a weight becomes integers: schemes by their names, and the linear and the embedding that read each form."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm import relax

from ..errors import Declined, UsageError
from ..params import ParamTable, squares_of
from ..relay_ops import OPERATORS
from ..relay_ops.linear_w8a8 import DEEPEST, GROUP
from ..relay_ops.operator import attrs_of
from ..relay_ops.quantize import ZERO_POINT
from ..targets import Target
from ..tir_schedules.products.packing import pack_shape
from ..weight_groups import GROUPS, Grid, dividing_group
from .weights import WeightEditor

_NAME = re.compile(r"w(?P<bits>8|4)g(?P<group>32|64|128)(?:a8g(?P=group)|(?P<least>m))")
_EXPECTED = "w8a8, w8g32a8g32, w4g32a8g32 or w4g32m, the 32 being 32, 64 or 128"


@dataclass(frozen=True)
class Scheme:
    """`w8a8`: one scale a column. `w<bits>g<group>a8g<group>`: one a group along k, of weights and rows. `m`: with a
    least value beside each scale of the weight, rows as in the others."""

    name: str
    bits: int = 8
    group: int | None = None
    least: bool = False


def scheme_of(name: str) -> Scheme:
    """The scheme called `name`; `UsageError` for another name."""
    if name == "w8a8":
        return Scheme(name)
    found = _NAME.fullmatch(name)
    if found is None or (found["least"] and found["bits"] == "8"):
        raise UsageError(
            f"expected a scheme called {_EXPECTED}, found {name!r:.60}: correct [passes.quantise] in halo.toml"
        )
    return Scheme(name, int(found["bits"]), int(found["group"]), found["least"] is not None)


def stored_scheme(grid: Grid | None) -> str | None:
    """The scheme that has the integers of a file's grid."""
    if grid is None:
        return None
    return f"w{grid.bits}g{grid.group}" + ("m" if grid.least and grid.bits == 4 else f"a8g{grid.group}")


class Weight:
    """A weight as integers: how linears and embeddings read it."""

    layout: str  # of the float32 one
    shares_rows: bool  # whether linears of one input share what `halo.quantize` makes of it
    label: str  # of the format, for the report
    method: str = "rounded"  # how the integers are found, for the report

    def linear(self, call: relax.Call, rows: list[relax.Expr], bias: list[relax.Expr]) -> relax.Call:
        """`call` with this weight, of `rows`: the input, or its integers and their scale where those are shared."""
        raise AssertionError(f"{type(self).__name__} lacks linear")

    def embedding(self, call: relax.Call, ids: relax.Expr) -> relax.Call | None:
        """`call` with this weight; None where it has no form that rows can be read of."""
        raise AssertionError(f"{type(self).__name__} lacks embedding")


@dataclass(frozen=True)
class Columns(Weight):
    """One scale a column."""

    layout: str
    label: str
    integers: relax.Var
    scale: relax.Var
    correction: relax.Var
    shares_rows = True

    def linear(self, call: relax.Call, rows: list[relax.Expr], bias: list[relax.Expr]) -> relax.Call:
        args = [*rows, self.integers, self.scale, self.correction, *bias]
        return OPERATORS["linear_w8a8"].call(*args, **_packed(call))

    def embedding(self, call: relax.Call, ids: relax.Expr) -> relax.Call | None:
        return OPERATORS["embedding"].call(ids, self.integers, self.scale, **_packed(call))


@dataclass(frozen=True)
class Grouped(Weight):
    """A scale, and perhaps a least value, a group; the kernel rounds its rows itself."""

    layout: str
    label: str
    bits: int
    integers: relax.Var
    scale: relax.Var
    least: relax.Var | None
    method: str
    shares_rows = False

    def linear(self, call: relax.Call, rows: list[relax.Expr], bias: list[relax.Expr]) -> relax.Call:
        least = [] if self.least is None else [self.least]
        attrs = {**_packed(call), "bits": self.bits, "least": self.least is not None}
        return OPERATORS["linear_groups"].call(*rows, self.integers, self.scale, *least, *bias, **attrs)

    def embedding(self, call: relax.Call, ids: relax.Expr) -> relax.Call | None:
        if self.bits != 8:
            return None
        return OPERATORS["embedding"].call(ids, self.integers, self.scale, **_packed(call))


def weight_of(
    name: str,
    layout: str,
    k: int,
    n: int,
    scheme: Scheme,
    editor: WeightEditor,
    target: Target,
    *,
    search: bool = True,
    nr: int | None = None,
) -> Weight:
    """The tensor `name`, [k, n] in `layout`, by `scheme`; `Declined` for a k that its groups do not divide.

    Where the group that is asked for does not divide k, the largest that does is taken; the label says which.
    `search` for scales of four bits that lose less than rounding does; panels of `nr` columns where it is given.
    """
    nr = nr or pack_shape(k, n, target)[1]
    panels = -(-n // nr)
    if scheme.group is None:
        if k % GROUP or k > DEEPEST:
            raise Declined(f"k = {k} is no multiple of {GROUP} up to {DEEPEST}")
        label = f"i8/k{GROUP}/n{nr}"
        packed, factor = f"{name}|{label}", f"{name}|i8/scale"
        scale = editor.derive(factor, "w8_scale", [name], (n,), layout=layout)
        shape = (1, panels, k // GROUP, nr, GROUP)
        integers = editor.derive(packed, "w8_pack", [name, factor], shape, "int8", layout=layout, kc=k, nr=nr)
        correction = editor.derive(
            f"{name}|i8/correction", "w8_correction", [packed], (n,), "int32", n=n, zero_point=ZERO_POINT
        )
        return Columns(layout, label, integers, scale, correction)
    group = dividing_group(k, scheme.group)
    if group is None:
        raise Declined(f"k = {k} is no multiple of {GROUPS[-1]}, the smallest group")
    bits, kind = scheme.bits, f"i{scheme.bits}g{group}{'m' if scheme.least else ''}"
    how: dict[str, object] = {"layout": layout, "group": group, "nr": nr, "bits": bits}
    scales = (panels, k // group, nr)
    kept = bits == 4 and stored_scheme(editor.params.grid(name)) == scheme.name
    measured = _measured(name, k, editor.params) if search and bits == 4 and not kept else []
    # Without a text the search pays where a least value goes with the scale; with scales alone rounding is better.
    search = bits == 4 and search and not kept and (scheme.least or bool(measured))
    grid, parts_of = f"{name}|{kind}/grid", ("scale", "least")[: 1 + scheme.least]
    whole = (len(parts_of), *scales)
    editor.derive(grid, "group_grid", [name, *measured], whole, "float16", **how, least=scheme.least, search=search)
    parts = [
        editor.derive(f"{name}|{kind}/{part}", "group_part", [grid], scales, index=index)
        for index, part in enumerate(parts_of)
    ]
    label, shape = f"{kind}/k{32 // bits}/n{nr}", (1, panels, k * bits // 32, nr, 4)
    packed = f"{name}|{label}"
    integers = editor.derive(packed, "group_pack", [name, grid], shape, "uint8", **how)
    method = "kept" if kept else "rounded"
    if search:
        method = "searched, inputs measured" if measured else "searched"
    scale, least = (*parts, None)[:2]
    return Grouped(layout, label, bits, integers, scale, least, method)


def _measured(name: str, k: int, params: ParamTable) -> list[str]:
    """The mean squares of what a weight of depth `k` is multiplied with, if one that it is made of has been measured.

    Weights that were joined read the same rows.
    """
    found = (squares_of(part) for part in params.parts(name))
    return [measured for measured in found if measured in params and params.shape(measured) == (k,)][:1]


def _packed(call: relax.Call) -> dict[str, object]:
    return {**attrs_of(call), "layout": "packed"}
