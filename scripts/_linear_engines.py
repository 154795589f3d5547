"""The engines of compare_linear.py: the same linear layers, with the same weights and rows, in each."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _interleaved import Kernel

GPT2 = (*((768, 2304), (768, 768), (768, 3072), (3072, 768)) * 12, (768, 50257))
BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # of a weight
Linears = tuple[tuple[int, int], ...]  # (k, n) of each layer
Prepare = Callable[[int], Kernel]  # from a number of rows; a run is all layers, each on rows of its own


def artifact(cache: Path, precision: str, layers: Linears) -> Path:
    name = "gpt2" if layers == GPT2 else "-".join(f"{k}x{n}" for k, n in layers)
    return cache / f"layers-{name}-{precision}.halo"


def compile_layers(cache: Path, precision: str, layers: Linears) -> Path:
    """The layers as a model: an input, a weight and an output each, so that nothing is shared but code."""
    path = artifact(cache, precision, layers)
    if path.exists():
        return path
    from halo_tvm.compiler import compile_model
    from halo_tvm.config import CompileConfig
    from halo_tvm.imported import ImportedModel, InputSpec
    from halo_tvm.models.builder import ModelBuilder, RandomWeights
    from halo_tvm.params import ParamSource

    class SameWeights(RandomWeights):
        """Those of `weight`, which every engine has."""

        def source(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> ParamSource:
            index = int(name.split(".")[0].removeprefix("layer"))
            assert shape == layers[index], f"{name} is {shape}"
            return ParamSource(shape, "float32", lambda: weight(index, *shape))

    builder = ModelBuilder(SameWeights(0))
    specs = tuple(InputSpec(f"x{i}", ("batch", k), "float32") for i, (k, _) in enumerate(layers))

    def body(m: ModelBuilder) -> dict[str, object]:
        xs = [m.input(spec.name, spec.shape, spec.dtype) for spec in specs]
        return {
            f"y{i}": m.linear(x, f"layer{i}", k, n, layout="kn", bias=False)
            for i, (x, (k, n)) in enumerate(zip(xs, layers, strict=True))
        }

    mod, outputs = builder.module(body)
    model = ImportedModel(
        name="linear",
        mod=mod,
        params=builder.params,
        inputs=specs,
        outputs=outputs,
        ranges={"batch": (1, 1024)},
        typical={"batch": 1 if layers == GPT2 else 128},
        source={"kind": "builtin", "name": "linear"},
        report={},
    )
    cache.mkdir(parents=True, exist_ok=True)
    compile_model(CompileConfig(model="linear", output=str(path), precision=precision, validate=False), model)
    return path


def halo(cache: Path, precision: str, layers: Linears, threads: int) -> Prepare:
    """Ours, compiled as every model is."""
    import tvm
    from tvm import relax

    from halo_tvm.artifact import opened
    from halo_tvm.runtime.weights import load_weights

    path = compile_layers(cache, precision, layers)
    with opened(path) as artifact:
        weights = load_weights(artifact, "params.bin", artifact.manifest.functions["main"].params, "resident")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path / "model.so")), tvm.cpu())
    main = machine["main"]

    def prepare(rows: int) -> Kernel:
        xs = [tvm.runtime.tensor(x) for x in inputs(rows, layers)]

        def result(ys: object) -> np.ndarray:
            return joined([y.numpy() for y in ([ys] if len(layers) == 1 else ys)])

        return Kernel(lambda: main(*xs, *weights.tensors), result)

    return prepare


def onnxruntime(cache: Path, precision: str, layers: Linears, threads: int) -> Prepare:
    """onnxruntime, in int8 after its own dynamic quantisation; inputs and outputs bound to fixed buffers."""
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

    def prepare(rows: int) -> Kernel:
        binding = session.io_binding()
        xs = inputs(rows, layers)
        outs = [ort.OrtValue.ortvalue_from_shape_and_type([rows, n], np.float32) for _, n in layers]
        for i, (x, out) in enumerate(zip(xs, outs, strict=True)):
            binding.bind_cpu_input(f"x{i}", x)
            binding.bind_ortvalue_output(f"y{i}", out)
        return Kernel(
            lambda: (session.run_with_iobinding(binding), xs)[0],  # the binding does not hold its inputs
            lambda _: joined([out.numpy() for out in outs]),
        )

    return prepare


def write_onnx(path: Path, layers: Linears) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, xs, ys, weights = [], [], [], []
    for i, (k, n) in enumerate(layers):
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"], name=f"layer{i}"))
        xs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["m", k]))
        ys.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["m", n]))
        weights.append(numpy_helper.from_array(weight(i, k, n), f"w{i}"))
    graph = helper.make_graph(nodes, "linears", xs, ys, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def torch_eager(cache: Path, precision: str, layers: Linears, threads: int) -> Prepare:
    return _torch(precision, layers, threads, compiled=False)


def torch_compile(cache: Path, precision: str, layers: Linears, threads: int) -> Prepare:
    """Through inductor with frozen weights, which packs them; for exactly the rows that are timed."""
    return _torch(precision, layers, threads, compiled=True)


def _torch(precision: str, layers: Linears, threads: int, *, compiled: bool) -> Prepare:
    """torch's linear layers. In bf16 rows come and results go in bfloat16, as they do in a torch model of that type;
    ours has both in float32 and rounds the rows itself."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)  # frozen weights are for inference only
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i, (k, n) in enumerate(layers):
                self.register_buffer(f"w{i}", torch.from_numpy(weight(i, k, n).T.copy()).to(dtype))

        def forward(self, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.nn.functional.linear(x, getattr(self, f"w{i}")) for i, x in enumerate(xs))

    module = Layers().eval()

    def prepare(rows: int) -> Kernel:
        run = module
        if compiled:
            import torch._inductor.config as inductor

            inductor.freezing = True
            torch._dynamo.reset()  # one number of rows at a time: after some it would go on uncompiled
            run = torch.compile(module, dynamic=False)
        xs = [torch.from_numpy(x).to(dtype) for x in inputs(rows, layers)]
        return Kernel(lambda: run(*xs), lambda ys: joined([y.float().numpy() for y in ys]))

    return prepare


