"""Machine code in the place of CUDA source, inside what TVM packs into a library.

A library carries its modules as one block of bytes (little endian, strings with their length in front):
    total length; import tree (two arrays); then kind and bytes of each module, `_lib` without bytes
A CUDA module's bytes are its format, the table of its kernels' arguments, and its code in that format.
TVM makes such a module of machine code only where a driver is installed; its loader takes any of the formats.
"""

from __future__ import annotations

import struct
from pathlib import Path

from .._compat import LIBRARY_SYMBOL

_LIBRARY_ITSELF = b"_lib"
_CUDA = b"cuda"
_FATBIN = b"fatbin"
_FATBIN_MAGIC = struct.pack("<IH", 0xBA55ED50, 1)
_FATBIN_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes after it


def replace_source(packed: bytes, code: dict[str, bytes]) -> bytes:
    """`packed` with each CUDA module of source that `code` names made into one of that machine code."""
    total, at = _number(packed, 0)
    assert total == len(packed) - at, f"{total} bytes of packed modules were announced, {len(packed) - at} are there"
    tree = at
    for _ in range(2):
        count, at = _number(packed, at)
        at += 8 * count
    parts = [packed[tree:at]]
    while at < len(packed):
        kind, at = _string(packed, at)
        parts.append(_sized(kind))
        if kind != _LIBRARY_ITSELF:
            content, at = _string(packed, at)
            parts.append(_sized(_with_machine_code(content, code) if kind == _CUDA else content))
    body = b"".join(parts)
    return struct.pack("<Q", len(body)) + body


def write_source(packed: bytes, directory: Path) -> Path:
    """A C file in `directory` that defines the symbol under which TVM's loader finds `packed`."""
    content, source = directory / "packed.bin", directory / "packed.c"
    content.write_bytes(packed)
    lines = [
        ".section .rodata",
        ".balign 64",
        f".global {LIBRARY_SYMBOL}",
        f'.type {LIBRARY_SYMBOL}, "object"',
        f"{LIBRARY_SYMBOL}:",
        f'.incbin "{content}"',
        f".size {LIBRARY_SYMBOL}, {len(packed)}",
        ".previous",
    ]
    text = "\n".join(
        f'    "{line.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}\\n"' for line in lines
    )
    source.write_text(f"__asm__(\n{text}\n);\n")
    return source


def find_machine_code(library: Path) -> list[bytes]:
    """Every fatbin inside `library`, as cuobjdump reads them from a file of their own."""
    content, found, at = library.read_bytes(), [], 0
    while (at := content.find(_FATBIN_MAGIC, at)) >= 0:
        if at + _FATBIN_HEADER.size > len(content):
            break  # the magic by chance, too near the end for a header
        _, _, header, rest = _FATBIN_HEADER.unpack_from(content, at)
        if at + header + rest <= len(content):
            found.append(content[at : at + header + rest])
            at += header + rest
        else:
            at += 1
    return found


def _with_machine_code(content: bytes, code: dict[str, bytes]) -> bytes:
    """The bytes of one CUDA module; unchanged when its code is no source that `code` knows."""
    form, at = _string(content, 0)
    if form != _CUDA:
        return content
    for source, machine_code in code.items():
        tail = _sized(source.encode())
        if content.endswith(tail):
            return _sized(_FATBIN) + content[at : len(content) - len(tail)] + _sized(machine_code)
    return content


def _number(data: bytes, at: int) -> tuple[int, int]:
    return struct.unpack_from("<Q", data, at)[0], at + 8


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _number(data, at)
    assert at + length <= len(data), f"a string of {length} bytes reaches beyond the packed modules"
    return data[at : at + length], at + length


def _sized(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text
