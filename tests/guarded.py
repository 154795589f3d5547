"""Arrays between pages that nobody may read: a kernel that reads in front of a tensor or behind it ends the process.

What a `Select` does not choose is read all the same, and no comparison of results shows where.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_PROT_NONE = 0  # of <sys/mman.h>


def guarded(array: np.ndarray, at_end: bool) -> np.ndarray:
    """A copy of `array` that ends where a page ends, or that begins where one begins; the page beyond has no access."""
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for at in (begin, begin + page + size):
        if protect(ctypes.c_void_p(at), page, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page + (size - array.nbytes if at_end else 0)
    out = np.frombuffer(memory, np.uint8, array.nbytes, offset).view(array.dtype).reshape(array.shape)
    out[...] = array
    return out
