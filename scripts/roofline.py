"""The host's peaks, and what every kernel of some models reaches of them: a table, JSON and a drawing.

    python scripts/roofline.py                                  # the default models at 1 and 2 threads, into docs/
    python scripts/roofline.py gpt2.halo@batch=1,sequence=512 mlp@batch=256 --threads 2 --output /tmp/roofline

An entry is an artifact or a model, with sizes after an @; models are compiled first. Peaks are measured in this very
run, before and after the kernels (the larger counts), each thread count and each artifact in a process of its own. It
takes about five minutes; on a machine that does something else the numbers say little, and the page says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from _checkout import ROOT

from halo_tvm.artifact import read_manifest
from halo_tvm.ceilings import HostProfile
from halo_tvm.ceilings.measure import measure_apart
from halo_tvm.ceilings.profile import RATES
from halo_tvm.report import markdown, schema
from halo_tvm.report.host import describe_host
from halo_tvm.report.profile_tables import work_cells
from halo_tvm.report.profiles import held_against
from halo_tvm.report.schema import KernelTime, ProfileResult
from halo_tvm.targets import read_host

DEFAULT = ("gpt2@batch=1,sequence=128", "gpt2@batch=1,sequence=512", "bert-base@batch=1,sequence=128", "mlp@batch=256")
LEVELS = {"l2_gbps": "L2", "l3_gbps": "L3", "dram_gbps": "memory"}
_SMALLEST_SHARE = 0.001  # of a run: kernels below are in the JSON only
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 860, 520, 70, 50, 30, 190
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c959f")


@dataclass(frozen=True)
class Entry:
    """One model at one size."""

    name: str
    sizes: str

    @classmethod
    def of(cls, text: str) -> Entry:
        name, _, sizes = text.partition("@")
        return cls(name, sizes)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write roofline.json, roofline.md and roofline-N.svg."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="*", default=DEFAULT, metavar="MODEL[@SIZES]")
    parser.add_argument("--threads", default="1,2", help="thread counts, separated by commas (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=10, help="runs of each model to take medians of (default: 10)")
    parser.add_argument("--precision", default="fp32", help="of models that are compiled (default: fp32)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs", help="directory of what is written")
    options = parser.parse_args(argv)
    threads = [int(word) for word in options.threads.split(",")]
    entries = [Entry.of(text) for text in options.entries]
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        results, peaks = measured(entries, threads, options.rounds, options.precision, Path(scratch))
    write(options.output, results, peaks)


def measured(
    entries: Sequence[Entry], threads: Sequence[int], rounds: int, precision: str, scratch: Path
) -> tuple[list[tuple[Entry, ProfileResult]], dict[int, dict[str, float]]]:
    """Profiles of every entry at every thread count, and the peaks by thread count."""
    names = dict.fromkeys(entry.name for entry in entries)
    paths = {name: artifact(name, precision, scratch / str(number)) for number, name in enumerate(names)}
    before = {count: host_profile(count) for count in threads}
    # Profiles are taken without ceilings first, then held against the larger of what is measured around them.
    raw: list[tuple[int, Entry, Path]] = []
    for count in threads:
        for entry in entries:
            out = scratch / f"{len(raw)}.json"
            raw.append((count, entry, out))
            say(f"{entry.name} {entry.sizes}, {count} threads")
            profiled(paths[entry.name], entry, count, 1, out, scratch)  # pages and clocks come up
            profiled(paths[entry.name], entry, count, rounds, out, scratch)
    after = {count: host_profile(count) for count in threads}
    peaks = {count: larger(before[count], after[count], count) for count in threads}
    results = []
    for count, entry, out in raw:
        result = schema.from_json(json.loads(out.read_text(encoding="utf-8")))
        assert isinstance(result, ProfileResult)
        results.append((entry, under(result, peaks[count], paths[entry.name])))
    return results, {count: dict(profile.by_threads[count]) for count, profile in peaks.items()}


def artifact(name: str, precision: str, folder: Path) -> Path:
    """`name` when it is an artifact, else the model compiled, in `folder`: models may be called the same."""
    if Path(name).is_dir() and (Path(name) / "manifest.json").is_file():
        return Path(name).absolute()
    folder.mkdir(exist_ok=True)
    path = folder / f"{Path(name).stem}.halo"
    say(f"compile {name}")
    run(["compile", "--model", name, "-o", str(path), "--no-validate", "--precision", precision])
    return path


def profiled(path: Path, entry: Entry, threads: int, rounds: int, out: Path, scratch: Path) -> None:
    words = ["--shape", entry.sizes] if entry.sizes else []
    run(
        [
            "profile",
            str(path),
            "--threads",
            str(threads),
            "--rounds",
            str(rounds),
            "--no-measure",
            "--json",
            str(out),
            *words,
        ],
        home=scratch,
    )


def host_profile(threads: int) -> HostProfile:
    """What `doctor --measure` would keep for so many threads."""
    say(f"peaks with {threads} threads")
    return measure_apart(threads)


def larger(before: HostProfile, after: HostProfile, threads: int) -> HostProfile:
    """The larger of each rate: a ceiling is what nothing else on the machine disturbed."""
    first, second = (profile.by_threads[threads] for profile in (before, after))
    rates = {name: max(first[name], second[name]) for name in RATES if name in first and name in second}
    return dataclasses.replace(before, by_threads={threads: rates})


def under(result: ProfileResult, host: HostProfile, path: Path) -> ProfileResult:
    """The profile held against these ceilings: the same sums `halo-tvm profile` makes."""
    peaks = host.peaks(read_host(), result.threads)
    far = read_manifest(path).reports.get("build", {}).get("params_bytes", 0) > peaks.l3_bytes
    return dataclasses.replace(held_against(result, peaks, far), notes=())


def run(words: Sequence[str], home: Path | None = None) -> None:
    """One command line of halo-tvm, without a host.json of its own where `home` is given."""
    env = dict(os.environ) | ({"HALO_TVM_HOME": str(home)} if home else {})
    done = subprocess.run([sys.executable, "-m", "halo_tvm", *words], capture_output=True, text=True, env=env, cwd=ROOT)
    if done.returncode:
        sys.exit(f"halo-tvm {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")


def write(
    output: Path, results: Sequence[tuple[Entry, ProfileResult]], peaks: Mapping[int, Mapping[str, float]]
) -> None:
    """The page, its data, and one drawing per thread count."""
    data = {
        "schema": 1,
        "kind": "roofline",
        "host": schema.to_json(results[0][1])["host"],
        "peaks": {str(count): dict(rates) for count, rates in peaks.items()},
        "profiles": [{"entry": label(entry), "sizes": entry.sizes, **schema.to_json(r)} for entry, r in results],
    }
    (output / "roofline.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for count in peaks:
        chosen = [(entry, result) for entry, result in results if result.threads == count]
        (output / f"roofline-{count}.svg").write_text(drawing(chosen, peaks[count], count), encoding="utf-8")
    (output / "roofline.md").write_text(page(results, peaks), encoding="utf-8")
    say(f"wrote {output / 'roofline.md'}")


def page(results: Sequence[tuple[Entry, ProfileResult]], peaks: Mapping[int, Mapping[str, float]]) -> str:
    """Peaks, then one table per model, size and thread count."""
    host = describe_host()
    parts = [
        "# Roofline: the host's peaks and every kernel's share of them\n",
        "Written by `python scripts/roofline.py`. [profile.md](profile.md) says how flops, bytes and the least time "
        "are counted; peaks were measured in the same run, before and after the kernels.\n",
        f"{host.cpu}; {host.cores} cores; {', '.join(host.isa)}.\n",
        markdown.table(
            ("threads", "fp32 GFLOP/s", "bf16 GFLOP/s", "int8 GOP/s", "read L2 GB/s", "L3", "memory"),
            [
                (str(n), *(f"{rates[name]:.0f}" if name in rates else "-" for name in RATES))
                for n, rates in peaks.items()
            ],
        ),
    ]
    for entry, result in results:
        threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
        limits = [k.work.limit_us for k in result.kernels]
        known = all(limit is not None for limit in limits)
        share = f": {100 * sum(limits) / result.total_us:.0f} % of the roof in all" if known else ""
        parts.append(f"## {label(entry)}, {threads}{share}\n")
        rows = [row(kernel, result) for kernel in result.kernels if kernel.total_us > _SMALLEST_SHARE * result.total_us]
        header = (
            "kernel",
            "operator",
            "calls",
            "us per call",
            "share",
            "flop/byte",
            "MB",
            "MFLOP",
            "GB/s",
            "GFLOP/s",
            "of the roof",
            "bound by",
        )
        parts.append(markdown.table(header, rows))
    parts += [f"![roofline with {n} threads](roofline-{n}.svg)\n" for n in peaks]
    return "\n".join(parts)


def row(kernel: KernelTime, result: ProfileResult) -> tuple[str, ...]:
    found = intensity(kernel)
    return (
        kernel.kernel,
        kernel.operator or "-",
        str(kernel.calls),
        f"{kernel.total_us / kernel.calls:.1f}",
        f"{100 * kernel.total_us / result.total_us:.1f} %",
        "-" if found is None else f"{found:.2f}",
        *work_cells(kernel.work, kernel.total_us),
    )


def label(entry: Entry) -> str:
    name = Path(entry.name).name
    return f"{name} {entry.sizes}" if entry.sizes else name


def intensity(kernel: KernelTime) -> float | None:
    """Operations per byte."""
    work = kernel.work
    if not work.bytes or work.flops is None or work.integer_ops is None:
        return None
    return (work.flops + work.integer_ops) / work.bytes


@dataclass(frozen=True)
class Axes:
    """Two logarithmic axes; bounds are powers of ten, and four and a half of them from bottom to top."""

    low_x: float
    high_x: float
    high_y: float

    @property
    def low_y(self) -> float:
        return self.high_y - 4.5

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a value stands."""
        across = (math.log10(x) - self.low_x) / (self.high_x - self.low_x)
        up = (math.log10(y) - self.low_y) / (self.high_y - self.low_y)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _BOTTOM - _TOP)

    def shows(self, x: float, y: float) -> bool:
        return x > 0 < y and self.low_x <= math.log10(x) <= self.high_x and self.low_y <= math.log10(y) <= self.high_y

    def grid(self) -> list[str]:
        """A line and a number per power of ten."""
        parts = []
        for exponent in range(math.ceil(self.low_x), math.floor(self.high_x) + 1):
            x, y = self.at(10.0**exponent, 10.0**self.low_y)
            parts += [line(x, _TOP, x, y, "#eaeef2"), text(x, y + 16, f"{10.0**exponent:g}", "middle")]
        for exponent in range(math.ceil(self.low_y), math.floor(self.high_y) + 1):
            x, y = self.at(10.0**self.low_x, 10.0**exponent)
            parts += [line(x, y, _WIDTH - _RIGHT, y, "#eaeef2"), text(x - 6, y + 4, f"{10.0**exponent:g}", "end")]
        return parts


