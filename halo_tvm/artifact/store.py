"""Artifacts as directories that are written: whole and checked, or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import hashlib
import io
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from ..array_files import write_npz
from ..errors import ArtifactCorrupt, EnvironmentProblem, UsageError
from ..interrupts import raise_noted
from ..whole_file import write_whole
from .manifest import FileEntry, Manifest
from .opened import MANIFEST_NAME, REFERENCE_NAME, read_manifest
from .params_file import ParamHeader, write_params

# what may lie in an artifact beside the files that its manifest names; a directory with anything else is not replaced
_REPORT_NAMES = frozenset({"report.json", "report.html", "report.md"})
_CHUNK_BYTES = 4 << 20
_HERE, _RENAME_EXCHANGE = -100, 2  # of renameat2: relative paths start at the working directory; swap


def check_output_path(path: Path | str) -> Path:
    """The absolute path if an artifact may be written there, before any work is done for it.

    Raises
    ------
    UsageError
        the parent directory is missing or not writable, or something that is no artifact lies there
    """
    path = Path(os.path.abspath(path))
    advice = "; choose another path or move it away"
    if not path.parent.is_dir():
        raise UsageError(f"expected a directory to write {path.name} into, found no {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"expected a directory to write {path.name} into, found {path.parent} not writable{advice}")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UsageError(f"expected a new path or an artifact directory, found a file or a link at {path}{advice}")
    foreign = _foreign(path) if path.is_dir() else []
    if foreign:
        what = ", ".join(foreign[:3])
        raise UsageError(f"expected a new path or an artifact directory, found {path} with {what} in it{advice}")
    return path


def _foreign(path: Path) -> list[str]:
    """What lies in the directory `path` and is no file of an artifact: replacing it would lose that."""
    found = sorted(os.scandir(path), key=lambda entry: entry.name)
    names = [entry.name for entry in found]
    if MANIFEST_NAME not in names:
        return names
    try:
        files = read_manifest(path).files
    except (ArtifactCorrupt, EnvironmentProblem):
        return [f"a {MANIFEST_NAME} that this version did not write"]
    own = {MANIFEST_NAME, *_REPORT_NAMES, *files}
    return [
        entry.name
        for entry in found
        if not entry.is_file(follow_symlinks=False)
        or entry.name not in own
        and not entry.name.startswith(f".{MANIFEST_NAME}.")  # one that a kill left half written
    ]


def write_artifact(
    path: Path | str,
    *,
    manifest: Manifest,
    library: Path | Mapping[str, Path],
    params_headers: Sequence[ParamHeader] = (),
    params: Iterable[tuple[str, np.ndarray]] = (),
    reference: Mapping[str, np.ndarray] | None = None,
    others: Mapping[str, Path | bytes] = MappingProxyType({}),
    check: Callable[[Path], Mapping[str, object]] | None = None,
) -> Manifest:
    """Write the directory `path` in one step and return the manifest with sizes and hashes.

    `others` are files that are copied under their names, or their bytes: a tokenizer.
    `library` is the compiled file, or one per library name when the manifest has several variants.
    `params` are consumed one tensor at a time, in the order of `params_headers`. All is written to
    a directory beside `path`, synced and renamed; on an error or Ctrl-C nothing of it remains, and
    an artifact that was at `path` stays as it was. `check` is called with that directory before it
    is renamed: what it returns is the manifest's `validation`, and what it raises ends the writing.

    Raises
    ------
    UsageError
        `path` cannot be written (rights, a full disk) or holds something else
    """
    path = check_output_path(path)
    with _beside(path) as directory:
        with _told(path):
            manifest = _write(directory, manifest, library, params_headers, params, reference, others)
        if check is not None:
            manifest = update_manifest(directory, validation=check(directory))
        raise_noted()
        with _told(path):
            _swap(directory, path)
    return manifest


def _write(
    directory: Path,
    manifest: Manifest,
    library: Path | Mapping[str, Path],
    params_headers: Sequence[ParamHeader],
    params: Iterable[tuple[str, np.ndarray]],
    reference: Mapping[str, np.ndarray] | None,
    others: Mapping[str, Path | bytes],
) -> Manifest:
    """The files of an artifact in an empty `directory`."""
    libraries = dict.fromkeys((v.library for v in manifest.variants), library) if isinstance(library, Path) else library
    assert set(libraries) == {v.library for v in manifest.variants}, (
        f"libraries {sorted(libraries)} do not fit the variants"
    )
    params_names = {v.params for v in manifest.variants if v.params}
    assert len(params_names) <= 1, "variants of one artifact share one params file"
    files: dict[str, FileEntry] = {}
    for name, source in {**libraries, **others}.items():
        opened = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        with opened as data, _hashed(directory, name, files) as out:
            while chunk := data.read(_CHUNK_BYTES):
                out.write(chunk)
    for name in libraries:
        os.chmod(directory / name, 0o755)
    for name in params_names:
        with _hashed(directory, name, files) as out:
            write_params(out, params_headers, params)
    if reference is not None:
        with _hashed(directory, REFERENCE_NAME, files) as out:
            write_npz(out, reference)
    manifest = replace(manifest, files=files)
    with _hashed(directory, MANIFEST_NAME, {}) as out:
        out.write(manifest.encode())
    _sync_directory(directory)
    return manifest


def update_manifest(path: Path | str, **changes: object) -> Manifest:
    """Replace fields of a manifest in place (validation, benchmarks, reports); returns the new one."""
    path = Path(path)
    forbidden = set(changes) - {"validation", "benchmarks", "reports"}
    assert not forbidden, f"results may be added to an artifact, its {', '.join(forbidden)} may not change"
    manifest = replace(read_manifest(path), **changes)  # type: ignore[arg-type]
    with _told(path):
        write_whole(path / MANIFEST_NAME, manifest.encode())
        _sync_directory(path)
    return manifest


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system refuses while writing `path` becomes a sentence."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"expected to write the artifact {path}, but {error.strerror or error}; free space, correct the rights "
            "or choose another path"
        ) from error


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A new directory next to `path` (same file system, so that rename works), removed on any exit.

    It is locked while it is written: what a kill left there is locked by nobody, and removed by the next writer.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}.tmp"):
        _remove_left(left)
    with ExitStack() as held:
        with _told(path):
            directory = held.enter_context(_locked_directory(path))
        try:
            yield directory
        finally:
            if directory.exists():
                shutil.rmtree(directory)


@contextmanager
def _locked_directory(path: Path) -> Iterator[Path]:
    while True:
        directory = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
        directory.mkdir()
        try:
            handle = os.open(directory, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another writer took it for one that was left
        with _closing(handle):
            with suppress(OSError):  # a file system without locks: then nobody removes it, either
                fcntl.flock(handle, fcntl.LOCK_EX)
            if directory.exists():
                yield directory
                return


def _remove_left(directory: Path) -> None:
    """Remove the directory unless somebody holds its lock."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with _closing(handle):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _closing(handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(handle)


