"""Linears of Hugging Face checkpoints that a tool has quantised, made float32 when they are asked for.

words            integers of 4 or 8 bits in words of 32: GPTQ, AWQ, compressed-tensors
scaled           numbers of 8 bits, float8 or int8, with scales: FP8 of several tools, compressed-tensors, ModelOpt
four_bit_floats  floats of 4 bits with scales of groups: NVFP4, MXFP4
ternary          -1, 0 or 1 in two bits, one scale: BitNet
bitsandbytes     tables of 16 numbers with scales of blocks; rows of int8
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UnsupportedModel
from . import bitsandbytes, four_bit_floats, scaled, ternary, words
from .method import ACTIVATIONS, Layer, Method

__all__ = ["ACTIVATIONS", "Layer", "Method", "method_of"]

_TOOLS = (words.method_of, scaled.method_of, four_bit_floats.method_of, ternary.method_of, bitsandbytes.method_of)
_KNOWN = (
    "gptq, awq (gemm), mxfp4 (of gpt-oss), "
    "fp8, fbgemm_fp8, modelopt (FP8, NVFP4), bitsandbytes, bitnet (packed), or compressed-tensors (pack-quantized of "
    "4 or 8 bits, int-quantized, float-quantized, mxfp8-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized)"
)
_SAID = ("quant_method", "quant_algo", "format", "version", "bits", "quantization_mode", "use_rms_norm")


def method_of(config: Mapping[str, object]) -> Method | None:
    """How the checkpoint of a config.json stores its linears, None where as they are; `UnsupportedModel` otherwise."""
    said = config.get("quantization_config", config.get("compression_config"))
    if said is None:
        return None
    about = said if isinstance(said, Mapping) else {}
    for of_tool in _TOOLS:
        method = of_tool(about)
        if method is not None:
            return method
    found = ", ".join(f"{key} {about[key]!r:.40}" for key in _SAID if key in about)
    raise UnsupportedModel(
        f"expected a checkpoint that is not quantised, or {_KNOWN}, found {found or repr(said)[:80]} in config.json: "
        "give the checkpoint that it was made of, or a GGUF file"
    )
