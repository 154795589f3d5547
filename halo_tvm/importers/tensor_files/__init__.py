"""Files of named tensors, of which each is read when it is asked for: safetensors, and what torch.save pickles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import UnsupportedModel
from .._json import read_json
from ._file import TensorFile
from ._pickled import PickledFile
from ._safetensors import SafeTensorsFile

__all__ = ["TensorFile", "opened", "weight_files"]

# Name of one file, index of several, and what they may be called: the first that a directory has is read, as
# transformers does, which does not guess. Beside them may lie averages of weights, or the same under other names.
_KINDS = (
    ("model.safetensors", "model.safetensors.index.json", "*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin"),
)


def opened(file: Path) -> TensorFile:
    """What a file holds; `UnsupportedModel` for one that cannot be read."""
    return SafeTensorsFile(file) if file.suffix == ".safetensors" else PickledFile(file)


def weight_files(path: Path) -> list[Path]:
    """The files of a Hugging Face directory that hold its weights; `UnsupportedModel` where one is not there."""
    for one, index, _ in _KINDS:
        if (path / one).is_file():
            return [path / one]
        if (path / index).is_file():
            return _indexed(path / index)
    for _, _, pattern in _KINDS:
        if found := sorted(path.glob(pattern)):
            return found
    raise UnsupportedModel(
        f"expected safetensors weights in {path.name}, or pytorch_model.bin, found none: download the model completely"
    )


def _indexed(index: Path) -> list[Path]:
    weight_map = read_json(index, "index of sharded weights").get("weight_map")
    listed: Sequence[object] = list(weight_map.values()) if isinstance(weight_map, dict) else [None]
    bad = [name for name in listed if not isinstance(name, str) or Path(name).name != name]
    if bad:
        raise UnsupportedModel(
            f"expected plain file names in {index.name}, found {str(bad[0])[:80]!r}: the index is not trustworthy"
        )
    files = [index.parent / name for name in sorted({str(name) for name in listed})]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UnsupportedModel(
            f"expected the weights of {index.parent.name}, found no file {missing[0]}: download the model completely"
        )
    return files
