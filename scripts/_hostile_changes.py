"""What makes a sound file hostile: changes of bytes, of protobuf fields, of JSON and of archives, each by a seed."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator, Sequence

INTEGERS = (0, 1, -1, 2, 3, 7, -7, 64, 1000, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e30, -1e30, 1e-45, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "..", "../x", "/etc/passwd", "a\0b", "ä", "\ud7ff", "x" * 5000, "%s{0}", "none", "NOTSET", "-1")
JSON = (None, True, 0, -1, 1, 3, 1 << 31, 1 << 62, 1 << 70, 0.5, 1e308, "", "x", "../x", "ä" * 3, [], {}, [1], [[]])
PICKLED = b"cos\nsystem\n(S'touch ran-by-a-pickle'\ntR."  # a command, for whoever unpickles


def bytes_changed(data: bytes, rng: random.Random, others: Callable[[], bytes], first: int = 0) -> bytes:
    """One to four changes of bits, bytes, runs and lengths at or behind the place `first`."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if len(out) <= first:
            break
        at = rng.randrange(first, len(out))
        change = rng.choice(("bit", "bit", "byte", "word", "long", "drop", "repeat", "cut", "splice"))
        if change == "bit":
            out[at] ^= 1 << rng.randrange(8)
        elif change == "byte":
            out[at] = rng.randrange(256)
        elif change == "word":
            out[at : at + 4] = rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)).to_bytes(4, "little")
        elif change == "long":
            out[at : at + 1] = b"\xff" * 8 + b"\x7f"
        elif change == "drop":
            del out[at : at + rng.randint(1, 32)]
        elif change == "repeat":
            out[at:at] = out[at : at + rng.randint(1, 64)]
        elif change == "cut":
            del out[at:]
        else:
            other = others()
            start = rng.randrange(len(other) + 1)
            out[at:] = other[start : start + rng.randint(1, 4096)]
    return bytes(out)


# ------------------------------------------------------------------ protobuf


def message_changed(message, rng: random.Random, others: Callable[[], object]) -> None:
    """One to three fields of `message`, at any depth, get other values, or are dropped, repeated or exchanged.

    `others` gives messages of the same type, whose parts take the place of parts of this one.
    """
    for _ in range(rng.randint(1, 3)):
        inside = list(_messages(message))
        if not inside:
            return
        part = rng.choice(inside)
        fields = [f for f in part.DESCRIPTOR.fields if f.is_repeated or part.ListFields()]
        held = [f for f, _ in part.ListFields()]
        field = rng.choice(held if held and rng.random() < 0.85 else fields or part.DESCRIPTOR.fields)
        _field_changed(part, field, rng, inside, others)


def _messages(message) -> Iterator[object]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else (value,):
                yield from _messages(item)


def _field_changed(part, field, rng: random.Random, inside: Sequence[object], others: Callable[[], object]) -> None:
    if field.message_type is not None:
        found = [m for m in (*inside, *_messages(others())) if m.DESCRIPTOR is field.message_type]
        if field.is_repeated:
            items = getattr(part, field.name)
            _items_changed(items, rng, lambda: rng.choice(found) if found else None, copied=True)
        elif found and rng.random() < 0.7:
            copy = type(found[0])()
            copy.CopyFrom(rng.choice(found))
            getattr(part, field.name).CopyFrom(copy)
        else:
            part.ClearField(field.name)
        return
    value = _values(field, rng, inside)
    if field.is_repeated:
        _items_changed(getattr(part, field.name), rng, value, copied=False)
    elif rng.random() < 0.15:
        part.ClearField(field.name)
    else:
        _tried(lambda: setattr(part, field.name, value()))


def _items_changed(items, rng: random.Random, value: Callable[[], object], *, copied: bool) -> None:
    change = rng.choice(("set", "set", "add", "drop", "repeat", "clear", "turn"))
    if change == "add" or not len(items):
        new = value()
        if new is not None:
            _tried(lambda: items.append(new))
        return
    at = rng.randrange(len(items))
    if change == "set":
        new = value()
        if new is not None:
            _tried(lambda: items[at].CopyFrom(new) if copied else items.__setitem__(at, new))
    elif change == "drop":
        del items[at]
    elif change == "repeat":
        items.extend([items[at]] * rng.choice((1, 1, 2, 70)))
    elif change == "clear":
        del items[:]
    else:
        turned = list(items)[::-1]
        del items[:]
        items.extend(turned)


