"""A net of Keras on TensorFlow as a file of another format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FORMATS = ("saved_model", "tflite", "tflite-int8")
_EXAMPLES = 4  # arrays from which the converter takes the grids of integers


def written(net: Any, kind: str, folder: Path) -> Path:
    """`net` as a SavedModel or a TFLite file, of integers throughout with `tflite-int8`; its one input is pictures."""
    import numpy as np
    import tensorflow as tf

    saved = folder / "net"
    net.export(str(saved), format="tf_saved_model", verbose=False)
    if kind == "saved_model":
        return saved
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved))
    if kind == "tflite-int8":
        rng = np.random.default_rng(1)
        shape = (1, *net.inputs[0].shape[1:])
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([rng.random(shape, np.float32)] for _ in range(_EXAMPLES))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    path = folder / "net.tflite"
    path.write_bytes(converter.convert())
    return path


def portable(path: Path, x: Any) -> list[Any]:
    """The outputs of a TFLite file by LiteRT's portable kernels, for one input.

    Its usual ones round elsewhere. In a deep net of integers single steps add up, and what the two differ by is what
    no engine can be held to.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(str(path), num_threads=1, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    (given,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(given["index"], x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(made["index"]) for made in interpreter.get_output_details()]
