"""Time one linear layer here, in onnxruntime and in torch: one process per engine, taking turns.

    python scripts/compare_linear.py --threads 1 --shapes 768x768,768x2304 --rows 1,7,8,128

Prints a Markdown table: microseconds per call, and the faster peer's time divided by ours. A turn starts
after a pause, because worker pools that still spin would take cores from whoever runs next. Each number is
the fastest call of all rounds: on a shared machine disturbance only ever adds time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

ENGINES = ("halo_tvm", "onnxruntime", "torch")
PAUSE_S = 0.04


def halo(k: int, n: int) -> Callable[[np.ndarray], Callable[[], object]]:
    import tvm
    from tvm import relax, tirx

    from halo_tvm.relay_ops.linear import Linear
    from halo_tvm.targets import resolve
    from halo_tvm.tir_schedules import RULES
    from halo_tvm.tir_schedules.gemm import pack_shape

    target = resolve("cpu")
    kc, nr = pack_shape(k, n, target)
    weight = relax.Var("weight", relax.TensorType([k // kc, -(-n // nr), kc, nr], "float32"))
    x = relax.Var("x", relax.TensorType([tirx.Var("m", "int64"), k], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weight]):
        builder.emit_func_output(builder.emit(Linear.call(x, weight, layout="packed", n=n)))
    mod = relax.transform.LegalizeOps()(builder.get())
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    rule = RULES["gemm"]
    func = rule.apply(func, target, rule.default(func, target)).with_attr("global_symbol", "main")
    run = tvm.compile(tvm.IRModule({"main": func}), target=target.tvm)["main"]
    data = tvm.runtime.tensor(random(k // kc, -(-n // nr), kc, nr))

    def prepare(x: np.ndarray) -> Callable[[], object]:
        a, out = tvm.runtime.tensor(x), tvm.runtime.empty((x.shape[0], n), "float32")
        return lambda: run(a, data, out)

    return prepare


def ort(k: int, n: int) -> Callable[[np.ndarray], Callable[[], object]]:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])],
        [numpy_helper.from_array(random(k, n), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def prepare(x: np.ndarray) -> Callable[[], object]:
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        out = onnxruntime.OrtValue.ortvalue_from_shape_and_type([x.shape[0], n], np.float32)
        binding.bind_ortvalue_output("y", out)
        return lambda: session.run_with_iobinding(binding)

    return prepare


def torch_linear(k: int, n: int) -> Callable[[np.ndarray], Callable[[], object]]:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    weight = torch.from_numpy(random(n, k))

    def prepare(x: np.ndarray) -> Callable[[], object]:
        a = torch.from_numpy(x)
        return lambda: torch.nn.functional.linear(a, weight)

    return prepare


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def work(engine: str, k: int, n: int) -> None:
    """Worker: reads {"rows", "seconds"} lines, answers with a list of seconds per call."""
    prepare = {"halo_tvm": halo, "onnxruntime": ort, "torch": torch_linear}[engine](k, n)
    calls: dict[int, Callable[[], object]] = {}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        rows = request["rows"]
        call = calls.setdefault(rows, prepare(random(rows, k)))
        time.sleep(PAUSE_S)
        call()
        times, end = [], time.perf_counter() + request["seconds"]
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        sys.stdout.write(json.dumps(times) + "\n")
        sys.stdout.flush()


def compare(k: int, n: int, all_rows: list[int], threads: int, rounds: int, seconds: float) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TVM_NUM_THREADS": str(threads)}
    workers = {
        engine: subprocess.Popen(
            [sys.executable, __file__, "--worker", engine, "--shapes", f"{k}x{n}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for engine in ENGINES
    }  # fmt: skip
    for worker in workers.values():
        assert worker.stdout.readline() == "ready\n", "a worker did not start"
    for rows in all_rows:
        times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for _ in range(rounds):
            for engine, worker in workers.items():
                worker.stdin.write(json.dumps({"rows": rows, "seconds": seconds}) + "\n")
                worker.stdin.flush()
                times[engine] += json.loads(worker.stdout.readline())
        us = {engine: min(t) * 1e6 for engine, t in times.items()}
        gflops = 2e-3 * rows * k * n / us["halo_tvm"]
        best = min(us["onnxruntime"], us["torch"])
        columns = " | ".join(f"{us[engine]:.0f}" for engine in ENGINES)
        print(f"| {threads} | {k}x{n} | {rows} | {columns} | {gflops:.0f} | {best / us['halo_tvm']:.2f} |", flush=True)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shapes", default="768x768,768x2304,768x3072,3072x768,768x50257")
    parser.add_argument("--rows", default="1,7,8,9,32,33,127,128,500,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="per turn")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
    if options.worker:
        work(options.worker, *shapes[0])
        return
    for k, n in shapes:
        compare(k, n, [int(r) for r in options.rows.split(",")], options.threads, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