@dataclass
class _HashingFile:
    """A write-only file that hashes and counts what passes; not seekable, so nothing is rewritten."""

    raw: BinaryIO
    digest: hashlib._Hash
    size_bytes: int = 0

    def write(self, data: bytes | memoryview) -> int:
        self.raw.write(data)
        self.digest.update(data)
        size = memoryview(data).nbytes
        self.size_bytes += size
        return size

    def flush(self) -> None:
        self.raw.flush()


@contextmanager
def _hashed(directory: Path, name: str, files: dict[str, FileEntry]) -> Iterator[_HashingFile]:
    with (directory / name).open("xb") as raw:
        out = _HashingFile(raw, hashlib.sha256())
        yield out
        _sync(raw)
    files[name] = FileEntry(out.digest.hexdigest(), out.size_bytes)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    if os.name != "posix":  # directories cannot be opened elsewhere
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(new: Path, path: Path) -> None:
    """Put `new` at `path`, in one step where the system can."""
    if not _first(new, path):
        _replace(new, path)
    _sync_directory(path.parent)


def _first(new: Path, path: Path) -> bool:
    """Put `new` at `path` where nothing is. Another process may have put its own there meanwhile: False, as for any."""
    if path.exists():
        return False
    try:
        os.rename(new, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        check_output_path(path)  # when the work began there was nothing to check
        return False
    return True


def _replace(new: Path, path: Path) -> None:
    """Exchange both, or else move the old one aside, and back if that fails."""
    if _exchange(new, path):
        shutil.rmtree(new)  # the old artifact
        return
    old = new.with_suffix(".old.tmp")
    with ExitStack() as undo:
        os.rename(path, old)
        undo.callback(os.rename, old, path)
        os.rename(new, path)
        undo.pop_all()
    shutil.rmtree(old)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories so that no moment sees either path empty; False where system or file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    code: int = rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE)
    return code == 0
