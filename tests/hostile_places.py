"""Every place of plain data, and the data with something else in one of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice

Place = tuple[object, ...]


def places(data: object, path: Place = (), *, of_lists: int | None = None) -> Iterator[Place]:
    """The path to every item; of a list the first `of_lists`, or all."""
    if path:
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in islice(items, of_lists if isinstance(data, list) else None):
        yield from places(item, (*path, key), of_lists=of_lists)


def changed(data: object, path: Place, value: object) -> object:
    """A copy of `data` with `value` at `path`."""
    whole = copy.deepcopy(data)
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return whole
