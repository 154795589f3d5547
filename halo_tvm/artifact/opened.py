"""An artifact that is read: each file is opened once, and what is verified is what is used.

Another process may put a new artifact at the same path at any time. All files are opened in one directory, whatever
its path means a moment later, and whoever uses a file afterwards reads the open one.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..array_files import UNREADABLE, as_numbers, one_reason
from ..errors import ArtifactCorrupt, HaloError, UsageError
from .manifest import MANIFEST_LIMIT_BYTES, Manifest

MANIFEST_NAME = "manifest.json"
REFERENCE_NAME = "reference.npz"
_TRIES = 32  # each needs a whole new artifact at the path while the one before is opened
_FOLDERS = os.open in os.supports_dir_fd  # whether a directory can be kept open, and files opened in it
T = TypeVar("T")


class OpenArtifact:
    """The manifest and the open files of one artifact; see `opened`."""

    def __init__(self, path: Path, manifest: Manifest, files: Mapping[str, io.BufferedReader]) -> None:
        self.path = path  # for messages: something else may lie there by now
        self.manifest = manifest
        self._files = files

    def file(self, name: str) -> io.BufferedReader:
        """The file of that name, at its beginning. It is this artifact's and closed with it; `ArtifactCorrupt` for one
        that the manifest does not list."""
        if name not in self._files:
            raise ArtifactCorrupt(
                f"{self.path}: expected the file {name!r} among those of {MANIFEST_NAME}, found none; compile again"
            )
        self._files[name].seek(0)
        return self._files[name]

    def location(self, name: str) -> Path:
        """A path at which others, such as the dynamic loader, open the very file that is open here."""
        descriptor = Path(f"/proc/self/fd/{self.file(name).fileno()}")
        return descriptor if descriptor.exists() else self.path / name

    def verify(self, *, hashes: bool) -> None:
        """Check the size and, with `hashes`, the SHA-256 of every file; `ArtifactCorrupt` for one that differs.

        Sizes come first: a truncated download is found without reading gigabytes.
        """
        for name, entry in self.manifest.files.items():
            size = os.fstat(self.file(name).fileno()).st_size
            if size != entry.size_bytes:
                raise ArtifactCorrupt(
                    f"{self.path / name}: expected {entry.size_bytes} bytes, found {size}; "
                    "copy the artifact again or compile again"
                )
        for name, entry in self.manifest.files.items() if hashes else ():
            digest = hashlib.file_digest(self.file(name), "sha256").hexdigest()
            if digest != entry.sha256:
                raise ArtifactCorrupt(
                    f"{self.path / name}: expected SHA-256 {entry.sha256[:16]}..., found {digest[:16]}...; "
                    "the file was changed: copy the artifact again or compile again"
                )

    def reference(self) -> dict[str, np.ndarray]:
        """Arrays of reference.npz, which must hold uncompressed plain arrays.

        Raises
        ------
        UsageError
            the artifact has no reference
        ArtifactCorrupt
            the file is no such archive
        """
        if REFERENCE_NAME not in self._files:
            raise UsageError(f"expected {REFERENCE_NAME} in {self.path}, found none; compile again with a reference")
        file = self.file(REFERENCE_NAME)
        size = os.fstat(file.fileno()).st_size
        arrays: dict[str, np.ndarray] = {}
        try:
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    # stored members cannot grow beyond the file, so an archive cannot exhaust the memory
                    if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
                        raise ValueError(f"member {info.filename!r} is compressed")
                    member = io.BytesIO(archive.read(info))
                    array = np.lib.format.read_array(member, allow_pickle=False)
                    arrays[info.filename.removesuffix(".npy")] = as_numbers(array)
        except UNREADABLE as error:
            raise ArtifactCorrupt(
                f"{self.path / REFERENCE_NAME}: expected an uncompressed npz of plain arrays, "
                f"found {one_reason(error)}; "
                "compile again"
            ) from error
        return arrays


@contextmanager
def opened(artifact: Path | str | OpenArtifact, *, hashes: bool = True) -> Iterator[OpenArtifact]:
    """The artifact at a path, opened and verified; one that is open already is handed on as it is.

    Raises
    ------
    UsageError
        there is no artifact directory
    ArtifactCorrupt
        a file is missing, is no plain file, or differs from what the manifest says
    EnvironmentProblem
        see `Manifest.decode`
    """
    if isinstance(artifact, OpenArtifact):
        yield artifact
        return
    path = Path(artifact)

    def take(folder: int | None) -> tuple[OpenArtifact, ExitStack]:
        manifest = _manifest(path, folder)
        with ExitStack() as stack:
            files = {name: stack.enter_context(_listed(path / name, folder)) for name in manifest.files}
            return OpenArtifact(path, manifest, files), stack.pop_all()

    found, files = _of_one(path, take)
    with files:
        found.verify(hashes=hashes)
        yield found


def read_manifest(path: Path | str) -> Manifest:
    """The checked manifest of the artifact at `path`; the other files are not looked at. Raises as `opened` does."""
    path = Path(path)
    return _of_one(path, lambda folder: _manifest(path, folder))


def verify_artifact(path: Path | str, *, hashes: bool = True) -> Manifest:
    """The manifest of the artifact at `path`, all of whose files are what it says. Raises as `opened` does."""
    with opened(path, hashes=hashes) as artifact:
        return artifact.manifest


def read_reference(path: Path | str) -> dict[str, np.ndarray]:
    """`OpenArtifact.reference` of the artifact at `path`; hashes are not compared. Raises as `opened` does, too."""
    with opened(path, hashes=False) as artifact:
        return artifact.reference()


def _of_one(path: Path, take: Callable[[int | None], T]) -> T:
    """What `take` finds in the directory `path`; once more where that was replaced, and so emptied, meanwhile."""
    for left in reversed(range(_TRIES)):
        if not path.is_dir():
            found = "a file" if path.exists() else "nothing"
            raise UsageError(
                f"expected an artifact directory, found {found} at {path}; pass what `halo-tvm compile -o` wrote"
            )
        if not _FOLDERS:
            break
        folder = os.open(path, os.O_RDONLY)
        try:
            return take(folder)
        except (ArtifactCorrupt, UsageError):
            if not left or os.path.samestat(os.fstat(folder), path.stat()):
                raise
        finally:
            os.close(folder)
    return take(None)


def _manifest(path: Path, folder: int | None) -> Manifest:
    none = UsageError(
        f"expected an artifact, found no {MANIFEST_NAME} in {path}; pass what `halo-tvm compile -o` wrote"
    )
    with _open_plain(path / MANIFEST_NAME, folder, none) as file:
        raw = file.read(MANIFEST_LIMIT_BYTES + 1)
    return Manifest.decode(raw, where=str(path / MANIFEST_NAME))


def _listed(file: Path, folder: int | None) -> io.BufferedReader:
    none = ArtifactCorrupt(f"{file}: expected a file the manifest lists, found none; copy the artifact again")
    return _open_plain(file, folder, none)


def _open_plain(file: Path, folder: int | None, none: HaloError) -> io.BufferedReader:
    """Open a regular file, whose directory is open as `folder` where the system can do that; raise `none` for none.

    A link could lead anywhere, so it is refused.
    """
    name = file if folder is None else file.name

    def within(_file: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), dir_fd=folder)

    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode):
            return open(file, "rb", opener=within)
    except FileNotFoundError:
        raise none from None
    kind = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
    raise ArtifactCorrupt(f"{file}: expected a regular file, found {kind}; copy the artifact with its files (cp -rL)")
