"""Sound files of every format that is imported, small, for `hostile_files.py` to change; and sound artifacts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "importers")]


def write_onnx(folder: Path, every: int = 1) -> None:
    """The models of the ONNX project's node tests, one in `every`, as far as they are small."""
    import warnings

    import onnx_conformance

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = list(onnx_conformance.load_tests("node").values())
    for test in tests[::every]:
        data = test.model.SerializeToString()
        if len(data) < 1 << 16:
            (folder / f"{test.name}.onnx").write_bytes(data)


def write_containers(folder: Path, kinds: tuple[str, ...]) -> None:
    """Files of `kinds`, names of functions below."""
    for kind in kinds:
        globals()[f"_write_{kind}"](folder)


def _write_gguf(folder: Path) -> None:
    from gguf_files import write_model

    for architecture in ("llama", "gemma2", "phi2", "gpt2"):
        write_model(folder, architecture)


def _write_tflite(folder: Path) -> None:
    from tflite_files import GraphFile

    def grid(scale: float) -> tuple:
        return ((scale,), (0,), 0)

    small, wide = GraphFile(), GraphFile()
    x = small.input((1, 4), "int8", grid(0.5))
    w = small.const(np.arange(12).reshape(3, 4), "int8", ((0.1, 0.2, 0.3), (0, 0, 0), 0))
    out = small.tensor((1, 3), "int8", grid=grid(0.25))
    y = small.op("FULLY_CONNECTED", [x, w, -1], [out], "FullyConnectedOptions")
    shape = small.const([3, 1], "int32")
    y = small.op("RESHAPE", [*y, shape], [small.tensor((3, 1), "int8", grid=grid(0.25))])
    (folder / "small.tflite").write_bytes(small.write(y))
    x = wide.input((-1, 8, 8, 3))
    w = wide.const(np.ones((4, 3, 3, 3)), "float32")
    options = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    y = wide.op(
        "CONV_2D", [x, w, wide.const(np.zeros(4), "float32")], [wide.tensor((-1, 8, 8, 4))], "Conv2DOptions", **options
    )
    axes = wide.const([1, 2], "int32")
    y = wide.op("MEAN", [*y, axes], [wide.tensor((-1, 4))], "ReducerOptions", keepDims=False)
    y = wide.op("SOFTMAX", y, [wide.tensor((-1, 4))], "SoftmaxOptions", beta=1.0)
    y = wide.op("ADD", [*y, wide.const(np.ones(4), "float32")], [wide.tensor((-1, 4))], "AddOptions")
    z = wide.op("CONCATENATION", [*y, *y], [wide.tensor((-1, 8))], "ConcatenationOptions", axis=1)
    (folder / "wide.tflite").write_bytes(wide.write(z))


def _write_npz(folder: Path) -> None:
    np.savez(folder / "inputs.npz", x=np.ones((2, 3), "float32"), ids=np.arange(4), flag=np.array(True))
    np.savez_compressed(folder / "packed.npz", x=np.zeros((20, 30), "float32"))


def _write_huggingface(folder: Path) -> None:
    import packed_files
    import scaled_files
    import torch
    from checkpoints import CONFIGS, write_checkpoint
    from safetensors.torch import load_file, save_file

    for kind in CONFIGS:
        write_checkpoint(folder / f"{kind}.huggingface", kind)
    for kind in packed_files.CONFIGS:
        packed_files.quantised(folder / f"{kind}.huggingface", kind)
    for kind in scaled_files.KINDS:
        scaled_files.scaled(folder / f"{kind}.huggingface", kind)
    for kind, is_zip in (("zip", True), ("legacy", False)):
        pickled = folder / f"{kind}.huggingface"
        write_checkpoint(pickled, "llama")
        tensors = load_file(pickled / "model.safetensors")
        (pickled / "model.safetensors").unlink()
        torch.save(tensors, pickled / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    adapter = folder / "adapter.huggingface"
    adapter.mkdir()
    stem = f"base_model.model.{packed_files.LAYER}"
    grown = {"lora_A.weight": torch.ones(4, 64), "lora_B.weight": torch.ones(64, 4)}
    grown["lora_magnitude_vector"] = torch.ones(64)
    save_file({f"{stem}.{end}": tensor for end, tensor in grown.items()}, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "lora_alpha": 8, "base_model_name_or_path": str(folder / "llama.huggingface")}
    (adapter / "adapter_config.json").write_text(json.dumps(config))


def _net():
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv1d(3, 4, 3), torch.nn.Linear(4, 5)

        def forward(self, x):
            y = torch.relu(self.conv(x)).mean(-1)
            return torch.softmax(self.head(y), -1) + torch.arange(5)

    torch.manual_seed(0)
    return Net().eval(), torch.ones(2, 3, 8)


def _write_pt2(folder: Path) -> None:
    import torch

    net, x = _net()
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch", max=8)},))
    torch.export.save(program, folder / "net.pt2")


def _write_pt(folder: Path) -> None:
    import torch

    net, x = _net()
    torch.jit.trace(net, x).save(str(folder / "net.pt"))


def _write_jax(folder: Path) -> None:
    import jax

    weight = np.ones((4, 5), "float32")
    function = jax.jit(lambda x: jax.nn.softmax(x @ weight) + x.sum())
    shape = jax.export.symbolic_shape("n, 4")
    exported = jax.export.export(function)(jax.ShapeDtypeStruct(shape, "float32"))
    (folder / "net.jax").write_bytes(bytes(exported.serialize()))
    (folder / "net.stablehlo").write_text(exported.mlir_module())


def _write_keras(folder: Path) -> None:
    import keras

    layers = [keras.layers.Conv1D(4, 3), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3, "softmax")]
    keras.Sequential([keras.Input((8, 3)), *layers]).save(folder / "net.keras")


def write_artifacts(folder: Path) -> None:
    """An artifact of a small net with open sizes, one that keeps state and draws, and one of a language model."""
    import onnx
    from checkpoints import write_checkpoint
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, shape: tuple) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    weight = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("RandomNormalLike", ["m"], ["r"]),
        helper.make_node("Add", ["m", "r"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
    ]
    held = [numpy_helper.from_array(weight, "w")]
    for name, kept in (("net", (nodes[0], helper.make_node("Softmax", ["m"], ["y"], axis=-1))), ("draws", nodes)):
        graph = helper.make_graph(list(kept), "g", [info("x", ("n", 16))], [info("y", ("n", 8))], held)
        model, file = (
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
            f"{name}.onnx",
        )
        onnx.save(model, folder.parent / file)
        _compile(folder.parent / file, folder / f"{name}.halo")
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    write_checkpoint(folder.parent / "tiny", "llama", vocab_size=64, intermediate_size=48, **sizes)
    _compile(folder.parent / "tiny", folder / "tiny.halo")


def _compile(model: Path, output: Path) -> None:
    import halo_tvm
    from halo_tvm.config import CompileConfig

    halo_tvm.compile_model(CompileConfig(model=str(model), output=str(output), records=False, threads=1))


def read_bytes(path: Path) -> bytes:
    """The file, or of a directory the largest one: the weights."""
    return (path if path.is_file() else max(path.iterdir(), key=lambda file: file.stat().st_size)).read_bytes()