def roofs(axes: Axes, rates: Mapping[str, float]) -> list[str]:
    """A slope per memory level up to the fp32 peak, and a line per peak."""
    parts = []
    for name, level in LEVELS.items():
        left = max(10.0**axes.low_x, 10.0**axes.low_y / rates[name])
        x1, y1 = axes.at(left, left * rates[name])
        x2, y2 = axes.at(rates["fma_gflops"] / rates[name], rates["fma_gflops"])
        parts += [
            line(x1, y1, x2, y2),
            text((x1 + x2) / 2, (y1 + y2) / 2 - 6, f"{level} {rates[name]:.0f} GB/s", "end"),
        ]
    for name, words in (("fma_gflops", "fp32"), ("bf16_gflops", "bf16"), ("int8_gops", "int8")):
        if name in rates:
            x1, y = axes.at(rates["fma_gflops"] / rates["l2_gbps"], rates[name])
            x2, _ = axes.at(10.0**axes.high_x, rates[name])
            parts += [line(x1, y, x2, y), text(x2 + 4, y + 4, f"{words} {rates[name]:.0f} G/s")]
    return parts


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "#57606a") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def dot(x: float, y: float, fill: str, hint: str) -> str:
    title = f"<title>{escape(hint)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" fill-opacity=".75">{title}</circle>'


