"""How near the GEMM rule comes to this host's peaks, which are measured in the same run, taking turns.

    python scripts/gemm_peaks.py --threads 1 --kinds fp32,bf16,int8 --shapes 768x768,768x3072 --rows 1,8,32,128,512
    python scripts/gemm_peaks.py --every-row --shapes 768x768        # M = 1..65: does time grow with the rows?
    python scripts/gemm_peaks.py --decode --threads 2                # GPT-2's 49 matrices, one token, weights apart

Prints a Markdown table: microseconds, arithmetic and its share of the peak, bytes of weights per second and their
share of what a kernel that only reads as many bytes reaches. Each number is the fastest of all rounds.
`int8` counts the product and its way back to float32; `fp16` runs in half arithmetic where the host has some. The peak
is float32's; for int8 that of byte products where the host has `vpdpbusd`; for int8 and bf16 that of AMX where the host
has it. A share of another arithmetic's peak says so.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import _checkout  # noqa: F401  before halo_tvm
import numpy as np
from _interleaved import compiled

KINDS = ("fp32", "bf16", "fp16", "int8")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
ALLOWED = 0.9  # time at m rows, as a share of the longest at fewer

Call = Callable[[], object]


class Host:
    """This machine's kernels with a number of threads, each for the level that stands for its precision."""

    def __init__(self, threads: int) -> None:
        os.environ["TVM_NUM_THREADS"] = str(threads)
        from halo_tvm.targets import resolve

        self.threads = threads
        self.targets = {kind: resolve("cpu", cores=threads, precision=kind) for kind in KINDS}

    def linear(self, kind: str, k: int, n: int) -> Callable[..., Call]:
        """(rows, fresh=False) -> a call of the linear layer with that many rows; fresh: with weights of its own."""
        import tvm
        from tvm import te, tirx

        from halo_tvm.relay_ops.linear import Linear
        from halo_tvm.relay_ops.linear_w8a8 import LinearW8A8
        from halo_tvm.tir_schedules import RULES
        from halo_tvm.tir_schedules.products.gemm import pack_shape

        m, target = tirx.Var("m", "int64"), self.targets[kind]
        attrs = {"layout": "packed", "n": n}
        if kind == "int8":
            nr = pack_shape(k, n, target)[1]
            shapes = [(m, k), (m,), (1, -(-n // nr), k // 4, nr, 4), (n,), (n,), (n,)]
            dtypes = ["uint8", "float32", "int8", "float32", "int32", "float32"]
            compute = LinearW8A8.compute
        else:
            kc, nr = pack_shape(k, n, target, DTYPES[kind])
            inner = (kc // 2, nr, 2) if kind == "bf16" else (kc, nr)
            shapes, dtypes = [(m, k), (k // kc, -(-n // nr), *inner), (n,)], ["float32", DTYPES[kind], "float32"]
            compute = Linear.compute
        args = [te.placeholder(s, d, name=f"a{i}") for i, (s, d) in enumerate(zip(shapes, dtypes))]
        run = compiled(te.create_prim_func([*args, compute(*args, **attrs)]), RULES["gemm"], target)
        fixed = {i: tensor(s, d) for i, (s, d) in enumerate(zip(shapes, dtypes)) if not any(e is m for e in s)}

        def prepare(rows: int, fresh: bool = False) -> Call:
            values = [
                fixed[i] if i in fixed and not fresh else tensor([rows if e is m else e for e in s], d)
                for i, (s, d) in enumerate(zip(shapes, dtypes))
            ]
            out = tvm.runtime.empty((rows, n), "float32")
            return lambda: run(*values, out)

        return prepare

    def peak(self, kind: str) -> tuple[Call, float]:
        """(a call that only multiplies and adds, its operations)."""
        from halo_tvm.ceilings.measure import has_int8_dot, multiplier

        target, times = self.targets[kind], 20_000
        narrow = kind == "int8" and has_int8_dot(target) or kind == "bf16" and target.isa.tiles
        run, operations = multiplier(target, self.threads, DTYPES.get(kind, kind) if narrow else "float32")
        return lambda: run(times), float(operations * times)

    def other_arithmetic(self, kind: str) -> str:
        """Behind a share of the peak: of which arithmetic that is, where the kernel's is another."""
        from halo_tvm.ceilings.measure import has_int8_dot

        target = self.targets[kind]
        other = {
            "fp16": target.isa.half_arithmetic,
            "bf16": target.isa.bf16_dot,
            "int8": not has_int8_dot(target),
        }
        return " of fp32's" if other.get(kind) else ""

    def read(self, size_bytes: int) -> Call:
        from halo_tvm.ceilings.measure import reader

        run, _ = reader(self.targets[KINDS[0]], self.threads, size_bytes)
        return lambda: run(1)


def tensor(shape: list[int] | tuple[int, ...], dtype: str) -> object:
    """Small numbers, nowhere zero or denormal."""
    import tvm

    found = tvm.runtime.empty(tuple(map(int, shape)), dtype)
    bits = {"float32": 0x3C800000, "bfloat16": 0x3C80, "float16": 0x2400}.get(dtype, 3)
    whole = {1: "uint8", 2: "uint16", 4: "uint32"}[np.dtype(dtype if dtype != "bfloat16" else "uint16").itemsize]
    found._create_view(found.shape, whole).copyfrom(np.full(found.shape, bits, whole))
    return found


def race(calls: dict[object, Call], rounds: int, seconds: float) -> dict[object, float]:
    """Seconds of the fastest call of each, taking turns."""
    best = dict.fromkeys(calls, np.inf)
    for _ in range(rounds):
        for key, call in calls.items():
            call()
            end = time.perf_counter() + seconds
            while True:
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                best[key] = min(best[key], now - start)
                if now > end:
                    break
    return best


def table(host: Host, kinds: list[str], k: int, n: int, all_rows: list[int], rounds: int, seconds: float) -> None:
    calls: dict[object, Call] = {}
    operations = {}
    for kind in kinds:
        prepare = host.linear(kind, k, n)
        calls |= {(kind, rows): prepare(rows) for rows in all_rows}
        calls[kind, "peak"], operations[kind] = host.peak(kind)
        calls[kind, "read"] = host.read(BYTES[kind] * k * n)
    times = race(calls, rounds, seconds)
    for kind in kinds:
        peak, size = operations[kind] / times[kind, "peak"], BYTES[kind] * k * n
        for rows in all_rows:
            spent = times[kind, rows]
            rate, read = 2.0 * rows * k * n / spent, size / spent
            share = f"{rate / peak:.0%}{host.other_arithmetic(kind)}"
            shares = f"{rate / 1e9:.0f} | {share} | {read / 1e9:.0f} | {times[kind, 'read'] / spent:.0%}"
            print(f"| {host.threads} | {kind} | {k}x{n} | {rows} | {spent * 1e6:.0f} | {shares} |", flush=True)


def decode(host: Host, kinds: list[str], rounds: int) -> None:
    """All matrices of GPT-2 124M one after another with one row, and a kernel that only reads as many bytes."""
    layer, head = [(768, 2304), (768, 768), (768, 3072), (3072, 768)], (768, 50257)
    for kind in kinds:
        calls = [call for k, n in layer for call in copies(host, kind, k, n, 12)] + copies(host, kind, *head, 1)
        size = BYTES[kind] * (12 * sum(k * n for k, n in layer) + head[0] * head[1])

        def stream(calls: list[Call] = calls) -> None:
            for call in calls:
                call()

        times = race({"all": stream, "read": host.read(size)}, rounds, 0.0)
        rates = f"{size / times['all'] / 1e9:.1f} | {times['read'] / times['all']:.0%}"
        print(f"| {host.threads} | {kind} | GPT-2 124M | 1 | {times['all'] * 1e6:.0f} | | | {rates} |", flush=True)


def copies(host: Host, kind: str, k: int, n: int, count: int) -> list[Call]:
    """Calls of one kernel, each with weights of its own."""
    prepare = host.linear(kind, k, n)
    return [prepare(1, fresh=True) for _ in range(count)]


def every_row(host: Host, kinds: list[str], k: int, n: int, rounds: int, seconds: float) -> None:
    for kind in kinds:
        prepare = host.linear(kind, k, n)
        times = race({rows: prepare(rows) for rows in range(1, 66)}, rounds, seconds)
        longest, falls = 0.0, []
        for rows in range(1, 66):
            if times[rows] < ALLOWED * longest:
                falls.append(f"{rows}: {times[rows] * 1e6:.0f} us after {longest * 1e6:.0f}")
            longest = max(longest, times[rows])
        verdict = ", ".join(falls) or "grows with the rows"
        ends = f"{times[1] * 1e6:.0f} to {times[65] * 1e6:.0f} us"
        print(f"| {host.threads} | {kind} | {k}x{n} | 1..65 | {ends} | {verdict} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", default="fp32,bf16,int8")
    parser.add_argument("--shapes", default="768x768,768x2304,768x3072,3072x768")
    parser.add_argument("--rows", default="1,8,32,128,512")
    parser.add_argument("--every-row", action="store_true")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.01, help="per turn")
    options = parser.parse_args()
    host, kinds = Host(options.threads), options.kinds.split(",")
    if options.every_row:
        print("| threads | kind | shape | m | time | verdict |\n|---|---|---|---|---|---|")
    else:
        print("| threads | kind | shape | m | us | Gop/s | of peak | GB/s of weights | of a read |")
        print("|---|---|---|---|---|---|---|---|---|")
    if options.decode:
        decode(host, kinds, options.rounds)
        return
    for shape in options.shapes.split(","):
        k, n = map(int, shape.split("x"))
        if options.every_row:
            every_row(host, kinds, k, n, options.rounds, options.seconds)
        else:
            table(host, kinds, k, n, [int(m) for m in options.rows.split(",")], options.rounds, options.seconds)


if __name__ == "__main__":
    main()
