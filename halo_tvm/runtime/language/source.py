"""What an encoder-decoder answers: read once by `encode` and `cross`, then attended to in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm_ffi

from ...artifact import FunctionSpec
from ...errors import InputError
from ..session import Session
from ..tensors import aligned_empty, leaves, numpy_dtype, to_tensor
from .spec import READ, longest_of

Tensors = tuple[tvm_ffi.Tensor, ...]


class Source:
    """`encode` and `cross` of an artifact: what is answered in, what `decode` takes beside its tokens and caches out.

    A text is token ids; a sound is the spectrum [bands, frames] float32 that is `heard`.
    """

    def __init__(
        self, session: Session, functions: Mapping[str, FunctionSpec], weights: Mapping[str, Sequence[tvm_ffi.Tensor]]
    ) -> None:
        self._encode, self._cross = (session.bind(name, weights[name]) for name in READ)
        self._specs = {name: functions[name] for name in READ}
        decode = functions["decode"]
        self._wanted = given_names(decode)
        self.heard = heard_by(self._specs["encode"])
        self.longest, self.values = longest_of(self._specs["encode"]), self._specs["encode"].inputs[0].values

    def read(self, given: np.ndarray) -> Tensors:
        """What `decode` gets of the token ids int64 [tokens] or the spectrum; `InputError` where it does not fit."""
        if self.heard is not None and given.shape != self.heard:
            raise InputError(
                f"expected the spectrum of a sound {list(self.heard)}, which the encoder reads, found "
                f"{list(given.shape)}: pass the sound as audio"
            )
        if self.heard is None and len(given) > self.longest:
            raise InputError(
                f"expected a text of at most {self.longest} tokens, which the encoder reads, found {len(given)}: "
                "shorten it, or give it in parts"
            )
        inputs = []
        for spec in self._specs["encode"].inputs:
            array = aligned_empty((1, *given.shape), numpy_dtype(spec.dtype))
            array[0] = 1 if spec.default == "ones" else given
            inputs.append(to_tensor(array))
        states = self._encode(inputs)
        named = dict(zip((t.name for t in self._specs["cross"].outputs), leaves(self._cross(leaves(states)))))
        return tuple(named[name] for name in self._wanted)


def heard_by(encode: FunctionSpec) -> tuple[int, int] | None:
    """Bands and frames of the spectrum that an encoder of sounds reads; None of one of texts."""
    first = encode.inputs[0]
    if len(first.shape) != 3 or any(isinstance(d, str) for d in first.shape[1:]):
        return None
    return int(first.shape[1]), int(first.shape[2])


def given_names(decode: FunctionSpec) -> tuple[str, ...]:
    """The inputs of `decode` behind its tokens and lengths that are no caches, in order."""
    return tuple(tensor.name for tensor in decode.inputs[2:] if tensor.name not in decode.state)
