"""Time the memory-bound kernels against torch: one process per engine, turns interleaved, medians.

Usage: python scripts/memory_bound.py [--threads 1] [--rounds 9] [--only softmax]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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
    "transpose 768x3072": ((768, 3072),),
    "transpose 128x12x64": ((128, 12, 64),),
}
PAUSE_S, TURN_S = 0.03, 0.05  # spinning workers of the other engine must be asleep


def halo_engine() -> Callable[[str], tuple[Callable[[], object], object]]:
    """Our kernels by case name: a function to call, and its result for comparison."""
    import numpy as np
    import tvm
    from tvm import relax, tirx

    from halo_tvm.passes.vector_math import VectorMath
    from halo_tvm.relay_ops import OPERATORS
    from halo_tvm.targets import TARGETS, Target
    from halo_tvm.tir_schedules import RULES

    spec = TARGETS["x86"]
    target = Target(spec=spec, isa=spec.isas[-1] if "avx512_vnni" in Path("/proc/cpuinfo").read_text() else spec.isas[0], cores=2)
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
        "transpose": lambda x: op.permute_dims(x, (1, 0) if x.ty.ndim == 2 else (1, 0, 2)),
    }

    def prepare(name: str) -> tuple[Callable[[], object], object]:
        builder, shapes = relax.BlockBuilder(), CASES[name]
        params = [relax.Var(f"a{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
        with builder.function("main", params):
            with builder.dataflow():
                out = builder.emit_output(graphs[name.split()[0]](*params))
            builder.emit_func_output(out)
        t = relax.transform
        passes = [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FoldConstant(), t.FuseOps(), t.FuseTIR()]
        mod = tvm.transform.Sequential(passes)(builder.get())
        (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
        rule = RULES["row_reduction" if any(w in name for w in ("norm", "softmax")) else "elementwise"]
        scheduled = rule.apply(func, target, rule.default(func, target)).with_attr("global_symbol", "main")
        mod = VectorMath()(tvm.IRModule({"main": scheduled}))[0]
        kernel = tvm.compile(mod, target=target.tvm)["main"]
        arrays = [tvm.runtime.tensor(x) for x in inputs(name)]
        shape = [int(d) for d in func.params[-1].shape]
        result = tvm.runtime.tensor(np.zeros(shape, "float32"))
        return lambda: kernel(*arrays, result), result

    return prepare


def torch_engine() -> Callable[[str], tuple[Callable[[], object], object]]:
    """torch's kernels by case name, writing into memory that exists already where torch can."""
    import torch

    torch.set_num_threads(int(os.environ["TVM_NUM_THREADS"]))
    torch.set_grad_enabled(False)
    f = torch.nn.functional

    def prepare(name: str) -> tuple[Callable[[], object], object]:
        kind, arrays = name.split()[0], [torch.from_numpy(x) for x in inputs(name)]
        x = arrays[0]
        out = torch.empty_like(x) if kind != "transpose" else torch.empty(x.transpose(0, 1).shape)
        calls = {
            "layer_norm": lambda: f.layer_norm(x, x.shape[-1:], *arrays[1:], eps=1e-5),
            "rms_norm": lambda: f.rms_norm(x, x.shape[-1:], *arrays[1:], eps=1e-5),
            "softmax": lambda: torch.softmax(x, -1),
            "gelu": lambda: f.gelu(x),
            "gelu_tanh": lambda: f.gelu(x, approximate="tanh"),
            "add": lambda: torch.add(*arrays, out=out),
            "transpose": lambda: out.copy_(x.transpose(0, 1)),
        }
        call = calls.get(kind, lambda: getattr(torch, kind)(x, out=out))
        return call, call()

    return prepare


def inputs(name: str) -> list:
    """Seeded arrays of a case."""
    import numpy as np

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype="float32") for s in CASES[name]]
    return [np.abs(x) + 1e-3 for x in arrays] if name.startswith("log") else arrays


def serve(engine: str) -> None:
    """Answer one JSON line per line of standard input: the median seconds of one turn of a case."""
    prepare = {"halo": halo_engine, "torch": torch_engine}[engine]()
    ready: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in ready:
            call, result = prepare(name)
            call()
            ready[name] = call
            np_result = result.numpy()
            sys.stdout.write(json.dumps([float(abs(np_result).sum()), float(np_result.reshape(-1)[7])]) + "\n")
        else:
            samples, stop = [], time.perf_counter() + TURN_S
            while time.perf_counter() < stop:
                start = time.perf_counter()
                ready[name]()
                samples.append(time.perf_counter() - start)
            sys.stdout.write(json.dumps(statistics.median(samples)) + "\n")
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the comparison and write one row per case: medians of all turns, and the quietest turn of each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    parser.add_argument("--serve", choices=["halo", "torch"])
    options = parser.parse_args(argv)
    if options.serve:
        serve(options.serve)
        return
    env = os.environ | {"TVM_NUM_THREADS": str(options.threads), "OMP_NUM_THREADS": str(options.threads), "TVM_BIND_THREADS": "0"}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    engines = {
        name: subprocess.Popen([sys.executable, __file__, "--serve", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        for name in ("halo", "torch")
    }

    def ask(engine: str, name: str) -> object:
        process = engines[engine]
        process.stdin.write(name + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    for name in CASES:
        if options.only not in name:
            continue
        ours, theirs = ask("halo", name), ask("torch", name)
        assert all(abs(a - b) <= 1e-4 * (1 + abs(b)) for a, b in zip(ours, theirs)), f"{name}: results differ, {ours} and {theirs}"
        times: dict[str, list[float]] = {"halo": [], "torch": []}
        for _ in range(options.rounds):
            for engine in times:
                time.sleep(PAUSE_S)
                times[engine].append(ask(engine, name))
        halo, peer = (statistics.median(times[e]) * 1e6 for e in ("halo", "torch"))
        quiet, peer_quiet = (min(times[e]) * 1e6 for e in ("halo", "torch"))
        sys.stdout.write(
            f"T{options.threads} {name:22s} halo {halo:8.1f} us   torch {peer:8.1f} us   ratio {peer / halo:5.2f}"
            f"   quietest turn {quiet:8.1f} {peer_quiet:8.1f}   ratio {peer_quiet / quiet:5.2f}\n"
        )
        sys.stdout.flush()
    for process in engines.values():
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
