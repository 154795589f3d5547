"""A loop as jax writes a `scan`: a counter from 0, rows of some tensors read at it, rows of others set at it.

As a `scan` of jax again, a cell in it is recognised as a layer, and a short one is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .._counter import Counter, Loop, NoScan, Unread
from .._operation import Operation, Value, dtype_of, traced


def as_scan(o: Operation) -> list[Value] | None:
    """The results of `o`, a `while`; None where it is no scan."""
    try:
        place, length = _counted(o)
        return _Scan(o, place, length).results()
    except (NoScan, jax.errors.InconclusiveDimensionOperation):
        return None


def _counted(o: Operation) -> tuple[int, Any]:
    """Which operand counts from 0, and to what: a number or a symbolic size."""
    block = o.op.regions[0].blocks[0]
    returned = _returned(block)
    condition = returned[0].owner
    if getattr(condition, "name", "") != "stablehlo.compare" or _direction(condition) != "LT":
        raise NoScan
    counter, limit = condition.operands
    place = _place(block, counter)
    if place is None or not isinstance(o.known[place], np.ndarray) or o.known[place].reshape(-1)[0] != 0:
        raise NoScan
    bound = _place(block, limit)
    if bound is not None and not _stays(o)[bound]:
        raise NoScan
    (length,) = o.program.block(block, o.known, o.held, [limit])
    if not isinstance(length, np.ndarray) or isinstance(length.reshape(-1)[0], Counter):
        raise NoScan
    return place, length.reshape(-1)[0] if length.dtype == object else int(length.reshape(-1)[0])


def _direction(condition: Any) -> str:
    """`LT` of `#stablehlo<comparison_direction LT>`."""
    return str(condition.attributes["comparison_direction"]).rstrip(">").split()[-1]


def _returned(block: Any) -> list[Any]:
    return list(block.operations[len(block.operations) - 1].operation.operands)


def _place(block: Any, value: Any) -> int | None:
    return next((place for place, argument in enumerate(block.arguments) if argument == value), None)


def _stays(o: Operation) -> list[bool]:
    """Which operands each step returns as they are."""
    block = o.op.regions[1].blocks[0]
    return [value == argument for value, argument in zip(_returned(block), block.arguments, strict=True)]


class _Scan:
    """The loop `o`, whose operand `place` counts to `length`."""

    def __init__(self, o: Operation, place: int, length: Any) -> None:
        self.o, self.place, self.length = o, place, length
        self.types = [dtype_of(v.type) for v in o.op.operands]
        self.given = [v if isinstance(v, np.ndarray) else self._typed(v, p) for p, v in enumerate(o.known)]
        self.outer = frozenset(id(v) for v in (*self.given, *o.held.values()) if _is_tensor(v))
        self.carried = [p for p, stays in enumerate(_stays(o)) if not stays and p != place]
        self.set: dict[int, tuple[Any, ...]] = {}  # operands that each step sets a row of, and nothing else: shapes

    def results(self) -> list[Value]:
        _, self.set = self._looked_at()
        self.carried = [p for p in self.carried if p not in self.set]
        loop, _ = self._looked_at()
        if len(loop.directions) > 1 or not (loop.read or isinstance(self.length, int)):
            raise NoScan
        tensors, backwards = list(loop.read.values()), True in loop.directions
        rows = list(tensors)
        if loop.counts:
            steps = jnp.arange(self.length, dtype="int32")
            rows.append(steps[::-1] if backwards else steps)

        def step(state: Sequence[Value], given: Sequence[Value]) -> tuple[list[Value], list[Value]]:
            own = Loop(self.length, given[-1] if loop.counts else None, self.outer)
            own.rows = {id(x): row[None] for x, row in zip(tensors, given)}
            self.o.program.rows |= {id(v): (v, row) for v, row in zip(own.rows.values(), given)}
            after = self._step(own, state)
            return [self._typed(after[p], p) for p in self.carried], [after[p].row for p in self.set]

        first = [self._typed(self.given[p], p) for p in self.carried]
        known = self.length if isinstance(self.length, int) else None
        last, made = lax.scan(step, first, rows, length=known, reverse=backwards)
        out = [self._typed(v, p) for p, v in enumerate(self.given)]
        out[self.place] = jnp.asarray(self.length, self.types[self.place])
        for p, value in (*zip(self.carried, last, strict=True), *zip(self.set, made, strict=True)):
            out[p] = value
        return out

    def _looked_at(self) -> tuple[Loop, dict[int, tuple[Any, ...]]]:
        """What a step does with the counter; of which operands it returns no more than a row set in them."""
        loop = Loop(self.length, None, self.outer)
        found: dict[int, tuple[Any, ...]] = {}

        def body(at: Value, state: Sequence[Value]) -> list[Value]:
            loop.at = at
            after = self._step(loop, state)
            for p, own in zip(self.carried, state, strict=True):
                if loop.written.get(id(after[p]), (None, None))[0] is own:
                    found[p] = tuple(np.shape(own))
            return [self._typed(after[p], p) for p in self.carried]

        jax.eval_shape(body, jnp.zeros((), "int32"), [self._typed(self.given[p], p) for p in self.carried])
        return loop, found

    def _step(self, loop: Loop, state: Sequence[Value]) -> list[Any]:
        """What the body returns at the step of `loop`."""
        arguments: list[Any] = list(self.given)
        arguments[self.place] = np.array(Counter(loop), object)
        for p, value in zip(self.carried, state, strict=True):
            arguments[p] = value
        for p, shape in self.set.items():
            arguments[p] = Unread(shape)
        after: list[Any] = self.o.program.block(self.o.op.regions[1].blocks[0], arguments, self.o.held)
        counted = after[self.place]
        if not isinstance(counted, np.ndarray) or not _is_next(counted.reshape(-1)[0], loop):
            raise NoScan
        if not all(isinstance(after[p], Unread) and after[p].row is not None for p in self.set):
            raise NoScan
        return after

    def _typed(self, value: Any, place: int) -> Value:
        return jnp.asarray(traced(value), self.types[place])


def _is_next(value: Any, loop: Loop) -> bool:
    return isinstance(value, Counter) and value.loop is loop and value.a == 1 and bool(value.b == 1)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and value.dtype != object
