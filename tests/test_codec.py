"""What a declared form takes, where JSON's types and Python's meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from halo_tvm.codec import Unfit, read


@dataclass(frozen=True)
class _Chosen:
    number: Literal[1, 2]


@pytest.mark.parametrize("value", [True, 1.0, "1", 3, None])
def test_a_literal_has_its_own_type(value: object) -> None:
    """True is 1 to Python, and no number to whoever wrote the file."""
    assert read(_Chosen, {"number": 1}) == _Chosen(1)
    with pytest.raises(Unfit):
        read(_Chosen, {"number": value})
