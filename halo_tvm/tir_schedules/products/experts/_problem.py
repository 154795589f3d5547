"""What the rule reads from a function of `halo.experts`: buffers, sizes, and the arithmetic of its types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ....errors import Declined
from ..gemm.arithmetic import Arithmetic
from ..gemm.groups import Groups


@dataclass(frozen=True)
class Problem:
    """x [rows, k] or [rows, top, k] times the panels of experts: [chunks, experts * panels, steps, nr (, group)]."""

    x: ir.Var
    ids: ir.Var
    weight: ir.Var
    beside_weight: tuple[ir.Var, ...]  # scales, and perhaps least values, by groups
    bias: ir.Var | None
    out: ir.Var
    arithmetic: Arithmetic
    experts: int
    n: int

    @property
    def rows(self) -> ir.Expr:
        return self.ids.ty.shape[0]

    @property
    def top(self) -> int:
        return int(self.ids.ty.shape[1])

    @property
    def pairs(self) -> ir.Expr:
        """Products of a row with an expert."""
        rows = self.rows
        return tirx.IntImm("int64", int(rows) * self.top) if isinstance(rows, tirx.IntImm) else rows * self.top

    @property
    def few(self) -> int | None:
        """The number of pairs where it is known."""
        return int(self.pairs) if isinstance(self.pairs, tirx.IntImm) else None

    @property
    def chunks(self) -> int:
        return int(self.weight.ty.shape[0])

    @property
    def panels(self) -> int:
        """Of one expert."""
        return int(self.weight.ty.shape[1]) // self.experts

    @property
    def kc(self) -> int:
        return int(self.weight.ty.shape[2]) * self.arithmetic.group

    @property
    def nr(self) -> int:
        return int(self.weight.ty.shape[3])

    def at_pair(self, pair: ir.Expr, buffer: ir.Var) -> tuple[ir.Expr, ...]:
        """The leading indices of a row, or of one result of it, in `buffer`."""
        row = pair // self.top
        return (row,) if len(buffer.ty.shape) == 2 else (row, pair % self.top)


def read(func: tirx.PrimFunc, arithmetics: Sequence[Arithmetic]) -> Problem:
    """The problem of `func`, or `Declined`."""
    call = (func.attrs or {}).get("halo.call")
    if call is None or str(call["op"]) != "experts":
        raise Declined(f"serves halo.experts, this function is {'of no operator' if call is None else call['op']}")
    attrs = {str(key): getattr(call[key], "value", call[key]) for key in call.keys()}
    if str(attrs["layout"]) != "packed":
        raise Declined("the experts' weights are not packed")
    bits, least = int(attrs.get("bits", 0)), bool(attrs.get("least", False))
    beside = (2 if least else 1) if bits else 0
    x, ids, weight, *more = [param for param in func.params if hasattr(param.ty, "shape")]
    *more, out = more
    arithmetic = _arithmetic(x, weight, arithmetics, bits)
    if isinstance(arithmetic, Groups):
        depth = int(x.ty.shape[-1])
        arithmetic = arithmetic.of(depth // int(more[0].ty.shape[1]), least)
    bias = more[beside] if len(more) > beside else None
    return Problem(x, ids, weight, tuple(more[:beside]), bias, out, arithmetic, int(attrs["experts"]), int(attrs["n"]))


def _arithmetic(x: ir.Var, weight: ir.Var, arithmetics: Sequence[Arithmetic], bits: int) -> Arithmetic:
    dtypes = (str(x.ty.dtype), str(weight.ty.dtype))
    op = "linear_groups" if bits else "linear"
    served = [a for a in arithmetics if a.op == op and a.dtypes[:2] == dtypes]
    served = [a for a in served if not bits or (isinstance(a, Groups) and a.bits == bits)]
    if not served:
        raise Declined(f"no arithmetic of this target multiplies {dtypes[0]} with experts of {dtypes[1]}")
    return served[0]
