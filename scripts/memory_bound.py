"""Time the memory-bound kernels against the memory itself and against torch: turns interleaved, medians.

    python scripts/memory_bound.py                                        # one and two threads, a table each
    python scripts/memory_bound.py --threads 2 --only transpose
    python scripts/memory_bound.py --docs --json m.json                   # into docs/kernels/memory_bound.md

"memory" is a plain kernel that reads and writes as many bytes in the same process, threads and turns: its time per ours
is the share of memory speed. Kernels that compute much per element (exp, erf) are not bound by memory out of a cache.
All engines write into memory that exists: torch's operators into a result given (`out`), and where torch has no such
operator (its norms), its allocator keeps the pages of the call before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import _checkout
import _interleaved as interleaved
import _page
from _interleaved import Kernel

from halo_tvm.peers.load_meter import LoadMeter

if TYPE_CHECKING:
    import torch

    from halo_tvm.targets import Target

CASES: dict[str, tuple[tuple[int, ...], ...]] = {
    "layer_norm 128x768": ((128, 768), (768,), (768,)),
    "layer_norm 512x768": ((512, 768), (768,), (768,)),
    "rms_norm 128x768": ((128, 768), (768,)),
    "softmax 1536x128": ((1536, 128),),
    "softmax 1536x1024": ((1536, 1024),),
    "softmax 1536x100": ((1536, 100),),
    "gelu 128x3072": ((128, 3072),),
    "gelu_tanh 128x3072": ((128, 3072),),
    "exp 128x3072": ((128, 3072),),
    "tanh 128x3072": ((128, 3072),),
    "erf 128x3072": ((128, 3072),),
    "sigmoid 128x3072": ((128, 3072),),
    "log 128x3072": ((128, 3072),),
    "add 128x3072": ((128, 3072), (128, 3072)),
    "silu_mul 128x3072": ((128, 3072), (128, 3072)),
    "rotary 1x128x12x64": ((1, 128, 12, 64), (128,), (128, 32), (128, 32)),
    "sum 1536x1024": ((1536, 1024),),
    "mean 128x768": ((128, 768),),
    "add 4096x4096": ((4096, 4096), (4096, 4096)),
    "layer_norm 16384x768": ((16384, 768), (768,), (768,)),
    "softmax 16384x1024": ((16384, 1024),),
    "sum 16384x1024": ((16384, 1024),),
    "transpose 128x768": ((128, 768),),
    "transpose 768x3072": ((768, 3072),),
    "transpose 4096x4096": ((4096, 4096),),
    "transpose 100x1000": ((100, 1000),),
    "transpose 128x12x64": ((128, 12, 64),),
    "transpose_bias 768x3072": ((768, 3072), (768,)),
}
DOCS = _checkout.ROOT / "docs" / "kernels" / "memory_bound.md"
MEMORY = "memory:"  # before a case: the plain kernel of its size
REDUCING = ("norm", "softmax", "sum", "mean")
TURN_S = 0.05
ERROR = 1e-4  # relative L2 between engines
ENVIRONMENT = {
    "TVM_BIND_THREADS": "0",
    # glibc gives large results back to the system, and takes fresh pages in the next call, unless told otherwise.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
}


def halo_engine() -> Callable[[str], Kernel]:
    """Our kernels by case name."""
    import numpy as np
    import tvm
    from tvm import relax, tirx

    from halo_tvm.relay_ops import OPERATORS
    from halo_tvm.targets import resolve
    from halo_tvm.tir_schedules import RULES

    target = resolve("cpu", cores=int(os.environ["TVM_NUM_THREADS"]))
    op = relax.op
    graphs = {
        "layer_norm": lambda *a: OPERATORS["layer_norm"].call(*a, eps=1e-5),
        "rms_norm": lambda *a: OPERATORS["rms_norm"].call(*a, eps=1e-5),
        "softmax": op.nn.softmax,
        "gelu": op.nn.gelu,
        "gelu_tanh": op.nn.gelu_tanh,
        "exp": op.exp,
        "tanh": op.tanh,
        "erf": op.erf,
        "sigmoid": op.sigmoid,
        "log": op.log,
        "add": op.add,
        "silu_mul": lambda x, y: op.multiply(op.nn.silu(x), y),
        "rotary": lambda *a: OPERATORS["rotary"].call(*a, interleaved=False),
        "sum": lambda x: op.sum(x, axis=-1),
        "mean": lambda x: op.mean(x, axis=-1),
        "transpose_bias": lambda x, b: op.permute_dims(op.add(x, op.expand_dims(b, 1)), (1, 0)),
        "transpose": lambda x: op.permute_dims(x, (1, 0) if x.ty.ndim == 2 else (1, 0, 2)),
    }

    def prepare(name: str) -> Kernel:
        if name.startswith(MEMORY):
            return memory_kernel(name.removeprefix(MEMORY), target)
        builder, shapes = relax.BlockBuilder(), CASES[name]
        dtypes = [str(x.dtype) for x in inputs(name)]
        params = [relax.Var(f"a{i}", relax.TensorType(*of)) for i, of in enumerate(zip(shapes, dtypes))]
        with builder.function("main", params):
            with builder.dataflow():
                out = builder.emit_output(builder.normalize(graphs[name.split()[0]](*params)))
            builder.emit_func_output(out)
        t = relax.transform
        passes = [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FoldConstant(), t.FuseOps(), t.FuseTIR()]
        mod = tvm.transform.Sequential(passes)(builder.get())
        (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
        rule = RULES["row_reduction" if any(w in name for w in REDUCING) else "elementwise"]
        kernel = interleaved.compiled(func, rule, target)
        given = {f"a{i}": x for i, x in enumerate(inputs(name))}  # fusion may order the parameters anew
        arrays = [tvm.runtime.tensor(given[param.name]) for param in func.params[:-1]]
        shape = [int(d) for d in func.params[-1].shape]
        result = tvm.runtime.tensor(np.zeros(shape, "float32"))
        return Kernel(lambda: kernel(*arrays, result), lambda _: result.numpy())

    return prepare


def memory_kernel(name: str, target: Target) -> Kernel:
    """Reads the case's inputs once as streams, adds them, and writes as many elements as its result has."""
    import numpy as np
    import tvm
    from tvm.script import tirx as T

    shapes = CASES[name]
    size = max(int(np.prod(s)) for s in shapes)
    streams = sum(int(np.prod(s)) == size for s in shapes)
    lanes, parts = target.lanes_f32, 8 * target.cores
    length = -(-size // (parts * lanes * 4)) * lanes * 4
    written = length if name.split()[0] not in ("sum", "mean") else lanes * 4
    unit = lanes * 4

    @T.prim_func
    def main(x: T.Buffer((streams, parts, length), "float32"), y: T.Buffer((parts, written), "float32")) -> None:
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for t in T.parallel(parts):
            for c in T.serial(length // unit):
                for u in T.unroll(4):
                    for v in T.vectorized(lanes):
                        if streams == 2:
                            y[t, c * unit + u * lanes + v] = (
                                x[0, t, c * unit + u * lanes + v] + x[1, t, c * unit + u * lanes + v]
                            )
                        elif written == length:
                            y[t, c * unit + u * lanes + v] = x[0, t, c * unit + u * lanes + v]
                        else:
                            y[t, u * lanes + v] = y[t, u * lanes + v] + x[0, t, c * unit + u * lanes + v]

    kernel = tvm.compile(tvm.IRModule({"main": main}), target=target.tvm)["main"]
    x = tvm.runtime.tensor(np.ones((streams, parts, length), "float32"))
    y = tvm.runtime.tensor(np.zeros((parts, written), "float32"))
    return Kernel(lambda: kernel(x, y), lambda _: y.numpy())


def torch_engine() -> Callable[[str], Kernel]:
    """torch's kernels by case name."""
    import torch

    torch.set_num_threads(int(os.environ["TVM_NUM_THREADS"]))
    torch.set_grad_enabled(False)
    f, aten = torch.nn.functional, torch.ops.aten

    def prepare(name: str) -> Kernel:
        kind, arrays = name.split()[0], [torch.from_numpy(x) for x in inputs(name)]
        x = arrays[0]
        shape = x.shape[:-1] if kind in ("sum", "mean") else x.shape
        out = torch.empty(x.transpose(0, 1).shape if kind.startswith("transpose") else shape)
        between = torch.empty_like(x)
        calls = {
            "layer_norm": lambda: f.layer_norm(x, x.shape[-1:], *arrays[1:], eps=1e-5),  # its out variant copies
            "rms_norm": lambda: f.rms_norm(x, x.shape[-1:], *arrays[1:], eps=1e-5),
            "softmax": lambda: torch.softmax(x, -1, out=out),
            "gelu": lambda: aten.gelu.out(x, out=out),
            "gelu_tanh": lambda: aten.gelu.out(x, approximate="tanh", out=out),
            "add": lambda: torch.add(*arrays, out=out),
            "silu_mul": lambda: aten.silu.out(x, out=out).mul_(arrays[1]),
            "rotary": lambda: torch_rotary(*arrays, out),
            "sum": lambda: torch.sum(x, -1, out=out),
            "mean": lambda: torch.mean(x, -1, out=out),
            "transpose_bias": lambda: out.copy_(torch.add(x, arrays[1][:, None], out=between).transpose(0, 1)),
            "transpose": lambda: out.copy_(x.transpose(0, 1)),
        }
        return Kernel(calls.get(kind, lambda: getattr(torch, kind)(x, out=out)), lambda found: found.numpy())

    return prepare


def torch_rotary(
    x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Half-split rotary positions; x and out [b, s, h, d], tables [p, d / 2]."""
    import torch

    (first, second), (out_first, out_second) = x.chunk(2, -1), out.chunk(2, -1)
    c, s = cos[positions][:, None], sin[positions][:, None]
    torch.mul(first, c, out=out_first).addcmul_(second, s, value=-1)
    torch.mul(second, c, out=out_second).addcmul_(first, s)
    return out


def inputs(name: str) -> list:
    """Seeded arrays of a case."""
    import numpy as np

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype="float32") for s in CASES[name]]
    if name.startswith("rotary"):
        arrays[1] = np.arange(arrays[1].size)
    return [np.abs(x) + 1e-3 for x in arrays] if name.startswith("log") else arrays


def measured(threads: int, rounds: int, only: str) -> list[dict[str, object]]:
    """One row per case: medians of all turns in microseconds, and the quietest turn of each kernel."""
    rows = []
    with interleaved.workers(__file__, tuple(ENGINES), threads, environment=ENVIRONMENT) as workers:
        for name in (name for name in CASES if only in name):
            entries = [
                interleaved.Entry("halo", workers["halo"], name),
                interleaved.Entry("memory", workers["halo"], MEMORY + name, same=False),
                interleaved.Entry("torch", workers["torch"], name),
            ]
            ready = interleaved.prepared(entries, ERROR)
            assert ready == entries, f"{name}: see what was left out"
            times = interleaved.race(ready, rounds, TURN_S)
            row: dict[str, object] = {"case": name, "threads": threads}
            for key, samples in times.items():
                row |= {f"{key}_us": statistics.median(samples), f"{key}_quietest_us": min(samples)}
            row["of_memory"] = statistics.median(m / h for m, h in zip(times["memory"], times["halo"]))
            row["torch_ratio"] = statistics.median(t / h for t, h in zip(times["torch"], times["halo"]))
            rows.append(row)
            sys.stderr.write(f"T{threads} {line_of(row)}\n")
    return rows


ENGINES = {"halo": halo_engine, "torch": torch_engine}


def line_of(row: dict[str, object]) -> str:
    return (
        f"{row['case']:24s} halo {row['halo_us']:9.1f} us   memory {row['memory_us']:9.1f}   of memory speed "
        f"{100 * row['of_memory']:4.0f} %   torch {row['torch_us']:9.1f}   torch / halo {row['torch_ratio']:5.2f}"
    )


def table(rows: Sequence[dict[str, object]]) -> str:
    """The rows as Markdown, one table per number of threads."""
    parts = []
    for threads in dict.fromkeys(row["threads"] for row in rows):
        parts += [
            f"### {threads} thread{'s' if threads > 1 else ''}\n",
            "| kernel | ours us | memory us | of memory speed | torch us | torch / ours |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        parts += [
            f"| {r['case']} | {r['halo_us']:.1f} | {r['memory_us']:.1f} | {100 * r['of_memory']:.0f} % | "
            f"{r['torch_us']:.1f} | {r['torch_ratio']:.2f} |"
            for r in rows
            if r["threads"] == threads
        ]
        parts.append("")
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the comparison and write its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="thread counts, separated by commas (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/kernels/memory_bound.md")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        interleaved.work(ENGINES[options.worker]())
        return
    meter = LoadMeter()
    rows = [row for n in options.threads.split(",") for row in measured(int(n), options.rounds, options.only)]
    text = table(rows) + interleaved.disturbance(meter)
    sys.stdout.write(text)
    if options.json:
        options.json.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if options.docs:
        _page.write_measured(DOCS, "memory_bound.py", text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
