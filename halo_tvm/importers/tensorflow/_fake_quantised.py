"""FakeQuantWithMinMaxArgs, ...Vars, ...VarsPerChannel: floats rounded to a grid of so many bits.

    scale = (high - low) / (most - least), the zero point rounded, and the range moved so that 0 lies on the grid
    y = floor((clip(x) - low') / scale + 0.5) * scale + low'
In float32, as TensorFlow. tf2onnx rounds the zero point in double and writes a pair of QuantizeLinear and
DequantizeLinear, a step off at times.
References
    tensorflow/core/kernels/fake_quant_ops_functor.h
"""

from __future__ import annotations

import numpy as np

from ._replaced import Handler, Replaced


def _fake(place: Replaced) -> str:
    x, *ends = place.inputs
    if ends:
        known = [place.known(end) for end in ends]
        if any(value is None for value in known):
            raise ValueError(f"expected ranges that are known for {place.node.type}, found computed ones")
        low, high = (np.asarray(value, np.float32) for value in known)
    else:
        low, high = (np.asarray(place.attr(name), np.float32) for name in ("min", "max"))
    bits, is_narrow = place.attr("num_bits"), place.attr("narrow_range")
    least, most = np.float32(bool(is_narrow)), np.float32(2 ** (8 if bits is None else int(bits)) - 1)
    scale = (high - low) / (most - least)
    zero = least - low / scale
    zero = np.clip(np.floor(zero + np.float32(0.5)), least, most)
    begin, end = (least - zero) * scale, (most - zero) * scale
    numbers = [place.const(value, np.float32) for value in (begin, end, 1 / scale, scale, 0.5)]
    begin_, end_, inverse, step, half = numbers
    clipped = place.emit("Max", place.emit("Min", x, end_), begin_)
    steps = place.emit("Mul", place.emit("Sub", clipped, begin_), inverse)
    rounded = place.emit("Floor", place.emit("Add", steps, half))
    return place.emit("Add", place.emit("Mul", rounded, step), begin_)


_KINDS = ("Args", "Vars", "VarsPerChannel")
HANDLERS: dict[str, Handler] = {f"FakeQuantWithMinMax{kind}": _fake for kind in _KINDS}
