"""Files that list models to tune: one a line, each with options of its own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UnknownName, UsageError
from ..model_names import SUFFIXES

LARGEST_BYTES = 1 << 20
MOST_MODELS = 1000
MOST_WEIGHT = 1_000_000
_OPTIONS = ("shape", "inputs", "weight")


@dataclass(frozen=True)
class ListedModel:
    """One model to tune."""

    model: str  # built-in name, path, or name on the hub
    shape: tuple[str, ...] = ()  # as --shape
    inputs: str | None = None  # as --inputs
    weight: int = 1  # how often this model runs for each run of one of weight 1

    @property
    def label(self) -> str:
        """What tells it from the others: one model may be listed with several shapes."""
        own = [*(f"shape={text}" for text in self.shape), *([f"inputs={self.inputs}"] if self.inputs else [])]
        return " ".join([self.model, *own])


def read_model_list(path: str | Path, known: Collection[str] = ()) -> list[ListedModel]:
    """The models of a file, in its order; `UsageError` unless it can be read and holds at least one.

    A line is a name or a path, quoted where it holds spaces, then `shape=INPUT=DIMS` (repeatable),
    `inputs=FILE` and `weight=N`. A `#` at the beginning of a word starts a comment. Relative paths are
    relative to the list; a name in `known` (the built-in models) is never taken for a path.
    """
    listed = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = _words(line, f"line {number} of {path}")
        if words:
            listed.append(_entry(words, Path(path).parent, known, f"line {number} of {path}"))
        if len(listed) > MOST_MODELS:
            raise UsageError(f"a list of at most {MOST_MODELS} models was expected, but {path} has more: split it")
    if not listed:
        raise UsageError(
            f"a model a line was expected in {path}, but it names none: add one, or leave out --model-list"
        )
    return listed


def once_each(models: Iterable[ListedModel]) -> list[ListedModel]:
    """`models` in order without repetitions: what is named twice is tuned once, with the larger weight."""
    weights: dict[ListedModel, int] = {}
    for entry in models:
        plain = replace(entry, weight=1)
        weights[plain] = max(weights.get(plain, 1), entry.weight)
    return [replace(entry, weight=weight) for entry, weight in weights.items()]


def _text(path: str | Path) -> str:
    if not os.path.isfile(path):  # a pipe or a device could be read for ever
        found = "is no regular file" if os.path.exists(path) else "does not exist"
        raise UsageError(f"a file of models, one a line, was expected at {path}, but it {found}: correct --model-list")
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"a file of models was expected at {path}, but {error.strerror}: correct --model-list"
        ) from None
    if len(data) > LARGEST_BYTES:
        raise UsageError(
            f"a list of models of at most {LARGEST_BYTES >> 20} MiB was expected, but {path} is larger: is it a model? "
            "give that with --model"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} must be a text file in UTF-8, but byte {error.start} is not: is it a model? give that with --model"
        ) from None


def _words(line: str, where: str) -> list[str]:
    if any(not c.isprintable() and c != "\t" for c in line):
        raise UsageError(f"printable text was expected in {where}, but it holds a control character: correct the line")
    code = line
    for i, c in enumerate(line):
        if c == "#" and (i == 0 or line[i - 1].isspace()):
            code = line[:i]
            break
    try:
        return shlex.split(code)
    except ValueError as error:
        raise UsageError(f"a model and its options were expected in {where}, but {error}: close the quotes") from None


def _entry(words: list[str], folder: Path, known: Collection[str], where: str) -> ListedModel:
    shape: list[str] = []
    inputs, weight = None, 1
    if not words[0]:
        raise UsageError(f"a model was expected in {where}, but its name is empty: give a name or a path")
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(
                f"options such as shape=x=1x8 were expected behind the model in {where}, but {word!r} was found: quote "
                "a path that holds spaces, and give every model a line of its own"
            )
        if name not in _OPTIONS:
            raise UnknownName(f"option in {where}", name, _OPTIONS)
        if name == "shape":
            shape.append(value)
        elif name == "inputs":
            inputs = str(folder / value)
        else:
            weight = _weight(value, where)
    return ListedModel(_located(words[0], folder, known), tuple(shape), inputs, weight)


def _weight(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST_WEIGHT):
        raise UsageError(
            f"a weight is a whole number from 1 to {MOST_WEIGHT}, but {text[:40]!r} was found in {where}: correct it"
        )
    return int(text)


def _located(model: str, folder: Path, known: Collection[str]) -> str:
    """`model` as `--model` takes it: a path from the list's folder where something is there, else the name."""
    if model in known:
        return model
    path = str(folder / model)
    # A name that only looks like one of the hub stays it; whatever has the form of a path is one.
    is_path = os.path.exists(path) or model.startswith((".", "/")) or Path(model).suffix in SUFFIXES
    return path if is_path else model
