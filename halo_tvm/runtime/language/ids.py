"""Token ids and lengths as callers give them: checked, and refused in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from ...errors import InputError, UsageError

_RAW = (str, bytes, bytearray, memoryview)


def is_whole(value: object) -> bool:
    """Whether it is an integer of Python or NumPy; a truth value is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole_ids(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """`tokens` as integers [n], which may be none; `InputError` for what is no list of integers."""
    if isinstance(tokens, _RAW):
        raise InputError(f"expected a list of token ids, found {type(tokens).__name__}: pass integers")
    try:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"{ids.dtype} of rank {ids.ndim}")
    except (TypeError, ValueError) as error:
        raise InputError(f"expected a list of token ids, found {error}: pass integers") from error
    return ids


def ids_of(tokens: Sequence[int] | np.ndarray, values: tuple[int, int] | None) -> np.ndarray:
    """`tokens` as int64 [n] within `values`; `InputError` for none and for what is no such id."""
    ids = whole_ids(tokens)
    if not ids.size:
        raise InputError("expected at least one token, found none: pass a prompt")
    low, high = values or (0, np.iinfo(np.int64).max)
    if ids.min() < low or ids.max() > high:
        found = int(ids.min() if ids.min() < low else ids.max())
        raise InputError(f"expected token ids from {low} to {high}, found {found}: check the tokenizer that made them")
    return ids.astype(np.int64)


def check_length(count: int, filled: int) -> None:
    """`UsageError` unless a sequence of `filled` positions has `count` first ones."""
    if not is_whole(count) or not 0 <= count <= filled:
        raise UsageError(f"expected a length from 0 to {filled}, which are filled, found {count!r}: correct it")


def with_room(ids: np.ndarray, filled: int, context: int, longest: int) -> np.ndarray:
    """`ids`, which a context has room for behind as many as are `filled`; else `InputError`."""
    if filled + ids.size > context:
        raise InputError(
            f"expected at most {context - filled} more tokens in a context of {context}, found {ids.size}: "
            + shorter(context, longest)
        )
    return ids


def shorter(context: int, longest: int) -> str:
    """What to do where a context is too short, of a model whose positions allow `longest`."""
    if context >= longest:
        return "shorten the prompt; the model's positions allow no more"
    return f"shorten the prompt, or load the model with a larger context, up to {longest} (--context, context=)"