def colour(operators: Sequence[str], operator: str) -> str:
    return _COLOURS[min(operators.index(operator), len(_COLOURS) - 1)]


def drawing(results: Sequence[tuple[Entry, ProfileResult]], rates: Mapping[str, float], threads: int) -> str:
    """Kernels under the roofs of the memory levels, both axes logarithmic."""
    points = [
        (label(entry), kernel, x, kernel.work.flops + kernel.work.integer_ops)
        for entry, result in results
        for kernel in result.kernels
        if (x := intensity(kernel)) and kernel.total_us > _SMALLEST_SHARE * result.total_us
    ]
    axes = Axes(
        -2.0,
        3.5,
        math.log10(max(rates.get("int8_gops", 0.0), rates.get("bf16_gflops", 0.0), rates["fma_gflops"])) + 0.2,
    )
    parts = [*axes.grid(), *roofs(axes, rates)]
    operators = list(dict.fromkeys(kernel.operator for _, kernel, _, _ in points))
    for words, kernel, x, work in points:
        speed = work / kernel.total_us / 1e3
        if axes.shows(x, speed):
            hint = f"{words}: {kernel.kernel}, {x:.2f} flop/byte, {speed:.1f} GFLOP/s"
            parts.append(dot(*axes.at(x, speed), colour(operators, kernel.operator), hint))
    for index, operator in enumerate(operators):
        y = _HEIGHT - _BOTTOM - 16 * (len(operators) - index)
        parts.append(dot(_WIDTH - _RIGHT + 14, y - 4, colour(operators, operator), operator))
        parts.append(f'<text x="{_WIDTH - _RIGHT + 24}" y="{y}">{escape(operator or "other")}</text>')
    parts.append(f'<text x="{_LEFT}" y="18">GFLOP/s over flop/byte, {threads} threads</text>')
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        "<style>text { font: 12px sans-serif; fill: #1b1f24; }</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    return "\n".join([*head, *parts, "</svg>\n"])


def say(words: str) -> None:
    sys.stderr.write(f"roofline: {words}\n")


if __name__ == "__main__":
    main()
