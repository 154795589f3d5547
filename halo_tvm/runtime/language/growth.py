"""What a chat template may make out of little: repetition, padding, formats, joins, each of a bounded length.

A template of forty lines can double a text until memory ends. So every operation whose result may be much longer than
the template and the messages computes the length of its result first: `TooLong` beyond `LONGEST` characters, and
beyond `_ALL` of all results together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from string import Formatter
from typing import cast

LONGEST = 8 << 20  # characters of a prompt, and of every text on the way there
_ALL = 1 << 27
_MOST = 100_000  # elements of a list with all that is in it, as many as a range may have
_WIDEST = 1000  # characters of a field of a format
_FORMAT = 10_000  # characters of a format
_ESCAPED = 10  # characters that stand for one, where it is written as an escape
_DIGITS = 1 << 16  # bits of an integer
_PERCENT = re.compile(
    r"%(?:\((?P<name>[^)]*)\))?[#0 +-]*(?P<width>\*|\d*)(?:\.(?P<more>\*|\d*))?[hlL]?(?P<kind>.)", re.S
)
Text = Callable[..., object]


class TooLong(ValueError):
    """A template asks for a longer text, list or number than is allowed."""


class Growth:
    """The operations of a template; `begin` is the start of a rendering."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._left = _ALL

    def operator(self, sign: str, left: object, right: object) -> None:
        """`TooLong` where the result of a binary operator would be."""
        if sign == "%" and isinstance(left, str):
            self._percent(left, right)
        elif sign == "+" and isinstance(left, str) and isinstance(right, str):
            self._spend(len(left) + len(right))
        elif sign in "+*" and (isinstance(left, (list, tuple)) or isinstance(right, (list, tuple))):
            self._elements(sign, left, right)
        elif sign == "*" and isinstance(left, str) != isinstance(right, str):
            text, count = (left, right) if isinstance(left, str) else (right, left)
            self._spend(len(cast(str, text)) * _whole(count))
        elif sign in ("*", "**"):
            bits = [x.bit_length() for x in (left, right) if isinstance(x, int)]
            most = sum(bits) if sign == "*" else (bits or [0])[0] * _whole(right if isinstance(right, int) else 1)
            if len(bits) == 2 and most > _DIGITS:
                raise TooLong(f"a number of more than {_DIGITS} bits")

    def joined(self, parts: Iterable[object], between: object = "") -> str:
        """Their texts in one."""
        texts = [self.text(part) for part in parts]
        self._spend(sum(map(len, texts)) + len(str(between)) * len(texts))
        return str(between).join(texts)

    def text(self, value: object) -> str:
        """As `str` writes it. Lists in lists may hold one list many times over: it is written as often."""
        if not isinstance(value, str):
            self._spend(_written(value))
        return str(value)

    def printed(self, value: object) -> object:
        """A value that a template prints, or makes a text of."""
        if not isinstance(value, (str, int, float)):
            self._spend(_written(value))
        return value

    def check_json(self, value: object, indent: int | None) -> None:
        """`TooLong` where `value` would be too much of JSON."""
        self._spend(_written(value, indent or 0))

    def indented(self, text: object, width: object = 4, first: bool = False, blank: bool = False) -> str:
        """Lines behind `width` spaces, or that text: all but the first and the blank ones, unless asked for."""
        front = width if isinstance(width, str) else self._padding(width)
        found = self.text(text)
        lines = (found + "\n").splitlines()
        self._spend(len(found) + len(lines) * (len(front) + 1))
        indented = [front + line if line or blank else line for line in lines[1:]]
        return "\n".join([front + lines[0] if first else lines[0], *indented])

    def centred(self, text: object, width: int = 80) -> str:
        self._spend(_whole(width))
        return self.text(text).center(width)

    def replaced(self, text: object, old: object, new: object, count: int | None = None) -> str:
        found, old, new = self.text(text), self.text(old), self.text(new)
        times = found.count(old) if count is None or count < 0 else min(found.count(old), _whole(count))
        self._spend(len(found) + times * len(new))
        return found.replace(old, new, times)

    def formatted(self, text: object, *values: object, **named: object) -> str:
        """As `%` does."""
        found, given = self.text(text), named or values
        self._percent(found, given)
        return str(found % given)

    def check_fields(self, text: str, values: Sequence[object], named: Mapping[str, object]) -> None:
        """`TooLong` where `str.format` would make too long a text."""
        longest = max((_written(value) for value in (*values, *named.values())), default=0)
        length = longest + _format(text)
        for _, name, form, kind in Formatter().parse(text):
            if name is not None:
                numbers = [int(n) for n in re.findall(r"\d+", form or "")]
                if "{" in (form or "") or "." in name or max(numbers, default=0) > _WIDEST:
                    raise TooLong(f"a field of more than {_WIDEST} characters, or one with an attribute")
                length += (_ESCAPED if kind else 1) * longest + sum(numbers)
        self._spend(length)

    def batched(self, values: Iterable[object], count: int, fill: object = None) -> Iterator[list[object]]:
        """Lists of `count` values; the last one is filled up with `fill`."""
        self._elements("*", [0], count)
        found = list(values)
        for begin in range(0, len(found), max(1, count)):
            part = found[begin : begin + max(1, count)]
            yield part if fill is None else [*part, *[fill] * (count - len(part))]

    def method(self, text: str, name: str) -> Text | None:
        """The method `name` of `text`, bounded, if it makes longer texts."""
        value: Text = getattr(text, name, self.text)
        if name in ("ljust", "rjust", "center", "zfill"):

            def padded(width: int, *fill: str) -> object:
                self._spend(max(len(text), _whole(width)))
                return value(width, *fill)

            return padded
        if name == "expandtabs":

            def expanded(tabsize: int = 8) -> object:
                self._spend(len(text) + text.count("\t") * _whole(tabsize))
                return value(tabsize)

            return expanded
        if name == "join":
            return lambda parts: self.joined(parts, text)
        if name == "replace":
            return lambda old, new, count=-1: self.replaced(text, old, new, count)
        return None

    def _padding(self, width: object) -> str:
        self._spend(_whole(width))
        return " " * _whole(width)

    def _elements(self, sign: str, left: object, right: object) -> None:
        held = [len(x) for x in (left, right) if isinstance(x, (list, tuple))]
        if sign == "*":
            held = [held[0] * _whole(right if isinstance(left, (list, tuple)) else left)]
        if sum(held) > _MOST:
            raise TooLong(f"a list of more than {_MOST} elements")
        self._spend(8 * sum(held))

    def _percent(self, form: str, values: object) -> None:
        longest = max(map(_written, values if isinstance(values, tuple) else (values,)), default=0)
        length = longest + _format(form)
        if re.search(r"%\([^)]*\(", form):
            raise TooLong("a format whose names have brackets")
        for field in _PERCENT.finditer(form):
            numbers = [field["width"], field["more"] or ""]
            if "*" in numbers or any(len(n) > 4 or int(n or 0) > _WIDEST for n in numbers):
                raise TooLong(f"a field of more than {_WIDEST} characters")
            length += (_ESCAPED if field["kind"] in "ra" else 1) * longest + sum(int(n or 0) for n in numbers)
        self._spend(length)

    def _spend(self, length: int) -> None:
        self._left -= max(0, length)
        if length > LONGEST or self._left < 0:
            raise TooLong(f"a text of more than {LONGEST} characters, or many such texts")


