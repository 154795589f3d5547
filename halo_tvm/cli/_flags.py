"""Flags from the fields of an option set, and back."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from typing import NoReturn

from ..config import Config, flag_of, listed, type_of
from ..errors import UnknownName, UsageError

_NEGATIVE = re.compile(r"-\d")


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are `UsageError`s, so that they end like every other mistake."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: see `{self.prog} --help`")


def parser_of(kind: type[Config], prog: str, description: str) -> Parser:
    """A parser with one flag or positional per field of `kind`; what is not given stays absent."""
    parser = Parser(
        prog=prog,
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for field in dataclasses.fields(kind):
        if field.metadata.get("flag", True):
            _add(parser, field)
    if kind.announced:
        parser.add_argument("-v", "--verbose", action="store_true", help="say first which options hold")
    return parser


def _is_flag(field: dataclasses.Field) -> bool:
    return field.metadata.get("flag", True) and not field.metadata.get("positional", False)


def _add(parser: argparse.ArgumentParser, field: dataclasses.Field) -> None:
    meta, kind = field.metadata, type_of(field)
    required = field.default is dataclasses.MISSING
    shown = (
        ""
        if required or field.default is None or isinstance(field.default, (bool, tuple))
        else f" (default: {field.default})"
    )
    text = (meta["help"] + shown).replace("%", "%%")
    if meta.get("positional"):
        several = {"nargs": "*"} if kind is tuple else {"nargs": "?"}
        parser.add_argument(field.name, help=text, metavar=meta.get("metavar"), **({} if required else several))
        return
    flags = [*([f"-{meta['short']}"] if "short" in meta else []), flag_of(field)]
    if kind is bool:
        action = argparse.BooleanOptionalAction if field.default else "store_true"
        parser.add_argument(*flags, action=action, help=text, dest=field.name)
    elif kind is tuple:
        parser.add_argument(*flags, action="append", help=text, metavar=meta.get("metavar"), dest=field.name)
    else:
        parser.add_argument(*flags, type=kind, help=text, metavar=meta.get("metavar", "N"), dest=field.name)


def given_options(parser: Parser, kind: type[Config], argv: Sequence[str]) -> dict[str, object]:
    """The options on the command line `argv`, by field name; lists may also be separated by commas."""
    # Intermixed: names may stand before and after options. A whole list of them would else end at the first option.
    namespace, unknown = parser.parse_known_intermixed_args(_joined(argv))
    if unknown and unknown[0].startswith("-"):
        flags = [flag_of(f) for f in dataclasses.fields(kind) if _is_flag(f)]
        raise UnknownName("option", unknown[0].split("=")[0], flags)
    if unknown:
        raise UsageError(f"an option was expected, but {unknown[0]!r} was found: see `{parser.prog} --help`")
    given = vars(namespace)
    for field in dataclasses.fields(kind):
        if field.name in given and type_of(field) is tuple:
            given[field.name] = tuple(part for text in given[field.name] for part in listed(field, text))
    return given


def _joined(argv: Sequence[str]) -> list[str]:
    """`--budget -3m` as `--budget=-3m`: argparse would take the value for a flag and say something else."""
    joined: list[str] = []
    for word in argv:
        if joined and _NEGATIVE.match(word) and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += "=" + word
        else:
            joined.append(word)
    return joined
