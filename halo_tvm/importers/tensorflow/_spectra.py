"""Complex numbers: pairs of real ones along a last axis, from the transform that makes them to what makes them real.

RFFT, RFFT2D, IRFFT, FFT, IFFT, FFT2D, IFFT2D   DFT; tf2onnx writes RFFT before ComplexAbs alone, of known sizes
Complex, Cast                                   of real numbers
Real, Imag, ComplexAbs, Angle                   real again
Conj, AddV2, Add, Sub, Mul, Neg                 of pairs
StridedSlice, Reshape, Transpose, ...           of each part by itself, as tf2onnx writes them
An operator behind complex numbers that is none of these, and a complex result of the model, is refused by name.
"""

from __future__ import annotations

import numpy as np

from ._replaced import Handler, Replaced, by_itself, is_complex

_PAIR = np.array([1, -1])  # what a conjugate is times


def _transform(axes: int, *, inverse: bool = False, half: bool = False) -> Handler:
    """Along the last `axes` axes; of `half` the real side is a signal, and the other the half of its spectrum."""

    def write(place: Replaced) -> str:
        x = place.inputs[0]
        back = half and inverse
        if half and not inverse:
            rank, pair = place.rank(x), place.emit("Unsqueeze", x, place.const([-1]))
        else:
            pair = _pair(place, x)
            rank = place.rank(pair) - 1
        lengths: list[str] = [""] * axes
        if half:
            known = place.known(place.inputs[1])
            if known is None:
                raise ValueError(f"expected a known fft_length for {place.node.type}, found one that a run computes")
            lengths = [place.const(int(n)) for n in known]
        for axis in sorted(range(axes), reverse=not back):  # the half is made along the last axis, and first or last
            one = half and axis == axes - 1
            given = [pair, lengths[axis]] if lengths[axis] else [pair]
            pair = place.emit("DFT", *given, axis=rank - axes + axis, inverse=int(inverse), onesided=int(one))
        return place.emit("Squeeze", pair, place.const([-1])) if back else _made(place, pair)

    return write


def _made(place: Replaced, pair: str) -> str:
    """`pair`, the result of an operator, where all that reads it knows pairs."""
    output = place.node.output[0]
    readers = {node.type for node in place.context.find_output_consumers(output)}
    ends = output in place.context.outputs or "Identity" in readers
    if ends or readers - _READERS:
        found = ", ".join(sorted(readers - _READERS - {"Identity"})) or "the end of the model"
        raise ValueError(f"expected complex numbers to become real ones by Real, Imag, Abs or Angle, found {found}")
    return pair


def _pair(place: Replaced, tensor: str) -> str:
    """The pairs that `tensor`, of complex numbers, became."""
    value = place.known(tensor)
    if value is not None and value.dtype.kind == "c":
        return place.const(np.stack([value.real, value.imag], -1), value.real.dtype)
    if place.dtype(tensor).kind == "c":
        raise ValueError(f"expected complex numbers that the model makes of real ones, found {tensor}")
    return tensor


def _part(place: Replaced, pair: str, part: int) -> str:
    made, context, shape = place.emit("Gather", pair, place.const(part), axis=-1), place.context, place.shape(pair)
    context.set_dtype(made, context.get_dtype(pair))
    if shape is not None:
        context.set_shape(made, shape[:-1])
    return made


def _joined(place: Replaced, real: str, imaginary: str) -> str:
    parts = [place.emit("Unsqueeze", part, place.const([-1])) for part in (real, imaginary)]
    return _made(place, place.emit("Concat", *parts, axis=-1))


def _complex(place: Replaced) -> str:
    real, imaginary = place.inputs
    shapes = [place.emit("Shape", part) for part in place.inputs]
    return _joined(place, place.emit("Expand", real, shapes[1]), place.emit("Expand", imaginary, shapes[0]))


def _cast(place: Replaced) -> str | None:
    """To complex numbers; from them it is no operator that `_made` knows, since a node does not say what it reads."""
    if not _is_complex(place):
        return None
    real = place.cast(place.inputs[0], np.float32)
    zeros = place.emit("Expand", place.const(0, np.float32), place.emit("Shape", real))
    return _joined(place, real, zeros)


