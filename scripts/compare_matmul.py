"""Products of two run-time matrices here and in torch: one process per engine, taking turns.

    python scripts/compare_matmul.py --threads 1,2                    # a table as in docs/kernels/batched_matmul.md
    python scripts/compare_matmul.py --docs                           # writes it there
    python scripts/compare_matmul.py --symbolic n --decision '{"vectors": 2}'

Prints a Markdown table: medians in microseconds (`_interleaved.py`), ratios paired by round with their 90 % intervals,
torch with its result given (`out=`), `fallback` the rule that serves what no other does. The peak of multiply-adds is
measured in our process behind every case. --symbolic names the sizes that are not known when ours is compiled (of m, n,
k); --decision takes fields of the rule's decision as JSON, in place of its own choice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence

import _checkout
import _interleaved as interleaved
import _page
import numpy as np
from _interleaved import Kernel

from halo_tvm.peers.load_meter import LoadMeter
from halo_tvm.peers.statistics import paired_interval

ERROR = 1e-4  # relative L2 between engines
DOCS = _checkout.ROOT / "docs" / "kernels" / "batched_matmul.md"
HEAD = (
    "threads",
    "batch, m x n x k",
    "form",
    "here us",
    "torch us",
    "torch / here",
    "fallback us",
    "GFLOP/s",
    "of the peak",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """`batch` products of [m, k] and [k, n]; either operand may lie transposed."""

    batch: int
    m: int
    n: int
    k: int
    a_transposed: bool = False
    b_transposed: bool = False

    @property
    def name(self) -> str:
        return f"{self.batch}, {self.m} x {self.n} x {self.k}"

    @property
    def form(self) -> str:
        return f"{'aᵀ' if self.a_transposed else 'a'} {'bᵀ' if self.b_transposed else 'b'}"

    def shapes(self, m: object, n: object, k: object) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """Of the operands, with these in the place of the sizes."""
        a = (self.batch, k, m) if self.a_transposed else (self.batch, m, k)
        return a, (self.batch, n, k) if self.b_transposed else (self.batch, k, n)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(s, dtype=np.float32) for s in self.shapes(self.m, self.n, self.k)]


CASES = (
    Case(12, 128, 128, 64, b_transposed=True),
    Case(12, 128, 64, 128),
    Case(8, 512, 512, 64, b_transposed=True),
    Case(8, 512, 64, 512),
    Case(1, 512, 512, 512),
    Case(4, 256, 256, 1024, a_transposed=True),
    Case(4, 256, 256, 1024),
    Case(16, 1, 64, 512),
    Case(16, 8, 512, 64),
)


def halo(case: Case, symbolic: str, changes: Mapping[str, object]) -> Kernel:
    return _ours("batched_matmul", case, symbolic, changes)


def fallback(case: Case, symbolic: str, changes: Mapping[str, object]) -> Kernel:
    return _ours("fallback", case, symbolic, {})


def _ours(rule: str, case: Case, symbolic: str, changes: Mapping[str, object]) -> Kernel:
    """One of our rules, as a model's function is compiled; `changes` its decision."""
    import tvm
    from tvm import te, tirx

    from halo_tvm.relay_ops.matmul import Matmul
    from halo_tvm.targets import resolve
    from halo_tvm.tir_schedules import RULES

    sizes = [tirx.Var(name, "int64") if name in symbolic else getattr(case, name) for name in "mnk"]
    a, b = (te.placeholder(shape, name=name) for name, shape in zip("ab", case.shapes(*sizes)))
    result = Matmul.compute(a, b, transpose_a=case.a_transposed, transpose_b=case.b_transposed)
    func, target = te.create_prim_func([a, b, result]), resolve("cpu", cores=_threads())
    run = interleaved.compiled(func, RULES[rule], target, changes)
    operands = [tvm.runtime.tensor(x) for x in case.arrays()]
    out = tvm.runtime.empty((case.batch, case.m, case.n), "float32")
    return Kernel(lambda: run(*operands, out), lambda _: out.numpy())


def torch_matmul(case: Case, symbolic: str, changes: Mapping[str, object]) -> Kernel:
    import torch

    torch.set_num_threads(_threads())
    torch.set_grad_enabled(False)
    a, b = (torch.from_numpy(x) for x in case.arrays())
    a = a.transpose(1, 2) if case.a_transposed else a
    b = b.transpose(1, 2) if case.b_transposed else b
    out = torch.empty((case.batch, case.m, case.n))
    return Kernel(lambda: torch.matmul(a, b, out=out), lambda found: found.numpy())


def peak(_: object) -> float:
    """GFLOP/s of multiply-adds that wait for nothing."""
    from halo_tvm.ceilings.measure import fma_gflops
    from halo_tvm.targets import resolve

    return fma_gflops(resolve("cpu"), _threads())


def _threads() -> int:
    return int(os.environ["TVM_NUM_THREADS"])


ENGINES = {"here": halo, "torch": torch_matmul, "fallback": fallback}


def compare(cases: Sequence[Case], threads: int, options: argparse.Namespace) -> list[str]:
    """Lines of the table, each shown when it is there."""
    lines = []
    arguments = ("--symbolic", options.symbolic, "--decision", options.decision)
    with interleaved.workers(__file__, tuple(ENGINES), threads, *arguments) as workers:
        for case in cases:
            entries = [interleaved.Entry(name, worker, dataclasses.asdict(case)) for name, worker in workers.items()]
            entries = interleaved.prepared(entries, ERROR)
            times = interleaved.race(entries, options.rounds, options.seconds)
            gflops = workers["here"].ask("peak")["value"]
            lines.append(line(case, threads, times, float(gflops)))
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def line(case: Case, threads: int, us: Mapping[str, list[float]], peak_gflops: float) -> str:
    """A line of the table. An engine that did not run has no numbers."""
    middle = {name: statistics.median(samples) for name, samples in us.items()}
    ratio = "-"
    if "torch" in us:
        found = paired_interval(us["here"], us["torch"], 0.90)
        ratio = f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
    gflops = 2e-3 * math.prod((case.batch, case.m, case.n, case.k)) / middle["here"]
    cells = [
        threads,
        case.name,
        case.form,
        f"{middle['here']:.0f}",
        f"{middle['torch']:.0f}" if "torch" in us else "-",
        ratio,
        f"{middle['fallback']:.0f}" if "fallback" in us else "-",
        f"{gflops:.0f}",
        f"{gflops / peak_gflops:.0%}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--symbolic", default="", help="sizes unknown to our compiler, e.g. mn (default: none)")
    parser.add_argument("--only", default="", help="cases with this in their name, e.g. 512 x 64")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.03, help="per turn")
    parser.add_argument("--decision", default="{}", metavar="JSON", help="fields of a decision to change")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/kernels/batched_matmul.md")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        engine, changes = ENGINES[options.worker], json.loads(options.decision)
        interleaved.work(lambda case: engine(Case(**case), options.symbolic, changes), peak=peak)
        return
    if options.docs and (options.only or options.symbolic or options.decision != "{}"):
        parser.error("--docs writes the whole table: leave out --only, --symbolic and --decision")
    cases = [case for case in CASES if options.only in case.name]
    meter = LoadMeter()
    lines = [found for n in options.threads.split(",") for found in compare(cases, int(n), options)]
    head = f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}"
    text = "\n".join([head, *lines]) + "\n" + interleaved.disturbance(meter)
    print(text, end="")
    if options.docs:
        _page.write_measured(DOCS, "compare_matmul.py", text)


if __name__ == "__main__":
    main()
