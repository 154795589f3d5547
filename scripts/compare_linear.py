"""Linear layers here and in other engines: one process per engine, taking turns.

    python scripts/compare_linear.py --precision fp32 --threads 1 --shapes 768x768,768x2304 --rows 8,32,128,512
    python scripts/compare_linear.py --precision int8                # quantising the activation included, on both sides
    python scripts/compare_linear.py --precision fp32 bf16 int8 --decode   # GPT-2's 49 linears at one row, in order

Our side is compiled as every model is. A turn starts after a pause, because worker pools that still spin would
take cores from whoever runs next; a sample is the median of a turn's calls. Ratios are the fastest peer's time
divided by ours, paired by round, with their 90 % intervals; the last lines are geometric means. Beside them
stands the share of a ceiling that a kernel of its own reaches in the same run: multiply-adds for many rows, a
read of as many bytes as the weights have for one. --json keeps every sample; with --resume what it holds is not
measured again. --prepare only compiles, again, into --cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

PEERS = {"fp32": ("onnxruntime", "torch"), "int8": ("onnxruntime",), "bf16": ("torch",)}
BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # of a weight
GPT2 = (*((768, 2304), (768, 768), (768, 3072), (3072, 768)) * 12, (768, 50257))
PAUSE_S = 0.04
Linears = tuple[tuple[int, int], ...]
Calls = Callable[[int], Callable[[], object]]  # rows -> one run of all layers, each on rows of its own


@dataclass(frozen=True)
class Cell:
    """One measurement: samples in microseconds by engine, and the ceiling of the same run."""

    precision: str
    threads: int
    layers: str  # "768x2304", or "gpt2" for all of them one after the other
    rows: int
    samples_us: dict[str, list[float]]
    ceiling: float  # GFLOP/s (GOP/s), or GB/s for one row
    products: int  # multiply-adds of a run
    weight_bytes: int

    @property
    def key(self) -> tuple[object, ...]:
        return self.precision, self.threads, self.layers, self.rows

    @property
    def ours_us(self) -> float:
        return statistics.median(self.samples_us["halo_tvm"])

    @property
    def share(self) -> float:
        """Of the ceiling."""
        done = self.weight_bytes if self.rows == 1 else 2 * self.products
        return done / (self.ours_us * 1e3) / self.ceiling if self.ceiling else math.nan

    def best(self) -> tuple[str, object]:
        """The fastest peer, and how much longer it takes."""
        from halo_tvm.peers.statistics import paired_interval

        ours = self.samples_us["halo_tvm"]
        peers = {name: paired_interval(ours, s, 0.90) for name, s in self.samples_us.items() if name != "halo_tvm"}
        name = min(peers, key=lambda n: peers[n].value)
        return name, peers[name]


# ---------------------------------------------------------------- engines, each in a worker


def artifact(cache: Path, precision: str, layers: Linears) -> Path:
    name = "gpt2" if layers == GPT2 else "-".join(f"{k}x{n}" for k, n in layers)
    return cache / f"linear-{name}-{precision}.halo"


def compile_layers(cache: Path, precision: str, layers: Linears) -> Path:
    """The layers as a model: an input, a weight and an output each, so that nothing is shared but code."""
    path = artifact(cache, precision, layers)
    if path.exists():
        return path
    from halo_tvm.compiler import compile_model
    from halo_tvm.config import CompileConfig
    from halo_tvm.imported import ImportedModel, InputSpec
    from halo_tvm.models._builder import ModelBuilder, RandomWeights

    builder = ModelBuilder(RandomWeights(0))
    specs = tuple(InputSpec(f"x{i}", ("batch", k), "float32") for i, (k, _) in enumerate(layers))

    def body(m: ModelBuilder) -> dict[str, object]:
        xs = [m.input(spec.name, spec.shape, spec.dtype) for spec in specs]
        return {
            f"y{i}": m.linear(x, f"layer{i}", k, n, layout="kn", bias=False)
            for i, (x, (k, n)) in enumerate(zip(xs, layers, strict=True))
        }

    mod, outputs = builder.module(body)
    model = ImportedModel(
        name="linear", mod=mod, params=builder.params, inputs=specs, outputs=outputs, ranges={"batch": (1, 1024)},
        typical={"batch": 1 if layers == GPT2 else 128}, source={"kind": "builtin", "name": "linear"}, report={},
    )  # fmt: skip
    cache.mkdir(parents=True, exist_ok=True)
    compile_model(CompileConfig(model="linear", output=str(path), precision=precision), model)
    return path


def halo(cache: Path, precision: str, layers: Linears, threads: int) -> Calls:
    import tvm
    from tvm import relax

    from halo_tvm.artifact import read_manifest
    from halo_tvm.runtime.weights import load_weights

    path = compile_layers(cache, precision, layers)
    manifest = read_manifest(str(path))
    weights = load_weights(path / "params.bin", manifest.functions["main"].params, "resident")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path / "model.so")), tvm.cpu())
    main = machine["main"]

    def prepare(rows: int) -> Callable[[], object]:
        xs = [tvm.runtime.tensor(x) for x in inputs(rows, layers)]
        return lambda: main(*xs, *weights.tensors)

    return prepare


def onnxruntime(cache: Path, precision: str, layers: Linears, threads: int) -> Calls:
    import onnxruntime as ort

    from halo_tvm.peers._narrow import onnxruntime_int8

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory(prefix="halo-linear-") as folder:
        path = Path(folder) / "m.onnx"
        write_onnx(path, layers)
        if precision == "int8":
            (Path(folder) / "q").mkdir()
            onnxruntime_int8(path, Path(folder) / "q" / "m.onnx")
            path = Path(folder) / "q" / "m.onnx"
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def prepare(rows: int) -> Callable[[], object]:
        binding = session.io_binding()
        kept = []
        for i, (x, (_, n)) in enumerate(zip(inputs(rows, layers), layers, strict=True)):
            binding.bind_cpu_input(f"x{i}", x)
            out = ort.OrtValue.ortvalue_from_shape_and_type([rows, n], np.float32)
            binding.bind_ortvalue_output(f"y{i}", out)
            kept += [x, out]
        return lambda: (session.run_with_iobinding(binding), kept)[0]

    return prepare


def write_onnx(path: Path, layers: Linears) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, xs, ys, weights = [], [], [], []
    for i, (k, n) in enumerate(layers):
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"], name=f"layer{i}"))
        xs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["m", k]))
        ys.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["m", n]))
        weights.append(numpy_helper.from_array(random(k, n, seed=i) / np.float32(math.sqrt(k)), f"w{i}"))
    graph = helper.make_graph(nodes, "linears", xs, ys, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def torch_linear(cache: Path, precision: str, layers: Linears, threads: int) -> Calls:
    import torch

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    weights = [torch.from_numpy(random(n, k, seed=i)).to(dtype) for i, (k, n) in enumerate(layers)]

    def prepare(rows: int) -> Callable[[], object]:
        xs = [torch.from_numpy(x).to(dtype) for x in inputs(rows, layers)]

        def run() -> None:
            with torch.inference_mode():
                for x, weight in zip(xs, weights, strict=True):
                    torch.nn.functional.linear(x, weight)

        return run

    return prepare


ENGINES = {"halo_tvm": halo, "onnxruntime": onnxruntime, "torch": torch_linear}


def ceiling(precision: str, layers: Linears, rows: int, threads: int) -> float:
    """What this machine does at most: a read of the weights' bytes for one row, else multiply-adds."""
    from halo_tvm.ceilings.measure import fma_gflops, has_int8_dot, int8_gops, read_gbps, use_threads
    from halo_tvm.targets import resolve

    target = resolve("cpu")
    use_threads(threads)
    if rows == 1:
        return read_gbps(target, threads, weight_bytes(precision, layers))
    if precision != "int8":
        return fma_gflops(target, threads)
    return int8_gops(target, threads) if has_int8_dot(target) else 0.0


