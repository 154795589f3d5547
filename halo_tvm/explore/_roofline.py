"""How far kernels are from the machine's ceilings: arithmetic and traffic of a function, peaks of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import tirx

from ..artifact.formula import evaluate, sizes_of
from ..ceilings import kept_peaks
from ..ceilings.measure import measure_apart
from ..errors import UsageError
from ..passes.work import work_of as formulas_of
from ..records.home import host_profile
from ..targets import Target, read_host
from ..tuning.sizes import shape_of, symbols
from ._measuring import measure
from ._table import Table
from ._tasks import Task

_ROWS = 128


@dataclass(frozen=True)
class Ceilings:
    """What the host can do at most with so many threads. Bandwidths are GB/s of 1e9 bytes."""

    cpu: str
    threads: int
    gflops: float
    l2_gbps: float
    l3_gbps: float
    dram_gbps: float
    measured_at: str

    def gflops_at(self, intensity: float, gbps: float | None = None) -> float:
        """The roof over an intensity in flop/byte, by default under the memory's bandwidth."""
        return min(self.gflops, intensity * (self.dram_gbps if gbps is None else gbps))


@dataclass(frozen=True)
class Point:
    """One kernel: the arithmetic it does, the bytes it must move at least, and how long it took."""

    task: Task
    dims: tuple[int, ...]
    flops: int
    bytes: int
    us: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

    @property
    def gflops(self) -> float:
        return self.flops / self.us / 1e3


@dataclass(frozen=True, repr=False)
class Roofline(Table):
    """Kernels under the host's roof."""

    ceilings: Ceilings
    points: tuple[Point, ...]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def share(self, point: Point) -> float:
        """What the kernel reaches of the roof over its intensity; above 1 when its data come from a cache."""
        return point.gflops / self.ceilings.gflops_at(point.intensity)

    def _table(self) -> tuple[list[str], list[list[object]], str]:
        c = self.ceilings
        rows: list[list[object]] = [
            [
                p.task.name,
                "x".join(map(str, p.dims)),
                p.us,
                p.flops / 1e6,
                p.bytes / 1e6,
                p.intensity,
                p.gflops,
                f"{100 * self.share(p):.0f} %",
            ]
            for p in self.points
        ]
        title = (
            f"{c.threads} threads of {c.cpu}: {c.gflops:.0f} GFLOP/s, L2 {c.l2_gbps:.0f}, L3 {c.l3_gbps:.0f}, "
            f"memory {c.dram_gbps:.0f} GB/s"
        )
        return ["kernel", "size", "us", "MFLOP", "MB", "flop/byte", "GFLOP/s", "of the roof"], rows, title


def roofline(tasks: Sequence[Task], *, rows: int = _ROWS, rounds: int = 6, under: Ceilings | None = None) -> Roofline:
    """Measure the default of every task at its largest size of at most `rows`, under the host's ceilings.

    `under` are ceilings that are known already; else those of `ceilings`.
    """
    assert tasks, "a roofline needs at least one task"
    roof = under or ceilings(tasks[0].target)
    points = []
    for task in tasks:
        dims = max((d for d in task.sizes if max(d, default=0) <= rows), default=min(task.sizes))
        flops, moved = work_of(task.func, dims)
        us = measure(task, sizes=[dims], rounds=rounds).default.medians[0]
        points.append(Point(task, dims, flops, moved, us))
    return Roofline(roof, tuple(points))


def ceilings(target: Target, *, fresh: bool = False) -> Ceilings:
    """The host's ceilings with as many threads as the target has cores: those kept by `doctor --measure`, else
    measured now in a process of their own (about 10 s). `EnvironmentProblem` when that process fails."""
    host, threads = read_host(), target.cores
    peaks = None if fresh else kept_peaks(host_profile(), host, threads)[0]
    if peaks is None:
        peaks = measure_apart(threads).peaks(host, threads)
    names = ("threads", "l2_gbps", "l3_gbps", "dram_gbps", "measured_at")
    return Ceilings(cpu=host.model, gflops=peaks.fma_gflops, **{name: getattr(peaks, name) for name in names})


def work_of(func: tirx.PrimFunc, dims: Sequence[int]) -> tuple[int, int]:
    """(floating-point operations, bytes read and written at least) of an unscheduled function at these sizes.

    Counted as in a profile of an artifact; `UsageError` where that is unknown: a loop's length is data.
    """
    counted, env = formulas_of(func), dict(zip(symbols(func), dims))
    shapes = [shape_of(p, env) if isinstance(p.ty, tirx.BufferType) else env[p] for p in func.params]
    sizes = sizes_of(counted["shapes"], shapes)
    if counted["flops"] is None or sizes is None:
        raise UsageError("a kernel whose work its sizes tell was expected, but one depends on data: leave its task out")
    moved = sum(evaluate(formula, sizes) for formula in counted["bytes"])
    return evaluate(counted["flops"], sizes), max(moved, 1)
