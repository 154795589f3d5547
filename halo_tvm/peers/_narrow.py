"""int8 models for peers, made of an exported ONNX file the way each engine's own tools recommend.

    python -m halo_tvm.peers._narrow FORM SOURCE TARGET [CALIBRATION.npz]

A process of its own: these tools import torch, print tables and need the weights several times over.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import MissingPackage, PeerFailed
from ..processes import inherited_environment
from ..targets import resolve
from .protocol import split_cases

NEEDS = {
    "onnx-int8": (("onnx", "onnxruntime"), "pip install onnx onnxruntime"),
    "onnx-plain-int8": (("onnx", "onnxruntime"), "pip install onnx onnxruntime"),
    "openvino-int8": (("openvino", "nncf"), "pip install openvino nncf"),
    "openvino-int8-static": (("openvino", "nncf"), "pip install openvino nncf"),
}


def write_int8(form: str, source: Path, target: Path, calibration: Path | None = None) -> None:
    """`source` as an int8 model of `form` at `target`; `PeerFailed` with the tool's last words when it cannot."""
    packages, install = NEEDS[form]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(package, f"a model of the form {form}", install)
    command = [sys.executable, "-m", __name__, form, *map(str, filter(None, (source, target, calibration)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=inherited_environment())
    if done.returncode:
        raise PeerFailed(f"expected a model of the form {form}, but its tool ended with {done.stderr.strip()[-300:]!r}")


def onnxruntime_int8(source: Path, target: Path) -> None:
    """onnxruntime's dynamic quantisation: weights int8 per channel, activations uint8 per tensor at run time.

    Only products are quantised: lookups in a quantised table would be slower, not faster. Weights have seven bits where
    the CPU adds two products of bytes in 16 bits, as onnxruntime's guide says for CPUs without VNNI.
    """
    import logging

    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    prepared = target.with_name("prepared.onnx")
    model = onnx.load(source)
    fold_transposes(model)
    onnx.save(model, prepared, save_as_external_data=True, location="prepared.data")
    logging.getLogger().setLevel(logging.ERROR)  # it advises on every call to pre-process, which was just done
    quantize_dynamic(
        prepared,
        target,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        reduce_range=saturates(),
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    prepared.unlink()
    prepared.with_name("prepared.data").unlink()


def saturates() -> bool:
    """Whether this CPU has no instruction that multiplies bytes and adds in 32 bits."""
    return resolve("cpu").isa.byte_dot == "vpmaddwd"


def fold_transposes(model: object) -> None:
    """A transposed weight becomes a weight of its own: a product is quantised only where its weight is stored."""
    from onnx import numpy_helper

    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in [n for n in graph.node if n.op_type == "Transpose" and n.input[0] in weights]:
        weight = numpy_helper.to_array(weights[node.input[0]])
        order = next((a.ints for a in node.attribute if a.name == "perm"), range(weight.ndim)[::-1])
        turned = np.ascontiguousarray(weight.transpose(order))
        graph.initializer.append(numpy_helper.from_array(turned, node.output[0]))
        graph.node.remove(node)


def openvino_int8(source: Path, target: Path, *, calibration: Sequence[Mapping[str, np.ndarray]] | None = None) -> None:
    """OpenVINO's int8: weights alone, activations then quantised by the plugin at run time; or with `calibration`
    inputs both, with ranges found on them."""
    import nncf
    import openvino

    model = openvino.Core().read_model(source)
    if calibration is None:
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    else:
        model = nncf.quantize(
            model,
            nncf.Dataset([dict(case) for case in calibration]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(calibration),
        )
    openvino.save_model(model, target, compress_to_fp16=False)


def _main(form: str, source: str, target: str, calibration: str = "") -> None:
    if form in ("onnx-int8", "onnx-plain-int8"):
        onnxruntime_int8(Path(source), Path(target))
        return
    cases = None
    if calibration:
        with np.load(calibration, allow_pickle=False) as arrays:
            cases = list(split_cases(arrays, "input").values())
    openvino_int8(Path(source), Path(target), calibration=cases)


if __name__ == "__main__":
    _main(*sys.argv[1:])
