"""The bytes of an ONNX file without its weights: large tensor data is skipped, and its place in the file written down.

What protobuf then parses is small, so that a model takes no more memory than its graph, and no more time.
Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from typing import BinaryIO

from ...errors import UnsupportedModel

_LARGE = 1 << 14  # bytes; smaller messages are copied as they are
_MOST_BYTES = 1 << 27  # of the graph without weights: a parser may need fifty times as much for hostile files
_MOST_FIELDS = 500_000  # that are looked at one by one
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_RAW_DATA, _DATA_TYPE, _EXTERNAL_DATA, _DATA_LOCATION = 9, 2, 13, 14
_PACKED = {4: 1, 10: 11}  # float_data, double_data: the bytes of raw_data where the data type is that

# Message -> field -> message, along the ways that lead to tensors.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}


class Malformed(ValueError):
    """Bytes that are no protobuf message."""


def slim(stream: BinaryIO, size: int, token: str) -> bytes:
    """The model in `stream` of `size` bytes; the location of skipped data is "token:offset:length"."""
    out = _Output()
    _message(stream, size, "model", out, token, 0)
    return bytes(out.data)


class _Output:
    """Bytes of bounded number."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.fields = 0

    def add(self, *pieces: bytes | bytearray) -> None:
        for piece in pieces:
            self.data += piece
        self.fields += 1
        self.check(0)

    def check(self, more: int) -> None:
        if self.fields > _MOST_FIELDS or len(self.data) + more > _MOST_BYTES:
            raise UnsupportedModel(
                f"expected a graph of at most {_MOST_FIELDS} parts and {_MOST_BYTES >> 20} MiB beside its weights, "
                "found more: export a smaller graph"
            )


def _message(stream: BinaryIO, end: int, kind: str, out: _Output, token: str, depth: int) -> None:
    if depth > 100:  # where protobuf stops, too
        raise Malformed("messages are nested more than 100 deep")
    inside = _INSIDE.get(kind, {})
    while stream.tell() < end:
        key, wire = _key(stream)
        if wire != _BYTES:
            out.add(_varint(key << 3 | wire), _plain(stream, wire))
            continue
        length = _length(stream, end)
        child = inside.get(key)
        if child is None or length <= _LARGE:
            out.check(length)
            out.add(_varint(key << 3 | wire), _varint(length), _read(stream, length))
            continue
        body = _Output()
        if child == "tensor":
            _tensor(stream, stream.tell() + length, body, token)
        else:
            _message(stream, stream.tell() + length, child, body, token, depth + 1)
        out.add(_varint(key << 3 | wire), _varint(len(body.data)), body.data)
    if stream.tell() != end:
        raise Malformed("a field ends behind its message")


def _tensor(stream: BinaryIO, end: int, out: _Output, token: str) -> None:
    """A tensor; the one large field of values that it should have becomes a place in the file."""
    start, found, dtype, location = stream.tell(), [], 0, 0
    while stream.tell() < end:
        key, wire = _key(stream)
        if wire != _BYTES:
            plain = _plain(stream, wire)
            dtype = _number(plain) if key == _DATA_TYPE and wire == _VARINT else dtype
            location = _number(plain) if key == _DATA_LOCATION and wire == _VARINT else location
        else:
            length = _length(stream, end)
            found.append((key, stream.tell(), length))
            stream.seek(length, 1)
    values = [f for f in found if f[2] > _LARGE // 2 and (f[0] == _RAW_DATA or _PACKED.get(f[0]) == dtype)]
    alone = len(values) == 1 and sum(f[0] == values[0][0] for f in found) == 1
    alone = alone and location == 0 and not any(f[0] == _EXTERNAL_DATA for f in found)
    stream.seek(start)
    while stream.tell() < end:
        key, wire = _key(stream)
        if wire != _BYTES:
            plain = _plain(stream, wire)
            if not (alone and key == _DATA_LOCATION):
                out.add(_varint(key << 3 | wire), plain)
            continue
        length = _length(stream, end)
        if alone and stream.tell() == values[0][1]:
            place = f"{token}:{stream.tell()}:{length}".encode()
            entry = _field(1, b"location") + _field(2, place)
            out.add(_field(_EXTERNAL_DATA, entry), _varint(_DATA_LOCATION << 3), _varint(1))
            stream.seek(length, 1)
        else:
            out.check(length)
            out.add(_varint(key << 3 | wire), _varint(length), _read(stream, length))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _key(stream: BinaryIO) -> tuple[int, int]:
    key = _number(_raw_varint(stream))
    if key >> 3 == 0 or key >= 1 << 32:
        raise Malformed("a field has no valid number")
    return key >> 3, key & 7


def _length(stream: BinaryIO, end: int) -> int:
    length = _number(_raw_varint(stream))
    if stream.tell() + length > end:
        raise Malformed("a field ends behind its message")
    return length


def _plain(stream: BinaryIO, wire: int) -> bytes:
    if wire == _VARINT:
        return _raw_varint(stream)
    if wire in (_FIXED32, _FIXED64):
        return _read(stream, 4 if wire == _FIXED32 else 8)
    raise Malformed(f"a field has the wire type {wire}")


def _raw_varint(stream: BinaryIO) -> bytes:
    out = _read(stream, 1)
    while out[-1] & 0x80:
        if len(out) == 10:
            raise Malformed("a number is too long")
        out += _read(stream, 1)
    return out


def _number(raw: bytes) -> int:
    value = 0
    for position, byte in enumerate(raw):
        value |= (byte & 0x7F) << (7 * position)
    return value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise Malformed("the file ends in the middle of a field")
    return data
