"""Linear layers here and in other engines: one process per engine, taking turns.

    python scripts/compare_linear.py --precision fp32 --threads 1 --shapes 768x768,768x2304 --rows 8,32,128,512
    python scripts/compare_linear.py --precision int8                # quantising the activation included, on both sides
    python scripts/compare_linear.py --precision fp32 bf16 int8 --decode   # GPT-2's 49 linears at one row, in order

Our side is compiled as every model is. A sample is the median of a turn's calls (`_interleaved.py`); engines have the
same weights and rows, and their results are compared before anything is timed. Ratios are the fastest peer's time
divided by ours, paired by round, with their 90 % intervals; the last lines are geometric means. `torch-compile` is
inductor with frozen weights, packed as ours are. In bf16 torch reads and writes bfloat16 rows, ours float32: ours does
more. Beside the ratios stands the share of a ceiling that a kernel of its own reaches in the same run: multiply-adds
(for bf16 those of float32) for many rows; for one row a read of as many bytes as the weights have, which takes turns
with the engines. --json keeps every sample; with --resume what it holds is not measured again. --prepare only
compiles, again, into --cache.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import _checkout  # noqa: F401  before halo_tvm
import _interleaved as interleaved
from _linear_engines import ENGINES, GPT2, Linears, artifact, ceiling, compile_layers, read

from halo_tvm.peers.load_meter import LoadMeter
from halo_tvm.peers.statistics import paired_interval
from halo_tvm.whole_file import write_whole

PEERS = {
    "fp32": ("onnxruntime", "torch", "torch-compile"),
    "int8": ("onnxruntime",),
    "bf16": ("torch", "torch-compile"),
}
ERROR = {"fp32": 1e-4, "bf16": 2e-2, "int8": 5e-2}  # to ours, relative L2: rounded weights, rows, results
CEILING = "ceiling"
READ = "read"  # takes turns as an engine does, where there is one row


@dataclass(frozen=True)
class Cell:
    """One measurement: samples in microseconds by engine, and the ceiling of the same run."""

    precision: str
    threads: int
    layers: str  # "768x2304", or "gpt2" for all of them one after the other
    rows: int
    samples_us: dict[str, list[float]]
    ceiling: float  # GFLOP/s (GOP/s); 0.0 where a read is the ceiling, or none was measured
    products: int  # multiply-adds of a run

    @property
    def key(self) -> tuple[object, ...]:
        return self.precision, self.threads, self.layers, self.rows

    @property
    def ours_us(self) -> float:
        return statistics.median(self.samples_us["halo_tvm"])

    @property
    def share(self) -> float:
        """Of the ceiling."""
        if READ in self.samples_us:
            return paired_interval(self.samples_us["halo_tvm"], self.samples_us[READ], 0.90).value
        return 2e-3 * self.products / self.ours_us / self.ceiling if self.ceiling else math.nan

    def best(self) -> tuple[str, object]:
        """The fastest peer, and how much longer it takes."""
        ours = self.samples_us["halo_tvm"]
        peers = {n: paired_interval(ours, s, 0.90) for n, s in self.samples_us.items() if n not in ("halo_tvm", READ)}
        name = min(peers, key=lambda n: peers[n].value)
        return name, peers[name]


def work(options: argparse.Namespace) -> None:
    """Worker of one engine; the worker "ceiling" times nothing, it measures what the machine does at most."""
    precision, layers, threads = options.precision[0], parse_layers(options.shapes), options.threads[0]
    if options.worker == CEILING:
        interleaved.work(ceiling=lambda _: ceiling(precision, layers, threads))
        return
    engine = read if options.worker == READ else ENGINES[options.worker]
    interleaved.work(engine(options.cache, precision, layers, threads))


def measure(
    options: argparse.Namespace, precision: str, threads: int, layers: str, done: set[tuple[object, ...]]
) -> Iterator[Cell]:
    """The cells of one weight shape (or of GPT-2's layers) that are not done yet."""
    todo = [rows for rows in options.rows if (precision, threads, layers, rows) not in done]
    if not todo:
        return
    peers = [name for name in PEERS[precision] if options.vs is None or name in options.vs]
    limits = [READ] * (1 in todo) + [CEILING] * (options.ceiling is None and todo != [1])
    names = ("halo_tvm", *peers, *limits)
    arguments = ("--precision", precision, "--threads", str(threads), "--shapes", layers, "--cache", str(options.cache))
    linears = parse_layers(layers)
    with interleaved.workers(__file__, names, threads, *arguments) as workers:
        limit = workers.pop(CEILING, None)

        def top(rows: int) -> float:
            if rows == 1:
                return 0.0
            return float(limit.ask("ceiling", case=rows)["value"]) if limit else options.ceiling

        for rows in todo:
            taking = {name: worker for name, worker in workers.items() if name != READ or rows == 1}
            entries = [interleaved.Entry(name, worker, rows, name != READ) for name, worker in taking.items()]
            entries = interleaved.prepared(entries, ERROR[precision])
            ready = {entry.name for entry in entries}
            workers = {name: w for name, w in workers.items() if name in ready or name not in taking}
            if not ready.intersection(peers):
                raise SystemExit(f"none of {', '.join(peers)} ran: its reason is above")
            before = top(rows)
            samples = interleaved.race(entries, options.rounds, options.seconds, options.pause)
            most = max(before, top(rows))  # what disturbs it only lowers it
            products = rows * sum(k * n for k, n in linears)
            yield Cell(precision, threads, layers, rows, samples, most, products)


def parse_layers(text: str) -> Linears:
    if text == "gpt2":
        return GPT2
    k, n = text.split("x")
    return ((int(k), int(n)),)


def table(cells: Sequence[Cell]) -> str:
    """Markdown: a line per cell, then a geometric mean per precision, threads and kind."""
    lines = [
        "| precision | threads | layers | rows | us | best peer | its us | peer time / ours | GFLOP/s | of ceiling |",
        "|---|---:|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for c in cells:
        name, ratio = c.best()
        lines.append(
            f"| {c.precision} | {c.threads} | {c.layers} | {c.rows} | {c.ours_us:.0f} | {name} | "
            f"{statistics.median(c.samples_us[name]):.0f} | {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) | "
            f"{2e-3 * c.products / c.ours_us:.0f} | {100 * c.share:.0f} % |"
        )
    lines += [
        "",
        "| precision | threads | | cells | geometric mean of peer time / ours | least, its interval |",
        "|---|---:|---|---:|---:|---:|",
    ]
    groups: dict[tuple[str, int, str], list[Cell]] = {}
    for c in cells:
        kind = "decode" if c.layers == "gpt2" else "rows 1 to 7" if c.rows < 8 else "rows from 8"
        groups.setdefault((c.precision, c.threads, kind), []).append(c)
    for (precision, threads, kind), members in groups.items():
        ratios = [c.best()[1] for c in members]
        mean = math.exp(statistics.fmean(math.log(r.value) for r in ratios))
        least = min(ratios, key=lambda r: r.value)
        lines.append(
            f"| {precision} | {threads} | {kind} | {len(members)} | {mean:.2f} | "
            f"{least.value:.2f} ({least.low:.2f} to {least.high:.2f}) |"
        )
    return "\n".join(lines) + "\n"


def read_cells(path: Path) -> list[Cell]:
    return [Cell(**item) for item in json.loads(path.read_text())] if path.exists() else []


def write_cells(path: Path, cells: Sequence[Cell]) -> None:
    write_whole(path, (json.dumps([asdict(c) for c in cells]) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="*", choices=sorted(PEERS), default=["fp32"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--shapes", default="768x768,768x2304,768x3072,3072x768,1024x1024,768x50257")
    parser.add_argument("--rows", default="8,32,128,512")
    parser.add_argument("--decode", action="store_true", help="GPT-2's linear layers one after the other, one row")
    parser.add_argument("--vs", nargs="*", choices=sorted(ENGINES), help="peers (default: all of the precision)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.03, help="per turn")
    parser.add_argument("--pause", type=float, default=interleaved.PAUSE_S, help="seconds before each turn")
    parser.add_argument("--ceiling", type=float, help="take this, GFLOP/s, and measure none")
    parser.add_argument("--cache", type=Path, help="keep compiled layers there (default: a temporary directory)")
    parser.add_argument("--prepare", action="store_true", help="compile only")
    parser.add_argument("--json", type=Path, help="every sample, written after every cell")
    parser.add_argument("--resume", action="store_true", help="leave out what --json has already")
    parser.add_argument("--markdown", type=Path, help="also write the tables there")
    parser.add_argument("--worker", choices=(*ENGINES, READ, CEILING), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(options)
    options.rows = [1] if options.decode else [int(m) for m in options.rows.split(",")]
    with tempfile.TemporaryDirectory(prefix="halo-linear-") as temporary:
        options.cache = options.cache or Path(temporary)
        run(options)


def run(options: argparse.Namespace) -> None:
    shapes = ["gpt2"] if options.decode else options.shapes.split(",")
    for precision in options.precision:
        for layers in shapes:
            if options.prepare:
                shutil.rmtree(artifact(options.cache, precision, parse_layers(layers)), ignore_errors=True)
            path = compile_layers(options.cache, precision, parse_layers(layers))
            if options.prepare:
                print(path.name, flush=True)
    if options.prepare:
        return
    meter = LoadMeter()
    cells = read_cells(options.json) if options.json and options.resume else []
    for precision in options.precision:
        for threads in options.threads:
            for layers in shapes:
                for cell in measure(options, precision, threads, layers, {c.key for c in cells}):
                    cells.append(cell)
                    name, ratio = cell.best()
                    said = f"{cell.ours_us:.0f} us, {name} {ratio.value:.2f}"
                    print(*cell.key, said, file=sys.stderr, flush=True)
                    if options.json:
                        write_cells(options.json, cells)
    text = table(cells) + interleaved.disturbance(meter)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