def _whole(count: object) -> int:
    if isinstance(count, int):
        return max(0, count)
    raise TypeError(f"a count that is {type(count).__name__}")


def _format(form: str) -> int:
    if len(form) > _FORMAT:
        raise TooLong(f"a format of more than {_FORMAT} characters")
    return len(form)


def _written(value: object, pad: int = 0) -> int:
    """About the characters that `str` takes for it; `TooLong` where these are too many.

    `pad`: as JSON whose elements stand behind so many spaces for each depth.
    """
    length, seen, rest = 0, 0, [(value, 1)]
    while rest:
        seen += 1
        one, depth = rest.pop()
        length += 8 + depth * pad
        if isinstance(one, str):
            length += len(one)
        elif isinstance(one, int):
            length += one.bit_length() // 3
        elif isinstance(one, float) or one is None:
            length += 24
        elif isinstance(one, (list, tuple, set, frozenset)):
            rest.extend(zip(one, repeat(depth + 1)))
        elif isinstance(one, Mapping):
            rest.extend(zip(chain(one, one.values()), repeat(depth + 1)))
        else:
            length += 200  # an object of the template engine
        if length > LONGEST or seen > _MOST:
            raise TooLong(f"a text of more than {LONGEST} characters, or of {_MOST} elements")
    return length
