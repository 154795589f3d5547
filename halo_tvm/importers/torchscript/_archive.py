"""Is this file TorchScript? Answered from the archive's list of files, before anything is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ...errors import UnsupportedModel, UsageError

_RATIO = 4  # TorchScript stores its files as they are; real ones do not shrink more than code does
_SLACK = 16 << 20
_FILES = 200_000


def check_archive(path: Path) -> None:
    """`UnsupportedModel` unless `path` has the structure of TorchScript; nothing in it is read or run."""
    if not path.is_file():
        raise UsageError(f"expected a TorchScript file, found no file {str(path)!r}: check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError) as reason:
        raise UnsupportedModel(_not_zip(path, str(reason))) from reason
    if len(entries) > _FILES:
        raise UnsupportedModel(f"expected a model in {path.name}, found {len(entries)} files in it: not a real model")
    names = {tuple(entry.filename.split("/", 1))[-1] for entry in entries}
    if "archive_format" in names or any(name.startswith("models/") for name in names):
        raise UnsupportedModel(
            f"expected TorchScript in {path.name}, found a program of torch.export: give the file the suffix .pt2"
        )
    if "constants.pkl" not in names or not any(name.startswith("code/") for name in names):
        found = "a pickle (a state_dict or a whole module)" if "data.pkl" in names else "another archive"
        raise UnsupportedModel(
            f"expected TorchScript in {path.name}, found {found}, which is not read because it could run code: "
            "save the model with torch.jit.trace(...).save or torch.export.save"
        )
    size, unpacked = path.stat().st_size, sum(entry.file_size for entry in entries)
    if unpacked > _RATIO * size + _SLACK:
        raise UnsupportedModel(
            f"expected files stored as they are in {path.name}, found {size} bytes that unpack to {unpacked}: "
            "not a real model"
        )


def _not_zip(path: Path, reason: str) -> str:
    with path.open("rb") as stream:
        start = stream.read(2)
    if start[:1] == b"\x80":
        return (
            f"expected TorchScript in {path.name}, found a pickle, which is not read because it could run code: "
            "save the model with torch.jit.trace(...).save or torch.export.save"
        )
    return f"expected a TorchScript archive, found {reason or 'another format'} in {path.name}: save it again"
