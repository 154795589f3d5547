"""Weights of linears as bitsandbytes stores them: four bits through a table of 16 numbers, or rows of int8.

    four bits    weight uint8 [n * k / 2, 1], row by row, the first of two in a byte's high half
                 w = quant_map[q] * absmax of its block of `blocksize` elements
                 absmax may be bytes of its own table: nested_quant_map[absmax] * nested_absmax[block] + nested_offset
                 quant_state.bitsandbytes__nf4 (or fp4): sizes and the offset, as JSON in bytes
    eight bits   weight int8 [n, k], SCB float32 [n]:   w = q * SCB / 127
References
    bitsandbytes (functional.py, QuantState.from_dict; nn/modules.py)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np

from ...weight_groups import Grid, dividing_group
from .method import Layer, Method, Shapes, Tensors

_ABSMAX, _TABLE = "weight.absmax", "weight.quant_map"
_NESTED_ABSMAX, _NESTED_TABLE = "weight.nested_absmax", "weight.nested_quant_map"
_KINDS = ("nf4", "fp4")
_LONGEST = 4096  # bytes of JSON


class FourBits(Method):
    """`kind`: of the table, which stands in a name."""

    def __init__(self, kind: str) -> None:
        self.state = f"weight.quant_state.bitsandbytes__{kind}"

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.state,)

    @property
    def parts(self) -> tuple[str, ...]:
        return ("weight", self.state, _ABSMAX, _TABLE, _NESTED_ABSMAX, _NESTED_TABLE)

    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        for end in ("weight", _ABSMAX, _TABLE):
            if end not in shapes:
                raise ValueError(f"no {end}")
        if np.prod(shapes["weight"]) * 2 != n * k:
            raise ValueError(f"weight of {np.prod(shapes['weight'])} bytes")
        if shapes[_TABLE] != (16,) or shapes.get(_NESTED_TABLE, (256,)) != (256,):
            raise ValueError(f"{_TABLE} of shape {list(shapes[_TABLE])} and of blocks {shapes.get(_NESTED_TABLE)}")
        if np.prod(shapes[self.state]) > _LONGEST:
            raise ValueError(f"{self.state} of {np.prod(shapes[self.state])} bytes")
        return _FourBitLayer(n, k, self.state)


class _FourBitLayer(Layer):
    def __init__(self, n: int, k: int, state: str) -> None:
        super().__init__(n, k)
        self._state = state

    def floats(self, tensors: Tensors) -> np.ndarray:
        """`ValueError` for a state that says another shape, and for blocks that are not as many as the scales."""
        state = _parsed(tensors[self._state])
        if state.get("shape") != [self.n, self.k]:
            raise ValueError(f"a weight of shape {state.get('shape')!r:.40} in {self._state}")
        for end in ("weight", _ABSMAX):
            if tensors[end].dtype != (np.uint8 if end == "weight" or _NESTED_TABLE in tensors else np.float32):
                raise ValueError(f"{end} of {tensors[end].dtype}")
        scale = tensors[_ABSMAX].ravel()
        if _NESTED_TABLE in tensors:
            blocks = tensors[_NESTED_ABSMAX].ravel() if _NESTED_ABSMAX in tensors else np.zeros(0, np.float32)
            nested = tensors[_NESTED_TABLE].astype(np.float32)[scale]
            scale = _scaled(nested, blocks.astype(np.float32), state, "nested_blocksize") + _offset(state)
        packed = tensors["weight"].ravel()
        numbers = tensors[_TABLE].astype(np.float32)[np.stack([packed >> 4, packed & 15], axis=1).ravel()]
        return _scaled(numbers, scale, state, "blocksize").reshape(self.n, self.k)


class EightBits(Method):
    @property
    def markers(self) -> tuple[str, ...]:
        return ("SCB",)

    @property
    def parts(self) -> tuple[str, ...]:
        return ("weight", "SCB", "weight_format")

    def layer(self, shapes: Shapes, n: int, k: int) -> Layer:
        if len(shapes.get("weight", ())) != 2 or shapes["SCB"] != shapes["weight"][:1]:
            raise ValueError(f"SCB of shape {list(shapes['SCB'])}, weight of shape {list(shapes.get('weight', ()))}")
        return _Rows(*shapes["weight"])


class _Rows(Layer):
    def grid(self, read: Callable[[str], np.ndarray]) -> Grid | None:
        group = dividing_group(self.k)
        return None if group is None else Grid(8, group, least=False)

    def floats(self, tensors: Tensors) -> np.ndarray:
        if tensors["weight"].dtype != np.int8:
            raise ValueError(f"weight of {tensors['weight'].dtype}")
        if tensors.get("weight_format", np.zeros(1)).any():  # 0: by rows; others are orders of one GPU's products
            raise ValueError("weight_format of a GPU's order where rows belong")
        weight = tensors["weight"].astype(np.float32)
        weight *= tensors["SCB"].astype(np.float32)[:, None] / np.float32(127)
        return weight


def method_of(about: Mapping[str, object]) -> Method | None:
    """How the tool that a quantization_config names stores a linear; None for what this module does not read."""
    if about.get("quant_method", "bitsandbytes") != "bitsandbytes":
        return None
    if about.get("load_in_4bit") is True or about.get("_load_in_4bit") is True:
        kind = about.get("bnb_4bit_quant_type", "fp4")
        return FourBits(str(kind)) if kind in _KINDS else None
    return EightBits() if about.get("load_in_8bit") is True or about.get("_load_in_8bit") is True else None


def _parsed(stored: np.ndarray) -> Mapping[str, object]:
    try:
        found = json.loads(stored.astype(np.uint8).tobytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("a quant_state that is no JSON object")
    return found


def _scaled(values: np.ndarray, scale: np.ndarray, state: Mapping[str, object], size: str) -> np.ndarray:
    """float32 `values` times the scale of their block, in place."""
    block = state.get(size)
    if not isinstance(block, int) or block < 1 or len(scale) != -(-len(values) // block):
        raise ValueError(f"{len(scale)} blocks of {size} {block!r:.20} for {len(values)} numbers")
    whole = len(values) // block * block
    values[:whole].reshape(-1, block)[:] *= scale[: whole // block, None]
    values[whole:] *= scale[-1:]
    return values


def _offset(state: Mapping[str, object]) -> np.float32:
    found = state.get("nested_offset")
    if not isinstance(found, int | float):
        raise ValueError(f"nested_offset {found!r:.20}")
    return np.float32(found)
