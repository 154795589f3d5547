"""Code for the sizes that the tuner times only: quicker to build, never shipped.

The tuner gives a function that it builds to race the attribute TIMED. A rule may then leave out what other
sizes need, and marks the root block of what it makes with ONLY_TIMED. The winner of a race is built again without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tvm import ir, tirx

TIMED = "halo.timed"  # JSON: name of a symbolic dimension -> the values it is timed at
ONLY_TIMED = "halo.only_timed"


def with_timed(func: tirx.PrimFunc, values: Mapping[str, Sequence[int]]) -> tirx.PrimFunc:
    """`func` that knows at which values of its symbolic dimensions it is timed."""
    return func.with_attr(TIMED, json.dumps({name: sorted(set(found)) for name, found in values.items()}))


def timed_values(func: tirx.PrimFunc, dim: ir.Expr) -> tuple[int, ...]:
    """The only values of `dim` that matter; empty when all do."""
    if not (isinstance(dim, ir.Var) and func.attrs and TIMED in func.attrs.keys()):
        return ()
    return tuple(json.loads(str(func.attrs[TIMED])).get(str(dim.name), ()))


def is_only_timed(func: tirx.PrimFunc) -> bool:
    """Whether a scheduled function is wrong at sizes that are not timed."""
    root = getattr(func.body, "block", None)
    return root is not None and ONLY_TIMED in root.annotations
