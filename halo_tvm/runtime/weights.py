"""The weights of a session: tensors over params.bin, mapped or copied into huge pages.

"map" maps the file privately: pages are shared with the page cache and between processes, loading
costs nothing and writing (which no kernel does) would not reach the file. "resident" makes one copy
in anonymous memory with huge pages: fewer TLB misses, no page faults in the first run.

Small mapped tensors are touched when they are loaded. A kernel that reads one of two tensors by a mask reads, under
that mask, also where it takes no element; where the page is not there, a processor (seen: Zen 4) finds this out by
microcode, in a microsecond, each time anew, as such a load brings no page.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import tvm_ffi

from ..artifact import OpenArtifact, ParamEntry, params_header_of
from ..errors import ArtifactCorrupt, UsageError
from .tensors import numpy_dtype, to_tensor, view_bytes

MODES = ("map", "resident")
_READ_BYTES = 64 << 20
_TABLE_BYTES = 1 << 20  # the largest tensor that is there from the start
_PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True)
class Weights:
    """Tensors in call order, and the one piece of memory they all lie in."""

    tensors: tuple[tvm_ffi.Tensor, ...]
    memory: np.ndarray  # uint8


def load_weights(artifact: OpenArtifact, params: str | None, names: Sequence[str], mode: str) -> Weights:
    """The tensors called `names` of the file `params`, in that order; each keeps the memory alive.

    Raises
    ------
    UsageError
        an unknown mode
    ArtifactCorrupt
        a tensor the manifest names is missing
    """
    if mode not in MODES:
        raise UsageError(f"weights: expected {' or '.join(map(repr, MODES))}, found {mode!r}; leave it out for 'map'")
    if not names:
        return Weights((), np.empty(0, np.uint8))
    if params is None:
        raise ArtifactCorrupt(
            f"expected a params file for {len(names)} parameters, found none in the manifest; compile again"
        )
    file = artifact.file(params)
    entries = params_header_of(file)
    missing = [name for name in names if name not in entries]
    if missing:
        raise ArtifactCorrupt(
            f"{file.name}: expected {len(names)} parameters, found none called {', '.join(missing[:5])}; "
            "compile the model again"
        )
    # copy on write: DLPack refuses read-only memory
    data = np.memmap(file, dtype=np.uint8, mode="c") if mode == "map" else _huge_page_copy(file)
    if mode == "map":
        _touch(data, [entries[name] for name in names])
    return Weights(tuple(_tensor(data, entries[name]) for name in names), np.asarray(data))


def _touch(data: np.ndarray, entries: Sequence[ParamEntry]) -> None:
    for entry in entries:
        if 0 < entry.size_bytes <= _TABLE_BYTES:
            data[entry.offset : entry.offset + entry.size_bytes : _PAGE_BYTES].max()
            data[entry.offset + entry.size_bytes - 1]


def _huge_page_copy(file: BinaryIO) -> np.ndarray:
    """The file's bytes in anonymous memory, read (not mapped: that would fault once per small page)."""
    size = os.fstat(file.fileno()).st_size
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    copy = np.frombuffer(memory, dtype=np.uint8)
    done = 0
    while done < size:
        count = os.preadv(file.fileno(), [copy.data[done : done + _READ_BYTES]], done)
        if not count:
            raise ArtifactCorrupt(
                f"{file.name}: expected {size} bytes, found {done}; the file was cut while it was read, copy it again"
            )
        done += count
    return copy


def _tensor(data: np.ndarray, entry: ParamEntry) -> tvm_ffi.Tensor:
    flat = np.asarray(data[entry.offset : entry.offset + entry.size_bytes])
    if entry.dtype == "bfloat16" and entry.size_bytes:  # as integers: no package that names the dtype is needed
        return view_bytes(flat.view(np.uint16), entry.shape, entry.dtype)
    return to_tensor(flat.view(numpy_dtype(entry.dtype)).reshape(entry.shape))
