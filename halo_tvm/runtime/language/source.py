"""The text that an encoder-decoder answers: read once by `encode` and `cross`, then attended to in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm_ffi

from ...artifact import FunctionSpec
from ...errors import InputError
from ..session import Session
from ..tensors import aligned_empty, leaves, numpy_dtype, to_tensor
from .spec import READ

Tensors = tuple[tvm_ffi.Tensor, ...]


class Source:
    """`encode` and `cross` of an artifact: token ids in, what `decode` takes beside its own tokens and caches out."""

    def __init__(
        self, session: Session, functions: Mapping[str, FunctionSpec], weights: Mapping[str, Sequence[tvm_ffi.Tensor]]
    ) -> None:
        self._encode, self._cross = (session.bind(name, weights[name]) for name in READ)
        self._specs = {name: functions[name] for name in READ}
        decode = functions["decode"]
        self._wanted = given_names(decode)
        self.longest = self._longest()

    def _longest(self) -> int:
        spec = self._specs["encode"]
        length = spec.inputs[0].shape[1]
        return spec.ranges[length][1] if isinstance(length, str) else int(length)

    def read(self, ids: np.ndarray) -> Tensors:
        """What `decode` gets of the text `ids` int64 [tokens]; `InputError` for more than the encoder takes."""
        if len(ids) > self.longest:
            raise InputError(
                f"expected a text of at most {self.longest} tokens, which the encoder reads, found {len(ids)}: "
                "shorten it, or give it in parts"
            )
        inputs = []
        for spec in self._specs["encode"].inputs:
            array = aligned_empty((1, len(ids)), numpy_dtype(spec.dtype))
            array[0] = 1 if spec.default == "ones" else ids
            inputs.append(to_tensor(array))
        states = self._encode(inputs)
        named = dict(zip((t.name for t in self._specs["cross"].outputs), leaves(self._cross(leaves(states)))))
        return tuple(named[name] for name in self._wanted)


def given_names(decode: FunctionSpec) -> tuple[str, ...]:
    """The inputs of `decode` behind its tokens and lengths that are no caches, in order."""
    return tuple(tensor.name for tensor in decode.inputs[2:] if tensor.name not in decode.state)