ENGINES = {"halo_tvm": halo, "onnxruntime": onnxruntime, "torch": torch_eager, "torch-compile": torch_compile}


def ceiling(precision: str, layers: Linears, threads: int) -> float:
    """The multiply-adds this machine does at most; for bf16 those of float32."""
    import tvm  # noqa: F401 - brings the pool of threads

    from halo_tvm.ceilings.measure import fma_gflops, has_int8_dot, int8_gops
    from halo_tvm.runtime.runner import configure_threads
    from halo_tvm.targets import resolve, usable_cpus

    target = resolve("cpu", precision=precision)
    configure_threads(threads, usable_cpus())
    if precision != "int8":
        return fma_gflops(target, threads)
    return int8_gops(target, threads) if has_int8_dot(target) else 0.0


def read(cache: Path, precision: str, layers: Linears, threads: int) -> Prepare:
    """As many bytes as the weights have, read and added up: what one row cannot go below."""
    import tvm  # noqa: F401 - brings the pool of threads

    from halo_tvm.ceilings.measure import reader
    from halo_tvm.runtime.runner import configure_threads
    from halo_tvm.targets import resolve, usable_cpus

    configure_threads(threads, usable_cpus())
    once, _ = reader(resolve("cpu"), threads, weight_bytes(precision, layers))
    return lambda rows: Kernel(lambda: once(1), lambda _: np.zeros(1))


def weight_bytes(precision: str, layers: Linears) -> int:
    return BYTES[precision] * sum(k * n for k, n in layers)


def weight(index: int, k: int, n: int) -> np.ndarray:
    """The weight of layer `index`, [k, n]: results are about as large as rows."""
    return random(k, n, seed=index) / np.float32(math.sqrt(k))


def inputs(rows: int, layers: Linears) -> list[np.ndarray]:
    return [random(rows, k, seed=1000 + i) for i, (k, _) in enumerate(layers)]


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])
