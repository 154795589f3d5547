"""Text of unknown origin, made harmless for a line of output."""

from __future__ import annotations

import re

_BREAKS = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
# Control characters, those that turn the direction of writing or take no room, and halves of a character.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def one_line(text: object) -> str:
    """`text` with line breaks and tabs as spaces, and a mark in place of what a terminal would obey or not show."""
    return _UNSEEN.sub("\ufffd", _BREAKS.sub(" ", str(text)))
