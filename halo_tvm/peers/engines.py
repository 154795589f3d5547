"""The engines `--vs` knows: the worker module of each, the form of model it reads, its options and its precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PeerKind:
    """One name of `--vs`. `precision` is that of its products with weights, as the engine is asked for it."""

    module: str  # in this package
    form: str  # of model, see `sources.PeerModels`
    options: Mapping[str, object] = field(default_factory=dict)
    precision: str = "fp32"


PEERS: dict[str, PeerKind] = {
    "onnxruntime": PeerKind("onnxruntime", "onnx"),
    "onnxruntime-plain": PeerKind("onnxruntime", "onnx-plain"),
    "onnxruntime-extended": PeerKind("onnxruntime", "onnx-plain", {"optimisation": "extended"}),
    "onnxruntime-int8": PeerKind("onnxruntime", "onnx-int8", precision="int8"),
    "onnxruntime-int8-plain": PeerKind("onnxruntime", "onnx-plain-int8", precision="int8"),
    "torch": PeerKind("torch", "weights", {"compile": False}),
    "torch-compile": PeerKind("torch", "weights", {"compile": True}),
    "torch-autotune": PeerKind("torch", "weights", {"compile": True, "autotune": True}),
    "openvino": PeerKind("openvino", "onnx-plain"),
    "openvino-bf16": PeerKind("openvino", "onnx-plain", {"precision": "bf16"}, "bf16"),
    "openvino-fp16": PeerKind("openvino", "onnx-plain", {"precision": "f16"}, "fp16"),
    "openvino-int8": PeerKind("openvino", "openvino-int8", precision="int8"),
    "openvino-int8-static": PeerKind("openvino", "openvino-int8-static", precision="int8"),
    "jax": PeerKind("jax", "weights"),
    "tvm": PeerKind("tvm", "onnx-plain"),
    "libxsmm": PeerKind("libxsmm", "weights"),
}
