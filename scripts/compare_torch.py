#!/usr/bin/env python3
"""torch.compile with this backend, with torch's own (inductor), and eager torch, on the nets of `_torch_nets.py`.

    python scripts/compare_torch.py --json docs/torch_compile.json --markdown docs/torch_compile.md
    python scripts/compare_torch.py --only LSTM --rounds 20

One process per engine, in turns (`_interleaved.py`); a call is one of `fast(x)` under `no_grad`, batch 1. The
net is also compiled with an open batch, called at several, and compared with eager: how many programs that took is in
the table. Rows that the JSON has are not measured again, but for those of `--only`. Exit status 1 when a net runs in
torch instead, or differs from eager.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import _checkout  # noqa: F401  before halo_tvm
import _interleaved as interleaved
import numpy as np
from _interleaved import Kernel
from _page import write_between

from halo_tvm.differences import relative_error
from halo_tvm.peers.load_meter import LoadMeter
from halo_tvm.peers.statistics import paired_interval
from halo_tvm.report import markdown
from halo_tvm.report.host import describe_host

BEGIN, END = "<!-- nets: written by scripts/compare_torch.py -->", "<!-- end of nets -->"
ENGINES = ("halo_tvm", "inductor", "eager")
BATCHES = (2, 7, 64)
ERROR = 1e-4  # of the largest element, against eager
HEADER = ("net", "ours, ms", "eager / ours", "inductor / ours", "first call, s", "inductor's", "error", "programs")


class Engine:
    """One net at a time, compiled by one engine."""

    def __init__(self, name: str) -> None:
        import torch

        self.name = name
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        torch.set_grad_enabled(False)
        self._net = ""

    def prepare(self, net: str) -> Kernel:
        import torch
        from _torch_nets import NETS

        torch._dynamo.reset()
        torch.manual_seed(0)
        self.module, self.inputs = NETS[net]()
        self.function = self._compiled(dynamic=False)
        given = self.inputs(1)
        start = time.perf_counter()
        self.function(*given)
        self.first_s = time.perf_counter() - start
        return Kernel(lambda: self.function(*given), lambda out: out.numpy())

    def _compiled(self, dynamic: bool | None):
        import torch

        if self.name == "eager":
            return self.module
        from halo_tvm.integrations.torch import compile_backend

        backend = compile_backend if self.name == "halo_tvm" else "inductor"
        return torch.compile(self.module, backend=backend, dynamic=dynamic)

    def first(self, case: object) -> float:
        """Seconds of the first call."""
        return self.first_s

    def programs(self, case: object) -> float:
        """Programs that the batches 2, 7 and 64 need with open sizes; -1 where torch ran a graph instead."""
        import torch

        from halo_tvm.integrations.torch import report

        torch._dynamo.reset()
        before = len(report())
        function = self._compiled(dynamic=None)
        self.worst = 0.0
        for batch in BATCHES:
            given = self.inputs(batch)
            for tensor in given:
                torch._dynamo.mark_dynamic(tensor, 0)
            self.worst = max(self.worst, relative_error(function(*given).numpy(), self.module(*given).numpy()))
        graphs = report()[before:]
        if any(graph.reasons for graph in graphs):
            return -1.0
        return float(sum(graph.compiled for graph in graphs))

    def error(self, case: object) -> float:
        """The largest difference from eager of what `programs` ran, and of batch 1."""
        given = self.inputs(1)
        return max(self.worst, relative_error(self.function(*given).numpy(), self.module(*given).numpy()))


def measure(net: str, options: argparse.Namespace) -> dict[str, object]:
    """A row: milliseconds of every turn, seconds of the first call, error, programs."""
    meter = LoadMeter()
    with interleaved.workers(__file__, ENGINES, options.threads) as workers:
        entries = interleaved.prepared(
            [interleaved.Entry(name, worker, net) for name, worker in workers.items()], limit=ERROR
        )
        first = {e.name: e.worker.ask("first", case=net)["value"] for e in entries}
        ours = workers["halo_tvm"]
        programs, error = (float(ours.ask(c, case=net)["value"]) for c in ("programs", "error"))
        ours.ask("prepare", case=net)  # the compilation at batch 1 again, which `programs` has let go
        us = interleaved.race(entries, options.rounds, options.seconds)
    row = {"net": net, "threads": options.threads, "programs": programs, "error": error, "first_s": first}
    samples = {name: [round(t / 1e3, 5) for t in times] for name, times in us.items()}
    return row | {"ms": samples, "other_cores": meter.other_cores(), "host": describe_host().cpu}


def cells(row: Mapping[str, object]) -> list[str]:
    """A line of the table."""
    ms, first = row["ms"], row["first_s"]
    ours = ms["halo_tvm"]

    def ratio(peer: str) -> str:
        if peer not in ms:
            return "-"
        found = paired_interval(ours, ms[peer], 0.90)
        return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"

    middle = statistics.median(ours)
    seconds = [f"{first[name]:.1f}" if name in first else "-" for name in ("halo_tvm", "inductor")]
    return [
        str(row["net"]),
        f"{middle:.3f}" if middle < 1 else f"{middle:.1f}",
        ratio("eager"),
        ratio("inductor"),
        *seconds,
        f"{row['error']:.0e}",
        f"{row['programs']:.0f}",
    ]


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """All rows, the geometric means, and what they were measured on."""
    means = []
    for peer in ("eager", "inductor"):
        both = [r["ms"] for r in rows if peer in r["ms"]]
        ratios = [statistics.median(np.divide(ms[peer], ms["halo_tvm"])) for ms in both]
        means.append(f"{np.exp(np.mean(np.log(ratios))):.2f} times as fast as {peer}")
    said = f"{len(rows)} nets, geometric mean: {' and '.join(means)}. "
    hosts = ", ".join(sorted({f"{r['host']}, {r['threads']} threads" for r in rows}))
    return f"{markdown.table(HEADER, [cells(r) for r in rows])}\n{said}Measured on {hosts}."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression over the names of nets")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.15, help="per turn")
    parser.add_argument("--json", type=Path, help="keep rows here")
    parser.add_argument("--markdown", type=Path, help="write the table between its marks in this file")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        engine = Engine(options.worker)
        interleaved.work(engine.prepare, first=engine.first, programs=engine.programs, error=engine.error)
        return 0
    from _torch_nets import NETS

    rows: dict[str, dict[str, object]] = {}
    if options.json and options.json.exists():
        rows = {row["net"]: row for row in json.loads(options.json.read_text())}
    for net in NETS:
        if re.search(options.only, net) and (options.only or net not in rows):
            rows[net] = measure(net, options)
            print(" | ".join(cells(rows[net])), flush=True)
            if options.json:
                options.json.write_text(json.dumps([rows[n] for n in NETS if n in rows], indent=1) + "\n")
    kept = [rows[net] for net in NETS if net in rows]
    if options.markdown:
        write_between(options.markdown, BEGIN, END, table(kept))
    return int(any(row["programs"] < 0 or row["error"] > ERROR for row in kept))


if __name__ == "__main__":
    sys.exit(main())
