"""What every option set is: a frozen dataclass whose fields are the flags of a verb."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from ..errors import UnknownName, UsageError
from ._fields import in_words, taken

TOML_NAME = "halo.toml"


def option(default: object = dataclasses.MISSING, help: str = "", **metadata: object) -> object:
    """A field with what its flag needs.

    Metadata: `short` (one-letter flag), `spelled` (the flag where it is not the field's name), `metavar`,
    `positional`, `choices`, `env` (attribute of `Environment` that serves when no flag is given), `flag=False` (no
    flag), `split=False` (a list whose flag is repeated, never separated by commas: its values may hold them).
    """
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True)
class Config:
    """Base of all option sets. A field's type is its flag's type: str, int, float, bool, tuple[str, ...]."""

    announced: ClassVar[bool] = True  # printed before the work starts, with -v

    def __str__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        width = max(map(len, shown))
        lines = [f"  {name:<{width}}  {_shown(value)}" for name, value in shown.items() if value not in (None, (), {})]
        return "\n".join([type(self).__name__, *lines])

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.metadata.get("flag", True):
                object.__setattr__(self, field.name, _normal(field, getattr(self, field.name)))
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata.get("choices")
            if value == "" and field.metadata.get("metavar") in ("DIR", "FILE"):
                flag = "--" + field.name.replace("_", "-")
                raise UsageError(f"{flag} must name a file or a directory, but is empty: leave it out, or name one")
            for chosen in value if isinstance(value, tuple) else (value,):
                if choices and chosen is not None and chosen not in choices:
                    name = field.name.removesuffix("s") if isinstance(value, tuple) else field.name
                    raise UnknownName(name.replace("_", " "), str(chosen), choices)
        threads = getattr(self, "threads", None)
        if threads is not None and threads < 1:
            raise UsageError(
                f"threads must be at least 1, but are {threads}: leave the option out to use every allowed core"
            )
        seed = getattr(self, "seed", 0)
        if seed < 0:
            raise UsageError(f"seed must be at least 0, but is {seed}: give a number that is not negative")


def _normal(field: dataclasses.Field[object], value: object) -> object:
    """`value` as the field keeps it; `UsageError` for one of another type."""
    try:
        return taken(field, value)
    except TypeError:
        raise UsageError(f"{field.name} must be {in_words(field)}, but is {value!r:.200}: correct it") from None


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
