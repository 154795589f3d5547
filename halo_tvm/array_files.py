"""Arrays in .npy and .npz files: those that anyone may have written, of which nothing is unpickled, and our own."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

# What NumPy and zipfile raise over files that are cut, forged, or say that they hold more than there is memory.
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


class Writable(Protocol):
    """A file that bytes are written to, in order."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class Unreadable(ValueError):
    """What was found instead of arrays, in words."""


def read_arrays(file: Path | str) -> np.ndarray | dict[str, np.ndarray]:
    """The array of an .npy file, or those of an .npz file by name, in order.

    Raises `Unreadable` for what holds anything else, `FileNotFoundError` where there is nothing.
    """
    try:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return as_numbers(found)
        with found:
            arrays = {name: as_numbers(found[name]) for name in found.files}
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise Unreadable(one_reason(error)) from error
    other = next((name for name, array in arrays.items() if not isinstance(array, np.ndarray)), None)
    if other is not None:
        raise Unreadable(f"the member {other[:80]!r} that is no array")
    return arrays


def as_numbers(array: np.ndarray) -> np.ndarray:
    """`array`, of bfloat16 where it has that size: NumPy's files do not know the name of that type."""
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype("V2"):
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


def read_npz(file: Path | str) -> dict[str, np.ndarray]:
    """As `read_arrays`, of an .npz file."""
    found = read_arrays(file)
    if isinstance(found, np.ndarray):
        raise Unreadable("a single array without a name")
    return found


def write_npz(file: Writable, arrays: Mapping[str, np.ndarray]) -> None:
    """As numpy.savez, but under any names, and the same arrays always give the same bytes (no time stamps)."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def one_reason(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