def weight_bytes(precision: str, layers: Linears) -> int:
    return BYTES[precision] * sum(k * n for k, n in layers)


def inputs(rows: int, layers: Linears) -> list[np.ndarray]:
    return [random(rows, k, seed=100 + i) for i, (k, _) in enumerate(layers)]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# ---------------------------------------------------------------- turns


def work(options: argparse.Namespace) -> None:
    """Worker: reads {"rows", "seconds"} lines, answers with the median of microseconds per call, or the ceiling."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print belongs to standard error
    precision, layers, threads = options.precision[0], parse_layers(options.shapes), options.threads[0]
    calls: dict[int, Callable[[], object]] = {}
    engine = ENGINES.get(options.worker)
    prepare = engine(options.cache, precision, layers, threads) if engine else None
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if prepare is None:
            answer = ceiling(precision, layers, request["rows"], threads)
        else:
            if request["rows"] not in calls:
                calls[request["rows"]] = prepare(request["rows"])
            answer = turn(calls[request["rows"]], request["seconds"])
        print(json.dumps(answer), file=replies, flush=True)


def turn(call: Callable[[], object], seconds: float) -> float:
    time.sleep(PAUSE_S)
    call()
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


class Worker:
    """One engine's process."""

    def __init__(self, engine: str, options: argparse.Namespace, precision: str, threads: int, layers: str) -> None:
        count = str(threads)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", engine, "--precision", precision, "--threads", count,
             "--shapes", layers, "--cache", str(options.cache)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": count, "TVM_NUM_THREADS": count},
        )  # fmt: skip
        self.engine = engine

    def wait(self) -> None:
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"{self.engine} did not start: its reason is above")

    def ask(self, **request: object) -> float:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def measure(
    options: argparse.Namespace, precision: str, threads: int, layers: str, done: set[tuple[object, ...]]
) -> Iterator[Cell]:
    """The cells of one weight shape (or of GPT-2's layers) that are not done yet."""
    todo = [rows for rows in options.rows if (precision, threads, layers, rows) not in done]
    if not todo:
        return
    names = ("halo_tvm", *PEERS[precision], "ceiling")
    workers = [Worker(name, options, precision, threads, layers) for name in names]
    linears = parse_layers(layers)
    try:
        for worker in workers:
            worker.wait()
        *engines, limit = workers
        for rows in todo:
            samples: dict[str, list[float]] = {worker.engine: [] for worker in engines}
            top = limit.ask(rows=rows)
            for index in range(options.rounds):
                first = index % len(engines)
                for worker in engines[first:] + engines[:first]:
                    samples[worker.engine].append(worker.ask(rows=rows, seconds=options.seconds))
            products = rows * sum(k * n for k, n in linears)
            top = max(top, limit.ask(rows=rows))  # before and behind: what disturbs it only lowers it
            yield Cell(precision, threads, layers, rows, samples, top, products, weight_bytes(precision, linears))
    finally:
        for worker in workers:
            worker.close()


