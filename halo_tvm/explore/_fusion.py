"""What fusion did to a model: which functions became one kernel, and the memory traffic that saved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, relax

from ..imported import ImportedModel
from ..passes.graph_pass import bindings, op_name
from ..phase_reports import FusionCandidate
from ..targets import Target
from ._table import Table
from ._tasks import imported_model, lowered, resolved


@dataclass(frozen=True)
class Group:
    """Functions that became one kernel, or were refused; equal ones are counted.

    Bytes are what one such kernel reads and writes at the model's typical sizes.
    """

    parts: tuple[str, ...]
    count: int
    bytes_apart: int
    bytes_fused: int
    taken: bool

    @property
    def saved_bytes(self) -> int:
        """Bytes that one inference no longer moves; of a refused group what it would have cost or saved."""
        return self.count * (self.bytes_apart - self.bytes_fused)


@dataclass(frozen=True)
class Kernel:
    """One call of a compiled function in the model: what was fused in it, and whose results it reads."""

    function: str
    parts: tuple[str, ...]
    reads: tuple[int, ...]  # positions of kernels
    saved_bytes: int


@dataclass(frozen=True, repr=False)
class Fusion(Table):
    """The groups by traffic saved, and the model as kernels in the order of their calls."""

    model: str
    sizes: dict[str, int]  # of the symbolic dimensions that bytes are meant at
    groups: tuple[Group, ...]
    kernels: tuple[Kernel, ...]

    @property
    def taken(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.taken)

    @property
    def saved_bytes(self) -> int:
        return sum(group.saved_bytes for group in self.taken)

    def _table(self) -> tuple[list[str], list[list[object]], str]:
        rows: list[list[object]] = [
            [
                " + ".join(g.parts),
                g.count,
                g.count * g.bytes_apart / 1e6,
                g.count * g.bytes_fused / 1e6,
                g.saved_bytes / 1e6,
                "fused" if g.taken else "refused",
            ]
            for g in self.groups
        ]
        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        title = f"{self.model}: {self.saved_bytes / 1e6:.1f} MB less traffic per inference at {at}"
        return ["functions", "times", "MB apart", "MB fused", "MB saved", ""], rows, title


def fusion(
    model: str | ImportedModel, *, target: str | Target = "cpu", threads: int | None = None, seed: int = 0
) -> Fusion:
    """Lower `model` and read the report of the pass `fuse`. Raises what `compile` raises for the model."""
    imported = imported_model(model, (), seed)
    mod, reports = lowered(imported, resolved(target, threads))
    candidates = reports.optimise.fuse.candidates if reports.optimise.fuse else ()
    return Fusion(imported.name, dict(imported.typical), _groups(candidates), tuple(_kernels(mod, candidates)))


def _groups(candidates: Sequence[FusionCandidate]) -> tuple[Group, ...]:
    counts: dict[tuple[object, ...], int] = {}
    for c in candidates:
        key = (_parts(c), c.bytes_apart, c.bytes_fused, c.taken)
        counts[key] = counts.get(key, 0) + 1
    groups = [Group(parts, n, apart, fused, taken) for (parts, apart, fused, taken), n in counts.items()]
    return tuple(sorted(groups, key=lambda g: (not g.taken, -g.saved_bytes)))


def _kernels(mod: tvm.IRModule, candidates: Sequence[FusionCandidate]) -> Iterator[Kernel]:
    fused = {c.function: c for c in candidates if c.taken}
    made: dict[ir.Var, tuple[int, ...]] = {}  # variable -> kernels whose results it holds
    count = 0
    for binding in bindings(mod["main"]):
        call = binding.value
        used = [v for v in relax.analysis.free_vars(call) if v in made]
        reads = tuple(dict.fromkeys(kernel for v in used for kernel in made[v]))
        if not op_name(call).startswith("relax.call_tir"):
            made[binding.var] = reads  # a view of a result
            continue
        name = call.args[0].name_hint
        c = fused.get(name)
        parts = _parts(c) if c else (_plain(name),)
        yield Kernel(name, parts, reads, c.benefit_bytes if c else 0)
        made[binding.var] = (count,)
        count += 1


def _parts(candidate: FusionCandidate) -> tuple[str, ...]:
    return tuple(_plain(name) for name in candidate.functions)


def _plain(name: str) -> str:
    """The name of a function without the number that tells it from others."""
    return re.sub(r"\d+$", "", name)
