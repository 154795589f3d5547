"""Option sets as the words of a command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ._config import Config
from ._fields import flag_of


def words_of(config: Config, names: Collection[str]) -> list[str]:
    """The flags of the fields `names`, as far as they are not at their default: `["--opt-level", "2"]`."""
    words: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in names or not field.metadata.get("flag", True) or value in (field.default, ()):
            continue
        flag = flag_of(field)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [word for one in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(one))]
    return words
