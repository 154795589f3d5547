"""Recognise what the rule serves: a packed linear block and the element-wise stages behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from ....errors import Declined
from ...blocks import Block, is_const, loads
from ...code.prefetch import CACHE_LINE_BYTES
from ...code.timed import timed_values
from ...stages import Stage, is_at, main_and_behind, read_stage, written_by
from .._product import linear_store
from ._parts import taken_apart
from .arithmetic import Arithmetic
from .groups import Groups
from .served import of_block, without_marks

_LOOKED_AT_FROM = 6  # rows: looking at a panel takes as long as two of its product


@dataclass(frozen=True)
class Chain:
    """x [m, k] times weight [chunks, parts * panels, kc / group, nr (, group)], then stages, all over [m, n].

    Panel p of part q of the columns is panel p + q * panels of the weight.
    """

    x: ir.Var
    weight: ir.Var
    sums: tuple[ir.Var, ...]  # of each part the buffer that its products are read from
    arithmetic: Arithmetic
    stages: tuple[Stage, ...]
    outputs: tuple[ir.Var, ...]  # buffers of the stages (or sums) that are function parameters
    m: ir.Expr
    n: int
    chunks: int
    panels: int  # of one part
    kc: int
    nr: int
    beside_weight: tuple[ir.Var, ...] = ()  # what else the product reads: scales of a weight in groups
    timed: tuple[int, ...] = ()  # the only numbers of rows that matter; empty: all do
    split: int = 1  # so many panels here are one of the weight

    def split_into(self, pieces: int) -> Chain:
        """The same with each panel of the weight cut into `pieces` of whole vectors, each a panel of its own."""
        if pieces == 1:
            return self
        nr = self.nr // pieces
        return replace(self, nr=nr, panels=-(-self.n // nr), split=pieces)

    @property
    def parts(self) -> int:
        return len(self.sums)

    def vectors(self, lanes_f32: int) -> int:
        """Registers that hold the sums of one row of a panel."""
        return self.nr // (lanes_f32 * self.arithmetic.lane_factor)

    @property
    def steps(self) -> int:
        """Steps of the k loop over one chunk."""
        return self.kc // self.arithmetic.group

    @property
    def panel_bytes(self) -> int:
        """Size of one panel of one chunk."""
        return self.steps * self.nr * self._weight_bytes * (int(self.weight.ty.shape[4]) if self._in_steps else 1)

    @property
    def _in_steps(self) -> bool:
        """Whether the weight has its values of one step side by side."""
        return len(self.weight.ty.shape) == 5

    @property
    def _weight_bytes(self) -> int:
        return DataType(str(self.weight.ty.dtype)).itemsize

    def weight_line(self, chunk: ir.Expr | int, panel: ir.Expr, line: ir.Expr) -> ir.TensorLoad:
        """The first element of a cache line of a panel; it may lie beyond the panel and the tensor."""
        inner = [0] * (len(self.weight.ty.shape) - 3)
        return self.weight[(chunk, panel, *inner, line * (CACHE_LINE_BYTES // self._weight_bytes))]

    @property
    def rows(self) -> int | None:
        """The number of rows when it is static."""
        return int(self.m.value) if isinstance(self.m, tirx.IntImm) else None


def match(func: tirx.PrimFunc, arithmetics: Sequence[Arithmetic]) -> Chain:
    """The chain `func` consists of, in one of `arithmetics`; raises Declined with the first reason why it is none."""
    main, behind = main_and_behind(func, dict.fromkeys(a.op for a in arithmetics), "the linear block")
    x, weight, acc, arithmetic, beside = (_grouped if main.op == Groups.op else _linear)(main, arithmetics)
    m = main.extents[0]
    chunks, panels, steps, nr = (int(d.value) for d in weight.ty.shape[:4])
    stages: Sequence[Stage] = ()
    for block in behind:
        stages = (*stages, _stage(block, [acc, *(s.out for s in stages)], m))
    sums, stages, step = taken_apart(acc, stages, func.params)
    few = isinstance(m, tirx.IntImm) and int(m) < _LOOKED_AT_FROM
    if few or len(sums) > 1:  # several panels at once are not looked at
        arithmetic = without_marks(arithmetic, arithmetics)
    outputs = written_by(stages, acc, func)
    n = int(outputs[-1].ty.shape[1].value)
    if step:
        if chunks > 1 or step % nr or step * len(sums) != panels * nr:
            raise Declined(
                f"parts of {step} columns are not served of {panels} panels of {nr} in {chunks} chunks: whole panels "
                "that are all of the weight, in one chunk"
            )
        panels //= len(sums)
    if not (panels - 1) * nr < n <= panels * nr:
        raise Declined(f"{n} columns do not match {panels} panels of {nr}: crop behind the linear block")
    if chunks > 1 and outputs[-1].ty.dtype != arithmetic.total:
        kept = f"the output, which is {outputs[-1].ty.dtype}, not {arithmetic.total}"
        raise Declined(f"K chunks keep partial sums in {kept}")
    kc, timed = steps * arithmetic.group, timed_values(func, m)
    return Chain(x, weight, sums, arithmetic, tuple(stages), outputs, m, n, chunks, panels, kc, nr, beside, timed)


Operators = tuple[ir.Var, ir.Var, ir.Var, Arithmetic, tuple[ir.Var, ...]]


def _grouped(block: Block, arithmetics: Sequence[Arithmetic]) -> Operators:
    """The same of a block whose weight has scales, and perhaps least values, by groups along k."""
    store = block.store
    if store is None or not block.plain or block.kinds != "SSR":
        raise Declined("the block of a weight in groups is not a single store over rows, columns and k")
    operands = [load for load in loads(store.value) if not load.source.same_as(store.buffer)]
    dtypes = [str(load.source.ty.dtype) for load in operands]
    if dtypes not in (["float32", "uint8", "float16"], ["float32", "uint8", "float16", "float16"]):
        raise Declined(f"expected rows, integers, scales and perhaps least values, found {', '.join(dtypes)}")
    x, weight, scale, *least = operands
    if not all(isinstance(d, tirx.IntImm) for load in operands[1:] for d in load.source.ty.shape):
        raise Declined("the packed weight has a symbolic dimension")
    _, panels, steps, nr, four = (int(d) for d in weight.source.ty.shape)
    depth, groups = block.extents[2], int(scale.source.ty.shape[1])
    if not isinstance(depth, tirx.IntImm) or int(depth) % groups or not is_const(block.extents[1], panels * nr):
        raise Declined(f"{depth} rows of the weight and {block.extents[1]} columns do not fit its integers and scales")
    length = int(depth) // groups
    served = [a for a in arithmetics if isinstance(a, Groups) and steps * a.group == int(depth)]
    if not served:
        raise Declined(f"the weight has {steps} steps for {depth} rows: neither eight bits nor four")
    (arithmetic,) = served
    i, j, k = block.vars
    analyzer = Analyzer()
    for var in block.node.iter_vars:
        analyzer.bind(var.var, var.dom)
    places = [
        (0, j // nr, k // arithmetic.group, j % nr, k % four),
        *[(j // nr, k // length, j % nr)] * (1 + len(least)),
    ]
    same = all(
        analyzer.can_prove_equal(a, b)
        for load, place in zip(operands[1:], places)
        for a, b in zip(load.indices, place, strict=True)
    )
    if not same or not is_at(x.indices, (i, k)):
        raise Declined("the block of a weight in groups reads its operands at other places than a product does")
    beside = tuple(load.source for load in (scale, *least))
    return x.source, weight.source, store.buffer, arithmetic.of(length, bool(least)), beside


def _linear(block: Block, arithmetics: Sequence[Arithmetic]) -> Operators:
    """(x, weight, acc, arithmetic, what else belongs to the weight) of the main block."""
    store = linear_store(block)
    operands = [load for load in loads(store.value) if not load.source.same_as(store.buffer)]
    if len(operands) != 2:
        raise Declined(f"the linear block reads {len(operands)} tensors, expected x and weight")
    x, weight = operands
    arithmetic = _arithmetic(block, x.source, weight.source, arithmetics)
    shape, rank = weight.source.ty.shape, 4 if arithmetic.group == 1 else 5
    if len(shape) != rank:
        layout = "[k/kc, n/nr, kc, nr]" if rank == 4 else f"[k/kc, n/nr, kc/{arithmetic.group}, nr, {arithmetic.group}]"
        raise Declined(f"weight has rank {len(shape)}: it is not packed as {layout}")
    if not all(isinstance(d, tirx.IntImm) for d in shape):
        raise Declined("the packed weight has a symbolic dimension")
    chunks, panels, steps, nr = (int(d.value) for d in shape[:4])
    group, kc = arithmetic.group, steps * arithmetic.group
    if rank == 5 and not is_const(shape[4], group):
        raise Declined(f"the packed weight groups {shape[4]} rows, {weight.source.ty.dtype} takes {group}")
    analyzer = Analyzer()
    for var in block.node.iter_vars:
        analyzer.bind(var.var, var.dom)
    i, j, k = block.vars
    expected = (
        (k // kc, j // nr, k % kc, j % nr) if rank == 4 else (k // kc, j // nr, k % kc // group, j % nr, k % group)
    )
    same = all(analyzer.can_prove_equal(a, b) for a, b in zip(weight.indices, expected))
    same = same and [len(x.indices), x.indices[0].same_as(i), x.indices[1].same_as(k)] == [2, True, True]
    if not (same and _multiplies(store, x, weight)):
        inner = "k % kc, j % nr" if rank == 4 else f"k % kc // {group}, j % nr, k % {group}"
        meant = f"acc[i, j] + x[i, k] * weight[k // kc, j // nr, {inner}]"
        raise Declined(f"the linear block does not compute {meant}")
    if not is_const(block.extents[2], chunks * kc):
        raise Declined(f"x has {block.extents[2]} columns, the packed weight {chunks * kc} rows")
    if not is_const(block.extents[1], panels * nr):
        raise Declined(f"the linear block computes {block.extents[1]} columns, the packed weight has {panels * nr}")
    return x.source, weight.source, store.buffer, arithmetic, ()


def _arithmetic(block: Block, x: ir.Var, weight: ir.Var, arithmetics: Sequence[Arithmetic]) -> Arithmetic:
    """The one that the operator and the types of the main block ask for."""
    dtypes = tuple(str(buffer.ty.dtype) for buffer in (x, weight, block.store.buffer))
    served = [a for a in of_block(block, arithmetics) if a.op == block.op]
    found = next((a for a in served if a.dtypes == dtypes), None)
    if found is None:
        known = " or ".join(", ".join(a.dtypes) for a in served)
        raise Declined(f"x, weight and sum are {', '.join(dtypes)}: only {known} is served")
    return found


def _multiplies(store: tirx.BufferStore, x: ir.TensorLoad, weight: ir.TensorLoad) -> bool:
    """Whether the block adds x * weight, both widened to the type of the sum, to what it stores to."""
    total = store.value
    if not (isinstance(total, tirx.Add) and isinstance(total.b, tirx.Mul) and isinstance(total.a, ir.TensorLoad)):
        return False
    factors = [side.value if isinstance(side, tirx.Cast) else side for side in (total.b.a, total.b.b)]
    return total.a.source.same_as(store.buffer) and factors[0].same_as(x) and factors[1].same_as(weight)


def _stage(block: Block, earlier: Sequence[ir.Var], m: ir.Expr) -> Stage:
    """One stage of the epilogue: over the same rows, and over as many columns as are left of the padded ones."""
    stage, name = read_stage(block, earlier, "rows, columns", beside=True), block.node.name_hint
    if not Analyzer().can_prove_equal(block.extents[0], m):
        raise Declined(f"stage {name} runs over {block.extents[0]} rows, the linear block over {m}")
    if not isinstance(block.extents[1], tirx.IntImm):
        raise Declined(f"stage {name} has a symbolic number of columns")
    return stage
