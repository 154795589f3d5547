"""Tiny checkpoints of linears in eight and four bits with scales, as the tools write them that make FP8 and NF4.

Each function gives the tensors of a layer, by the ends of their names, and the weight that they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from checkpoints import write_checkpoint
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
BLOCK = (48, 40)  # divides neither 64 nor 128
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_RNG = torch.Generator().manual_seed(3)


def _float8(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape, generator=_RNG).to(torch.float8_e4m3fn)


def _positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_RNG) / 64 + 0.001


def _int8(shape: torch.Size) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=_RNG, dtype=torch.int8)


def blocks(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q = _float8(weight.shape)
    scale = _positive(*(-(-size // block) for size, block in zip(q.shape, BLOCK)))
    wide = scale.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)[: q.shape[0], : q.shape[1]]
    return {"weight": q, "weight_scale_inv": scale, "activation_scale": torch.ones(1)}, q.float() * wide


def whole(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, scale = _float8(weight.shape), _positive()
    return {"weight": q, "weight_scale": scale, "input_scale": torch.ones(())}, q.float() * scale


def rows(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, scale = _float8(weight.shape), _positive(len(weight), 1)
    return {"weight": q, "weight_scale": scale}, q.float() * scale


def int8_rows(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, scale, zero = _int8(weight.shape), _positive(len(weight), 1), _int8(torch.Size((len(weight), 1)))
    made = (q.float() - zero.float()) * scale
    return {"weight": q, "weight_scale": scale, "weight_zero_point": zero}, made


def exponents(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q = _float8(weight.shape)
    scale = torch.randint(118, 123, (len(q), q.shape[1] // 32), generator=_RNG, dtype=torch.uint8)
    wide = torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
    return {"weight": q, "weight_scale": scale}, q.float() * wide


def _four(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of four bits, two in a byte, the first below; their numbers."""
    codes = torch.randint(0, 16, weight.shape, generator=_RNG, dtype=torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, E2M1[codes.long()]


def nvfp4(weight: torch.Tensor, *, inverted: bool) -> tuple[Tensors, torch.Tensor]:
    q, numbers = _four(weight)
    scale = torch.rand((len(weight), weight.shape[1] // 16), generator=_RNG).mul(4).to(torch.float8_e4m3fn)
    one = torch.tensor(0.125)
    made = numbers * (scale.float() * one).repeat_interleave(16, 1)
    if inverted:
        return {"weight_packed": q, "weight_scale": scale, "weight_global_scale": (1 / one).reshape(1)}, made
    return {"weight": q, "weight_scale": scale, "weight_scale_2": one}, made


def mxfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, numbers = _four(weight)
    scale = torch.randint(118, 123, (len(weight), weight.shape[1] // 32), generator=_RNG, dtype=torch.uint8)
    wide = torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
    return {"weight_packed": q, "weight_scale": scale}, numbers * wide


def nf4(weight: torch.Tensor, *, nested: bool) -> tuple[Tensors, torch.Tensor]:
    codes = torch.randint(0, 16, (weight.numel(),), generator=_RNG, dtype=torch.uint8)
    table = torch.linspace(-1, 1, 16) ** 3
    scale, state = _positive(weight.numel() // 64), {"blocksize": 64, "shape": list(weight.shape), "quant_type": "nf4"}
    end = "weight.quant_state.bitsandbytes__nf4"
    tensors = {"weight": (codes[::2] << 4 | codes[1::2]).reshape(-1, 1), "weight.quant_map": table}
    if nested:
        places = torch.randint(0, 256, scale.shape, generator=_RNG, dtype=torch.uint8)
        of_places, of_blocks = torch.linspace(-1, 1, 256), _positive(-(-len(scale) // 16))
        scale = of_places[places.long()] * of_blocks.repeat_interleave(16)[: len(scale)] + 0.02
        tensors |= {"weight.absmax": places, "weight.nested_absmax": of_blocks, "weight.nested_quant_map": of_places}
        state |= {"nested_blocksize": 16, "nested_offset": 0.02}
    else:
        tensors["weight.absmax"] = scale
    tensors[end] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return tensors, (table[codes.long()] * scale.repeat_interleave(64)).reshape(weight.shape)


def bnb_rows(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, scale = _int8(weight.shape), _positive(len(weight))
    return {"weight": q, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}, q.float() * (
        scale[:, None] / 127
    )


def ternary(weight: torch.Tensor, *, divides: bool) -> tuple[Tensors, torch.Tensor]:
    q = torch.randint(0, 3, weight.shape, generator=_RNG, dtype=torch.uint8)
    scale = torch.tensor([8.0 if divides else 0.125])  # a power of two, which float16 has as well
    packed = sum(part << 2 * i for i, part in enumerate(q.chunk(4)))
    return {"weight": packed, "weight_scale": scale}, (q.float() - 1) / 8


def _compressed(form: str) -> dict[str, object]:
    weights = {"num_bits": 8, "type": "int" if form.startswith("int") else "float"}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


KINDS: dict[str, tuple[dict[str, object], Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]]] = {
    "fp8-blocks": ({"quant_method": "fp8", "weight_block_size": list(BLOCK)}, blocks),
    "fp8-whole": ({"quant_method": "fp8", "activation_scheme": "static"}, whole),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, whole),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, rows),
    "compressed-fp8": (_compressed("float-quantized"), rows),
    "compressed-int8": (_compressed("int-quantized"), int8_rows),
    "mxfp8": (_compressed("mxfp8-quantized"), exponents),
    "nvfp4": (_compressed("nvfp4-pack-quantized"), lambda w: nvfp4(w, inverted=True)),
    "mxfp4": (_compressed("mxfp4-pack-quantized"), mxfp4),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, lambda w: nvfp4(w, inverted=False)),
    "nf4": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, lambda w: nf4(w, nested=False)),
    "nf4-nested": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda w: nf4(w, nested=True),
    ),
    "bitnet": ({"quant_method": "bitnet"}, lambda w: ternary(w, divides=True)),
    "bitnet-auto": (
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
        lambda w: ternary(w, divides=False),
    ),
    "bnb-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_rows),
}


def scaled(directory: Path, kind: str) -> dict[str, np.ndarray]:
    """Store the linears of a tiny Llama in `directory` by `kind`, all but the head; the weights they stand for."""
    config, stored = KINDS[kind]
    write_checkpoint(directory, "llama", quantization_config=config)
    tensors, meant = load_file(directory / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        layer, weight = stored(tensors.pop(name))
        meant[name] = weight.numpy()
        tensors |= {name.removesuffix("weight") + end: tensor.contiguous() for end, tensor in layer.items()}
    save_file(tensors, directory / "model.safetensors")
    return meant
