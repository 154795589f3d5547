"""Why a model is not imported: parts of sentences that several front ends say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..array_files import one_reason
from ..errors import UnsupportedModel

_LONGEST = 200  # characters of what another library says
_MOST, _PLACES = 20, 3  # kinds of problems, and places of each, that are named


def listed(problems: Mapping[str, Sequence[str]]) -> str:
    """What cannot be converted -> its places, as a list; empty where there are none."""
    few = sorted(problems.items())[:_MOST]
    return "; ".join(f"{what} ({len(places)}: {', '.join(places[:_PLACES])})" for what, places in few)


def lines_of(reason: object) -> list[str]:
    """The lines of the message that are not empty; the name of the error's class where there are none."""
    return [line for text in str(reason).splitlines() if (line := text.strip())] or [type(reason).__name__]


def last_line(reason: object) -> str:
    return lines_of(reason)[-1][:_LONGEST]


def not_run(engine: str, model: str, reason: Exception) -> UnsupportedModel:
    """That `engine` refuses the inputs which the reference of `model` is asked for."""
    return UnsupportedModel(
        f"expected {engine} to run {model} for the reference, but it says: {one_reason(reason)}: "
        "give inputs that it accepts with --inputs"
    )
