"""Colours of pixels [..., 3], by their hue, saturation and value, and vectors of three.

RGBToHSV   hue 0 of greys, saturation 0 of black
HSVToRGB   hue within one turn
AdjustSaturation   tf2onnx sorts the channels, and does not put every order back
Cross      the product of vectors [..., 3] that stands on both
"""

from __future__ import annotations

from ._replaced import Handler, Replaced


def _channels(place: Replaced, x: str) -> list[str]:
    """Of [..., 3], each [..., 1]."""
    return [place.emit("Slice", x, *(place.const([n]) for n in (c, c + 1, -1))) for c in range(3)]


def _joined(place: Replaced, *channels: str) -> str:
    return place.emit("Concat", *channels, axis=-1)


def _spread(place: Replaced, x: str) -> list[str]:
    """Hue in turns from 0 to below 1, saturation and value of RGB."""
    red, green, blue = _channels(place, x)
    zero, six = place.like(0, x), place.like(6, x)
    value = place.emit("Max", red, green, blue)
    spread = place.emit("Sub", value, place.emit("Min", red, green, blue))
    is_grey = place.emit("Equal", spread, zero)
    divisor = place.emit("Mul", place.emit("Where", is_grey, place.like(1, x), spread), six)

    def turned(a: str, b: str, offset: float) -> str:
        return place.emit("Add", place.emit("Div", place.emit("Sub", a, b), divisor), place.like(offset, x))

    of_green = place.emit(
        "Where", place.emit("Equal", green, value), turned(blue, red, 2 / 6), turned(red, green, 4 / 6)
    )
    hue = place.emit("Where", place.emit("Equal", red, value), turned(green, blue, 0), of_green)
    hue = place.emit("Where", is_grey, zero, hue)
    hue = place.emit("Where", place.emit("Less", hue, zero), place.emit("Add", hue, place.like(1, x)), hue)
    is_lit = place.emit("Greater", value, zero)
    saturation = place.emit("Div", spread, place.emit("Where", is_lit, value, place.like(1, x)))
    return [hue, place.emit("Where", is_lit, saturation, zero), value]


def _mixed(place: Replaced, hue: str, saturation: str, value: str) -> str:
    """RGB: each channel is a trapezium of the hue."""
    zero, one = place.like(0, hue), place.like(1, hue)
    sixths = place.emit("Mul", hue, place.like(6, hue))

    def clipped(x: str) -> str:
        return place.emit("Min", place.emit("Max", x, zero), one)

    def distance(of: float) -> str:
        return place.emit("Abs", place.emit("Sub", sixths, place.like(of, hue)))

    red = clipped(place.emit("Sub", distance(3), one))
    green = clipped(place.emit("Sub", place.like(2, hue), distance(2)))
    blue = clipped(place.emit("Sub", place.like(2, hue), distance(4)))
    rest = place.emit("Sub", one, saturation)
    return _joined(
        place,
        *(
            place.emit("Mul", place.emit("Add", rest, place.emit("Mul", saturation, channel)), value)
            for channel in (red, green, blue)
        ),
    )


def _to_hsv(place: Replaced) -> str:
    return _joined(place, *_spread(place, place.inputs[0]))


def _to_rgb(place: Replaced) -> str:
    return _mixed(place, *_channels(place, place.inputs[0]))


def _saturated(place: Replaced) -> str:
    x, factor = place.inputs
    hue, saturation, value = _spread(place, x)
    scaled = place.emit("Mul", saturation, place.cast(factor, place.dtype(x)))
    bounded = place.emit("Min", place.emit("Max", scaled, place.like(0, x)), place.like(1, x))
    return _mixed(place, hue, bounded, value)


def _cross(place: Replaced) -> str:
    a, b = (_channels(place, x) for x in place.inputs)

    def minor(i: int, j: int) -> str:
        return place.emit("Sub", place.emit("Mul", a[i], b[j]), place.emit("Mul", a[j], b[i]))

    return _joined(place, minor(1, 2), minor(2, 0), minor(0, 1))


HANDLERS: dict[str, Handler] = {
    "RGBToHSV": _to_hsv,
    "HSVToRGB": _to_rgb,
    "AdjustSaturation": _saturated,
    "Cross": _cross,
}
