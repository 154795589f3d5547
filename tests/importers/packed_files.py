"""Tiny checkpoints of packed integers, as GPTQ, AWQ and compressed-tensors write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from checkpoints import write_checkpoint
from safetensors.numpy import load_file, save_file

GROUP = 32
LAYER = "model.layers.0.self_attn.o_proj"
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that lies at each place of a word
CONFIGS: dict[str, dict[str, object]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False},
    "gptq-v2": {"quant_method": "gptq", "bits": 4, "sym": False, "checkpoint_format": "gptq_v2"},
    "gptq-8": {"quant_method": "gptq", "bits": 8, "group_size": GROUP, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": True}}},
        "ignore": ["lm_head"],
    },
    "compressed-zeros": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": False}}},
    },
}


def words(numbers: np.ndarray, axis: int, bits: int = 4, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Integers packed along `axis` into int32, the first (or that of `order`) in the lowest bits."""
    per = 32 // bits
    rows = np.moveaxis(numbers, axis, 0).astype(np.uint64)
    found = np.zeros((-(-len(rows) // per), *rows.shape[1:]), np.uint64)
    for word in range(len(found)):
        for place, column in enumerate(order or range(per)):
            if word * per + column < len(rows):
                found[word] |= rows[word * per + column] << np.uint64(place * bits)
    return np.ascontiguousarray(np.moveaxis(found, 0, axis)).astype(np.uint32).view(np.int32)


def packed(kind: str, q: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of a layer: q [n, k], zero and scale [n, groups]."""
    bits = 8 if kind == "gptq-8" else 4
    if kind.startswith("gptq"):
        stored = zero if kind == "gptq-v2" else zero - 1
        return {
            "qweight": words(q.T, 0, bits),
            "qzeros": words(stored.T, 1, bits),
            "scales": scale.T.copy(),
            "g_idx": (np.arange(q.shape[1]) // GROUP).astype(np.int32),
        }
    if kind == "awq":
        return {
            "qweight": words(q.T, 1, 4, AWQ_COLUMNS),
            "qzeros": words(zero.T, 1, 4, AWQ_COLUMNS),
            "scales": scale.T.copy(),
        }
    tensors = {
        "weight_packed": words(q, 1),
        "weight_scale": scale,
        "weight_shape": np.array(q.shape, np.int64),
        "input_scale": np.ones(1, np.float32),
    }
    return tensors | ({"weight_zero_point": words(zero, 0)} if kind == "compressed-zeros" else {})


def quantised(directory: Path, kind: str) -> dict[str, np.ndarray]:
    """Pack the linears of a tiny Llama in `directory`, all but the head; the weights that they stand for."""
    write_checkpoint(directory, "llama", quantization_config=CONFIGS[kind])
    tensors, meant = load_file(directory / "model.safetensors"), {}
    symmetric, most = kind in ("gptq", "gptq-8", "compressed"), 255 if kind == "gptq-8" else 15
    rng = np.random.default_rng(1)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        n, k = tensors.pop(name).shape
        q = rng.integers(0, most + 1, (n, k))
        zero = np.full((n, k // GROUP), (most + 1) // 2) if symmetric else rng.integers(0, 16, (n, k // GROUP))
        scale = (rng.uniform(0.5, 2, zero.shape) / 64 / most * 15).astype(np.float16)
        each = np.arange(k) // GROUP
        meant[name] = (q - zero[:, each]).astype(np.float32) * scale.astype(np.float32)[:, each]
        stem = name.removesuffix("weight")
        tensors |= {stem + end: np.ascontiguousarray(x) for end, x in packed(kind, q, zero, scale).items()}
    save_file(tensors, directory / "model.safetensors")
    return meant
