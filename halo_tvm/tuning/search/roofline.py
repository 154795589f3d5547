"""The least time a task can take on a host whose ceilings were measured."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ...ceilings import Peaks, least_us
from ...records.canonical import walk
from ...records.workload import operator_call
from ...targets import Target
from ..sizes import shape_of, symbols, value
from ..task import Task

_F32 = "float32"
_BF16 = "bfloat16"
_LARGE_L2 = 8 << 20
_LARGE_L3 = 256 << 20


@dataclass(frozen=True)
class Work:
    """What a function must do at least at one size: nothing in it that a schedule could leave out."""

    flops: float  # float32 multiplications and additions of reductions
    weight_bytes: float  # of weights, which come from memory
    other_bytes: float  # of the other parameters, each touched once


def roofline_us(
    task: Task, size: tuple[int, ...], peaks: Peaks | None, target: Target, *, cold: bool = True
) -> float | None:
    """Microseconds below which `task` cannot come at `size` (its `Size.dims`); None without ceilings.

    `cold`: weights come from memory, as they do when they are timed in turns over many copies.
    """
    if peaks is None:
        return None
    narrow = _narrow_types(task, target)
    # The peak of half arithmetic is not measured: it bounds nothing, whatever pairs of bfloat16 reach.
    bf16_gflops = peaks.bf16_gflops if narrow == {_BF16} else None
    # Caches as large as they come: the task may be built for another machine of the same kind.
    peaks = dataclasses.replace(peaks, l2_bytes=_LARGE_L2, l3_bytes=_LARGE_L3, bf16_gflops=bf16_gflops)
    work = work_of(task, size)
    narrow_flops = work.flops if narrow else 0.0
    counts = {**dataclasses.asdict(work), "narrow_flops": narrow_flops, "integer_ops": 0.0}
    return least_us(peaks, **counts, weights_far=cold)[0]


def _narrow_types(task: Task, target: Target) -> set[str]:
    """Types that a rule may multiply in place of float32 as they are faster on `target`: those of weights, or what
    attention may round to."""
    call = operator_call(task.func)
    found = {str(param.ty.dtype) for param in task.func.params if isinstance(param.ty, tirx.BufferType)}
    found |= {str(call[1]["products"])} if call is not None and "products" in call[1] else set()
    return found & set(target.isa.narrow_dtypes)


def headroom(default_us: Sequence[float], roofline_us: Sequence[float], weights: Sequence[float]) -> float:
    """The logarithm of the speed-up that the roofline leaves to the default; infinity without one."""
    if not roofline_us or any(us <= 0 for us in roofline_us):
        return math.inf
    pairs = list(zip(weights, default_us, roofline_us))
    return sum(w * math.log(us / least) for w, us, least in pairs) / sum(w for w, _, _ in pairs)


def work_of(task: Task, size: tuple[int, ...]) -> Work:
    """Counts of `task.func` at `size`, each a lower bound: what stands under a condition does not count."""
    names = symbols(task.func)
    env = dict(zip(names, size))
    touched: Counter[ir.Var] = Counter()
    flops = _count(task.func.body, dict(env), 1.0, touched)
    call = operator_call(task.func)
    if call is not None and call[1].get("causal"):
        flops /= 2.0  # its body computes what the mask then hides
    weight_bytes = other_bytes = 0.0
    for at, param in enumerate(task.func.params):
        if not isinstance(param.ty, tirx.BufferType):
            continue
        elements = math.prod(shape_of(param, env))
        # A table of which a few rows are gathered is not read as a whole.
        moved = min(elements, touched[param]) * _bytes(str(param.ty.dtype))
        if at in task.weights:
            weight_bytes += moved
        else:
            other_bytes += moved
    return Work(flops, weight_bytes, other_bytes)


def _count(node: object, env: dict[ir.Var, int], times: float, touched: Counter[ir.Var]) -> float:
    """Floating-point operations below `node`; `touched` counts loads and stores by buffer."""
    if isinstance(node, tirx.For):
        return _count(node.body, env, times * max(0, _extent(node.extent, env)), touched)
    if isinstance(node, tirx.SeqStmt):
        return sum(_count(statement, env, times, touched) for statement in node.seq)
    if isinstance(node, tirx.BufferStore):
        touched[node.buffer] += times
        flops = 0
        for child in walk(node.value):
            name = type(child).__name__
            if name == "TensorLoad":
                touched[child.source] += times
            elif name in ("Add", "Sub", "Mul") and str(child.ty.dtype) == _F32:
                flops += 1
        return times * flops if _accumulates(node) else 0.0
    for field in ("block", "body"):
        if hasattr(node, field):
            return _count(getattr(node, field), env, times, touched)
    return 0.0


def _accumulates(store: tirx.BufferStore) -> bool:
    """Whether a store adds to what it overwrites: those operations no schedule saves."""
    return any(
        type(child).__name__ == "TensorLoad" and child.source.same_as(store.buffer) for child in walk(store.value)
    )


def _extent(extent: ir.Expr, env: Mapping[ir.Var, int]) -> int:
    """A loop's length; one that depends on data counts as nothing."""
    try:
        return value(extent, env)
    except ValueError:
        return 0


def _bytes(dtype: str) -> float:
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return int(bits[1]) / 8 if bits else 1.0
