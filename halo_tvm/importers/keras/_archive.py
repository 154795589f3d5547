"""Is this a model of Keras's own classes? Answered from the file's list of members and its config.json."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import UnsupportedModel

_RATIO = 100  # Keras stores its members as they are; somebody may have packed them, as far as weights can be
_SLACK = 64 << 20
_MEMBERS = 10_000
_CONFIG = "config.json"
CONFIG_LIMIT = 64 << 20

# Classes of Keras whose configuration is code of the file's author, or names other files.
_CARRIERS = frozenset(("Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"))


def check_archive(path: Path) -> None:
    """`UnsupportedModel` unless `path` is an archive of a sensible size whose model names classes of Keras alone."""
    check_classes(_config(path), path.name)


def check_classes(config: object, file: str) -> None:
    """`UnsupportedModel` unless the configuration of a model, in `file`, names classes of Keras alone."""
    foreign = list(dict.fromkeys(_foreign(config)))
    if foreign:
        listed = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise UnsupportedModel(
            f"expected classes of Keras itself in {file}, found {listed}: no code is taken from a file; "
            "import the model from memory with halo_tvm.import_keras"
        )


def _config(path: Path) -> object:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_sizes(path, entries)
            if _CONFIG not in archive.namelist():
                raise UnsupportedModel(
                    f"expected a {_CONFIG} in {path.name}, found none: save the model with model.save({path.name!r})"
                )
            return json.loads(archive.read(_CONFIG))
    except (
        zipfile.BadZipFile,
        ValueError,
        RecursionError,
        NotImplementedError,
        RuntimeError,
        OSError,
        EOFError,
    ) as why:
        raise UnsupportedModel(
            f"expected a .keras archive in {path.name}, found {why or 'another format'}: "
            "save the model again with Keras 3 as .keras"
        ) from why


def _check_sizes(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    size, unpacked = path.stat().st_size, sum(entry.file_size for entry in entries)
    if len(entries) > _MEMBERS or unpacked > _RATIO * size + _SLACK:
        raise UnsupportedModel(
            f"expected the members of a model in {path.name}, found {len(entries)} that unpack from {size} to "
            f"{unpacked} bytes: not a real model"
        )
    config = next((entry.file_size for entry in entries if entry.filename == _CONFIG), 0)
    if config > CONFIG_LIMIT:
        raise UnsupportedModel(
            f"expected a {_CONFIG} of at most {CONFIG_LIMIT >> 20} MiB in {path.name}, found {config} bytes: "
            "not a real model"
        )


def _foreign(config: object) -> Iterator[str]:
    """The classes that are not Keras's own, or carry code; what only training uses is not read."""
    todo = [config]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        if not isinstance(value, dict):
            continue
        todo += [v for key, v in value.items() if key != "compile_config"]
        if "class_name" not in value:
            continue
        kind, module, registered = (value.get(key) for key in ("class_name", "module", "registered_name"))
        inner = value.get("config")
        name = f" {inner['name']}" if isinstance(inner, dict) and "name" in inner else ""
        if not isinstance(kind, str):
            yield f"a class called {str(kind)[:80]!r}"
        elif kind in _CARRIERS:
            yield f"the layer {kind}{name}, which carries code"
        elif (module is not None and not _is_keras(str(module))) or ">" in str(registered):
            yield f"the class {module or registered}.{kind}{name}"


def _is_keras(module: str) -> bool:
    return module in ("keras", "builtins") or module.startswith("keras.")
