"""Messages of engines as results keep them."""

from __future__ import annotations

import re

# A slash that begins a path (no division, no address), all its folders, and a last name that stays.
_FOLDERS = re.compile(r"(?<![\w:/.\])-])(?:~|\.{1,2})?/(?:[^\s/'\":;,()]+/)+(?=[^\s/'\":;,()])")


def without_folders(message: str) -> str:
    """`message` with every file by its own name: results are published, and a machine's folders are its own affair."""
    return _FOLDERS.sub("", message)
