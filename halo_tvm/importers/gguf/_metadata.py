"""What a file says of its model: the metadata under the architecture's name, and which tensors there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ...errors import UnsupportedModel
from .container import Gguf, Value

_MOST_LAYERS = 1 << 10


@dataclass(frozen=True)
class Metadata:
    """`own` is the metadata of the file without the architecture's name in front of the keys."""

    file: Gguf
    architecture: str
    own: dict[str, Value]

    @property
    def layers(self) -> int:
        """Blocks of the file; those that guess further tokens are among them."""
        count = self.whole("block_count")
        if not 1 <= count <= _MOST_LAYERS:
            refuse(f"block_count from 1 to {_MOST_LAYERS}", str(count))
        return count

    def whole(self, key: str, default: int | None = None) -> int:
        """The integer under `key`; a KeyError or TypeError where there is none."""
        value = self.own.get(key, default)
        if value is None:
            raise KeyError(f"{self.architecture}.{key}")
        return _integer(value, key)

    def by_layer(self, key: str) -> list[int]:
        """The integer of every block under `key`, where all have one the same."""
        value = self.own[key]
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "iub":
                raise TypeError(f"{key} {value[:4].tolist()!r} are no integers")
            return [int(number) for number in value]
        return [_integer(value, key)] * self.layers

    def has(self, name: str) -> bool:
        """Whether there is the tensor `name`, `{}` in it being the number of any block."""
        if "{}" not in name:
            return name in self.file.tensors
        return any(name.format(i) in self.file.tensors for i in range(self.layers))


def _integer(value: object, key: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{key} {value!r:.40} is no integer")
    return int(value)


def refuse(expected: str, found: str) -> NoReturn:
    raise UnsupportedModel(f"expected {expected} in a GGUF file, found {found}: give another model, or its safetensors")
