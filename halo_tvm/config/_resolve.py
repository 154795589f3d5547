"""Option sets from the command line, the environment, `halo.toml` and the defaults, in that order."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ..errors import UnknownName, UsageError
from ._config import TOML_NAME, Config
from ._environment import Environment, environment
from ._fields import flag_of, in_words, taken

C = TypeVar("C", bound="Config")
# Tables of halo.toml that are not a verb's options: they reach the compiler as `overrides`.
OVERRIDE_TABLES = ("passes", "operators", "layers")


def read_toml(path: str | Path) -> dict[str, object]:
    """The tables of an options file; `UsageError` when it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"an options file was expected at {path}, but {error.strerror or error}: correct --config"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} must be a TOML file, but {error}: correct that line") from None


def resolve(
    kind: type[C], given: Mapping[str, object], *, environ: Environment | None = None, directory: str | Path = "."
) -> C:
    """`kind` from `given` options (those on the command line), environment, options file, defaults.

    The table of `halo.toml` is named like the verb: `[compile]` for `CompileConfig`. Unknown keys are
    refused with the nearest known one. `[passes]`, `[operators]` and `[layers]` become `overrides`.
    """
    environ = environment() if environ is None else environ
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, object] = {}
    path = _options_file(fields, given, Path(directory))
    if path is not None:
        values.update(_from_toml(kind, fields, path))
    for name, field in fields.items():
        found = getattr(environ, field.metadata["env"]) if "env" in field.metadata else None
        if found is not None:
            values[name] = found
    values.update(given)
    missing = [
        flag_of(f)
        for n, f in fields.items()
        if n not in values and f.default is f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be given, but is not: see --help")
    return kind(**values)


def _options_file(fields: Mapping[str, object], given: Mapping[str, object], directory: Path) -> Path | None:
    if given.get("config"):
        return Path(str(given["config"]))
    implied = directory / TOML_NAME
    return implied if "config" in fields and implied.is_file() else None


def _from_toml(kind: type[Config], fields: Mapping[str, dataclasses.Field], path: Path) -> dict[str, object]:
    tables = read_toml(path)
    _check_tables(tables, path)
    own = tables.get(kind.__name__.removesuffix("Config").lower(), {})
    if not isinstance(own, dict):
        raise UsageError(
            f"{path} must hold tables such as [compile], but found a plain value: put options under a table"
        )
    settable = {name for name, field in fields.items() if field.metadata.get("flag", True) and name != "config"}
    values: dict[str, object] = {"config": str(path)}
    for key, value in own.items():
        name = key.replace("-", "_")
        if name not in settable:
            raise UnknownName(f"option in {path}", key, settable)
        values[name] = _coerced(path, key, value, fields[name])
    if "overrides" in fields:
        values["overrides"] = {table: tables[table] for table in OVERRIDE_TABLES if table in tables}
    return values


def _check_tables(tables: Mapping[str, object], path: Path) -> None:
    """`UsageError` for a table that no verb reads."""
    verbs = {c.__name__.removesuffix("Config").lower(): c for c in Config.__subclasses__()}
    readers = sorted(verb for verb, kind in verbs.items() if _reads_file(kind))
    known = {*readers, *OVERRIDE_TABLES}  # `operators` is a verb, too
    for table in set(tables) - known:
        if table in verbs:
            raise UsageError(
                f"an options file is read by {' and '.join(readers)}, but {path} has a table [{table}], which would "
                f"change nothing: give these options to `halo-tvm {table}` on its command line"
            )
        raise UnknownName(f"table in {path}", table, known)


def _reads_file(kind: type[Config]) -> bool:
    return any(field.name == "config" for field in dataclasses.fields(kind))


def _coerced(path: Path, key: str, value: object, field: dataclasses.Field) -> object:
    """A TOML value as its field keeps it; a number may stand for a text (`opt_level = 2`), a text for a list."""
    try:
        return taken(field, value)
    except TypeError:
        raise UsageError(f"{key} in {path} must be {in_words(field)}, but is {value!r:.200}: correct it") from None