def _is_complex(place: Replaced) -> bool:
    return is_complex(place.context.get_dtype(place.node.output[0]))


def _magnitude(place: Replaced) -> str:
    pair = _pair(place, place.inputs[0])
    return place.emit("Sqrt", place.emit("ReduceSum", place.emit("Mul", pair, pair), place.const([-1]), keepdims=0))


def _angle(place: Replaced) -> str:
    """Of 0 it is 0; on the left half of the plane a half turn is added to the arc tangent, or taken from it."""
    pair = _pair(place, place.inputs[0])
    x, y = _part(place, pair, 0), _part(place, pair, 1)
    zero, turn = place.like(0, x), place.like(np.pi, x)
    left = place.emit("Where", place.emit("Less", y, zero), place.emit("Neg", turn), turn)
    arc = place.emit("Atan", place.emit("Div", y, x))
    arc = place.emit("Where", place.emit("Equal", y, zero), zero, arc)
    return place.emit("Add", arc, place.emit("Where", place.emit("Less", x, zero), left, zero))


def _conjugate(place: Replaced) -> str:
    pair = _pair(place, place.inputs[0])
    return _made(place, place.emit("Mul", pair, place.const(_PAIR, place.dtype(pair))))


def _of_each(op: str) -> Handler:
    """An operator of real numbers that means the same of each part."""
    return lambda place: (
        _made(place, place.emit(op, *(_pair(place, x) for x in place.inputs))) if _is_complex(place) else None
    )


def _product(place: Replaced) -> str | None:
    if not _is_complex(place):
        return None
    (a, b), (c, d) = ([_part(place, _pair(place, x), part) for part in (0, 1)] for x in place.inputs)
    real = place.emit("Sub", place.emit("Mul", a, c), place.emit("Mul", b, d))
    return _joined(place, real, place.emit("Add", place.emit("Mul", a, d), place.emit("Mul", b, c)))


def _moved(numbers: slice) -> Handler:
    """An operator that moves its inputs `numbers` about, the others say how."""

    def write(place: Replaced) -> str | None:
        if not _is_complex(place):
            return None
        context, node, inputs = place.context, place.node, place.inputs
        pairs, parts = [_pair(place, x) for x in inputs[numbers]], []
        for part in (0, 1):
            inputs[numbers] = [_part(place, pair, part) for pair in pairs]
            kind = {"shapes": node.output_shapes, "dtypes": [context.get_dtype(inputs[numbers][0])]}
            copy = context.make_node(node.type, inputs, attr=node.attr, op_name_scope=node.name, **kind)
            parts.append(place.emit("Identity", copy.output[0]))  # tf2onnx may give the result another name
            by_itself(context, copy)
        return _joined(place, *parts)

    return write


HANDLERS: dict[str, Handler] = {
    "RFFT": _transform(1, half=True),
    "RFFT2D": _transform(2, half=True),
    "IRFFT": _transform(1, half=True, inverse=True),
    "FFT": _transform(1),
    "IFFT": _transform(1, inverse=True),
    "FFT2D": _transform(2),
    "IFFT2D": _transform(2, inverse=True),
    "Real": lambda place: _part(place, _pair(place, place.inputs[0]), 0),
    "Imag": lambda place: _part(place, _pair(place, place.inputs[0]), 1),
    "Complex": _complex,
    "Cast": _cast,
    "ComplexAbs": _magnitude,
    "Angle": _angle,
    "Conj": _conjugate,
    "AddV2": _of_each("Add"),
    "Add": _of_each("Add"),
    "Sub": _of_each("Sub"),
    "Neg": _of_each("Neg"),
    "Mul": _product,
    **dict.fromkeys(
        ("StridedSlice", "Reshape", "Transpose", "ExpandDims", "Squeeze", "PadV2", "Pad"), _moved(slice(1))
    ),
    "ConcatV2": _moved(slice(-1)),
    "Pack": _moved(slice(None)),
}
_READERS = set(HANDLERS) - {"RFFT", "RFFT2D", "Complex", "Cast"}