def _values(field, rng: random.Random, inside: Sequence[object]) -> Callable[[], object]:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64, field.CPPTYPE_UINT32):
        return lambda: rng.choice(INTEGERS) if rng.random() < 0.6 else rng.randint(-3, 30)
    if kind == field.CPPTYPE_ENUM:
        return lambda: rng.choice([v.number for v in field.enum_type.values])
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return lambda: rng.choice(FLOATS)
    if kind == field.CPPTYPE_BOOL:
        return lambda: rng.random() < 0.5
    if field.type == field.TYPE_BYTES:
        return lambda: rng.choice((b"", b"\0", b"\xff" * 9, b"x" * 48, rng.randbytes(rng.randint(1, 64))))
    known = [text for m in inside for text in _texts(m)]
    return lambda: rng.choice(known) if known and rng.random() < 0.6 else rng.choice(TEXTS)


def _texts(message) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            yield from value if field.is_repeated else (value,)


def _tried(change: Callable[[], object]) -> None:
    """A value that the field cannot hold (an integer of too many bits) leaves it as it is."""
    try:
        change()
    except (ValueError, TypeError):
        pass


# ------------------------------------------------------------------ JSON


def json_changed(data: object, rng: random.Random) -> object:
    """One to three places of `data` get other values, or go away."""
    data = json.loads(json.dumps(data))
    for _ in range(rng.randint(1, 3)):
        places = list(_places(data))
        if not places:
            return rng.choice(JSON)
        held, key = rng.choice(places)
        change = rng.random()
        if change < 0.1:
            del held[key]
        elif change < 0.3:
            other, at = rng.choice(places)
            held[key] = json.loads(json.dumps(other[at]))
        elif isinstance(held[key], int) and change < 0.6:
            held[key] += rng.choice((-1, 1, 2, -2))
        else:
            held[key] = rng.choice(JSON)
    return data


def _places(data: object) -> Iterator[tuple[object, object]]:
    for key, item in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield data, key
        yield from _places(item)


# ------------------------------------------------------------------ archives


def archive_changed(data: bytes, rng: random.Random, others: Callable[[], bytes]) -> bytes:
    """A zip archive with other members: their content, names, order, number, compression; or other bytes of it."""
    if rng.random() < 0.2:
        return bytes_changed(data, rng, others)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(members))
        name, content = members[at]
        change = rng.choice(("content",) * 6 + ("name", "drop", "twice", "pickle", "empty"))
        if change == "content":
            members[at] = (name, member_changed(content, rng, others))
        elif change == "name":
            members[at] = (rng.choice(("../" + name, "/" + name, name + "x", "x", "a/" * 40 + name, "ä.npy")), content)
        elif change == "drop" and len(members) > 1:
            del members[at]
        elif change == "twice":
            members.append((name, member_changed(content, rng, others)))
        elif change == "pickle":
            members[at] = (name, PICKLED)
        else:
            members[at] = (name, b"")
    out = io.BytesIO()
    packed = rng.choice((zipfile.ZIP_STORED,) * 4 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(out, "w", packed) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name) if rng.random() < 0.5 else name, content)
    return out.getvalue()


def member_changed(content: bytes, rng: random.Random, others: Callable[[], bytes]) -> bytes:
    """JSON by its places, the header of an .npy file by its words, anything else by its bytes."""
    if content[:1] in (b"{", b"["):
        try:
            return json.dumps(json_changed(json.loads(content), rng)).encode()
        except ValueError:
            pass
    if content.startswith(b"\x93NUMPY"):
        end = 10 + int.from_bytes(content[8:10], "little")
        return npy_changed(content, end, rng, others)
    return bytes_changed(content, rng, others)


def npy_changed(content: bytes, end: int, rng: random.Random, others: Callable[[], bytes]) -> bytes:
    words = (
        b"'<f4'",
        b"'<i8'",
        b"'|O'",
        b"'<M8[D]'",
        b"'|V7'",
        b"'<c8'",
        b"'<U9'",
        b"'|b1'",
        b"'f4,i8'",
        b"[('a','<f4')]",
    )
    shapes = (
        b"()",
        b"(0,)",
        b"(-1,)",
        b"(1 << 62,)",
        b"(4611686018427387904,)",
        b"(1000000,1000000,1000000)",
        b"7",
        b"'x'",
    )
    header = content[10:end].rstrip()
    change = rng.random()
    if change < 0.3:
        start = header.find(b"'descr': ") + 9
        header = header[:start] + rng.choice(words) + header[header.find(b",", start) :]
    elif change < 0.6:
        start = header.find(b"'shape': ") + 9
        header = header[:start] + rng.choice(shapes) + header[header.rfind(b", }") :]
    elif change < 0.7:
        header = header.replace(b"False", b"True")
    elif change < 0.8:
        header = b"__import__('os').system('touch ran-by-a-header')"
    else:
        return bytes_changed(content, rng, others)
    return content[:8] + len(header).to_bytes(2, "little") + header + content[end:]