def parse_layers(text: str) -> Linears:
    if text == "gpt2":
        return GPT2
    k, n = text.split("x")
    return ((int(k), int(n)),)


# ---------------------------------------------------------------- what is shown


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
    lines += ["", "| precision | threads | | cells | geometric mean of peer time / ours | least, its interval |",
              "|---|---:|---|---:|---:|---:|"]  # fmt: skip
    groups: dict[tuple[str, int, str], list[Cell]] = {}
    for c in cells:
        kind = "decode" if c.layers == "gpt2" else "rows 1 to 7" if c.rows < 8 else "rows from 8"
        groups.setdefault((c.precision, c.threads, kind), []).append(c)
    for (precision, threads, kind), members in groups.items():
        ratios = [c.best()[1] for c in members]
        mean = math.exp(statistics.fmean(math.log(r.value) for r in ratios))
        least = min(ratios, key=lambda r: r.high)
        lines.append(
            f"| {precision} | {threads} | {kind} | {len(members)} | {mean:.2f} | "
            f"{least.value:.2f} ({least.low:.2f} to {least.high:.2f}) |"
        )
    return "\n".join(lines) + "\n"


def read_cells(path: Path) -> list[Cell]:
    return [Cell(**item) for item in json.loads(path.read_text())] if path.exists() else []


def write_cells(path: Path, cells: Sequence[Cell]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps([asdict(c) for c in cells]) + "\n")
    temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="*", choices=sorted(PEERS), default=["fp32"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--shapes", default="768x768,768x2304,768x3072,3072x768,1024x1024,768x50257")
    parser.add_argument("--rows", default="8,32,128,512")
    parser.add_argument("--decode", action="store_true", help="GPT-2's linear layers one after the other, one row")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.03, help="per turn")
    parser.add_argument("--cache", type=Path, help="keep compiled layers there (default: a temporary directory)")
    parser.add_argument("--prepare", action="store_true", help="compile only")
    parser.add_argument("--json", type=Path, help="every sample, written after every cell")
    parser.add_argument("--resume", action="store_true", help="leave out what --json has already")
    parser.add_argument("--markdown", type=Path, help="also write the tables there")
    parser.add_argument("--worker", choices=(*ENGINES, "ceiling"), help=argparse.SUPPRESS)
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
    text = table(cells)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
