"""An export never replaces what it was made of: the model's file, and the files of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..importers.onnx.external_files import external_files


def weights_beside(output: Path) -> Path:
    """The file of an exported model's larger weights."""
    return output.with_name(output.name + ".data")


def refuse_overwriting(model: str, output: Path) -> None:
    """`UsageError` where `output`, or the file of weights beside it, is the model or belongs to it."""
    there = [path for path in (output, weights_beside(output)) if path.exists()]
    for source in _files_of(Path(model)) if there else ():
        for written in there:
            if written.samefile(source):
                raise UsageError(
                    f"a file other than the model's own was expected as --output, but writing {written} would replace "
                    f"{source}, which is read: name another file"
                )


def _files_of(model: Path) -> Iterator[Path]:
    """The model's file, where it is one, and those that an ONNX model keeps its weights in."""
    if model.is_file():
        yield model
        if model.suffix == ".onnx":
            yield from external_files(model)
