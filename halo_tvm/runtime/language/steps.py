"""The functions of a language model with the caches they write: tokens in, logits out, nothing copied between."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm_ffi

from ...artifact import FunctionSpec, TensorSpec
from ...errors import EnvironmentProblem, InputError, UsageError
from ..session import Session
from ..tensors import aligned_empty, numpy_dtype, to_arrays, to_tensor
from .ids import check_length, ids_of, with_room
from .source import Source
from .spec import READ, TOGETHER, WHOLE

_HUGE = 2 << 20  # bytes of a huge page
Run = Callable[[Sequence[tvm_ffi.Tensor]], object]


class Steps:
    """Sequences of tokens, one per slot: their caches, and how many positions of each are filled.

    Slots lie behind one another, so that one is a piece of every cache, and all are the whole of it. The tokens of an
    encoder-decoder answer a text, which `read` takes; those of a decoder follow one another.

    A state without positions, of a short convolution or a state space, is overwritten by every token (`overwrites`): a
    slot can be emptied, and not be made shorter. A slot whose call did not end is empty.
    """

    def __init__(
        self,
        session: Session,
        functions: dict[str, FunctionSpec],
        weights: Mapping[str, Sequence[tvm_ffi.Tensor]],
        context: int,
        longest: int,
        slots: int = 1,
    ) -> None:
        """Caches for `context` positions, of at most `longest` that the model's positions allow."""
        decode, prefill = functions["decode"], functions.get("prefill")
        self.context, self.longest = context, longest
        self.filled = [0] * slots
        self.chunk = prefill.ranges["tokens"][1] if prefill else 1
        self._highest = decode.inputs[0].values
        together, most = functions.get(TOGETHER), 1
        if together is not None:
            most = together.ranges["slots"][1]
        if not 1 <= slots <= most or (slots > 1 and not session.on_host):
            raise UsageError(
                f"expected 1 to {most if session.on_host else 1} slots, which the artifact was compiled for, found "
                f"{slots}: compile it with --slots {slots}, for a CPU"
            )
        kept = [t for t in decode.inputs if t.name in decode.state]
        self._arrays, self._memory = _caches(kept, context, slots)
        self._by_position = ["capacity" in t.shape for t in kept]
        self.overwrites = not all(self._by_position)

        def bound(name: str, first: int, last: int, given: Sequence[tvm_ffi.Tensor] = ()) -> Run:
            caches = session.keep([to_tensor(array[first:last]) for array in self._arrays])
            return session.bind(name, (*given, *caches, *weights[name]))

        def answering(given: np.ndarray, slot: int) -> None:
            assert self.source is not None
            self._run[slot]["decode"] = bound("decode", slot, slot + 1, session.keep(self.source.read(given)))

        names = ("decode",) if prefill is None else ("prefill", "decode")
        self._run = [{name: bound(name, i, i + 1) for name in names} for i in range(slots)]
        self.source = Source(session, functions, weights) if READ[0] in functions else None
        self._answering = answering
        self._together = bound(TOGETHER, 0, slots) if slots > 1 else None
        scores = WHOLE in functions and self.source is None
        self._whole = session.bind(WHOLE, weights[WHOLE]) if scores else None
        self._sizes = _scored(functions[WHOLE]) if scores else (1, 0)
        self._lengths = aligned_empty((1,), np.dtype(np.int32))
        self._of_slots = aligned_empty((slots,), np.dtype(np.int32))
        self._ids = aligned_empty((slots, 1), np.dtype(np.int64))

    @property
    def cache_bytes(self) -> int:
        return int(self._memory.nbytes)

    def read(self, given: Sequence[int] | np.ndarray, slot: int = 0) -> None:
        """Take what the tokens in `slot` answer from now on, a text or a spectrum; those that are there go."""
        assert self.source is not None
        sound = self.source.heard is not None
        self._answering(np.asarray(given, np.float32) if sound else ids_of(given, self.source.values), slot)
        self.filled[slot] = 0

    def feed(self, tokens: Sequence[int], slot: int = 0) -> np.ndarray:
        """Logits [vocabulary] behind `tokens`, which follow what is in the caches; long ones go in chunks.

        Raises `InputError` for no tokens, tokens that the model has not, and more than the context has room for. After
        any error the slot holds what it held, or, of a state that tokens overwrite, nothing.
        """
        ids, before = self.checked(tokens, slot), self.filled[slot]
        try:
            for begin in range(0, len(ids), self.chunk):
                part = ids[begin : begin + self.chunk]
                logits = self._step("decode" if len(part) == 1 else "prefill", part, slot)
        except BaseException:  # an interrupt, too
            self.filled[slot] = 0 if self.overwrites else before
            raise
        return logits

    def feed_together(self, tokens: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Logits [vocabulary] by slot behind one more token in each slot of `tokens`; the others stay as they are."""
        ids = {slot: self.checked([token], slot) for slot, token in tokens.items()}
        if self._together is None or len(ids) == 1:
            return {slot: self._step("decode", token, slot) for slot, token in ids.items()}
        self._of_slots[:] = -1  # takes no part
        self._ids[:] = 0
        for slot, token in ids.items():
            self._of_slots[slot], self._ids[slot] = self.filled[slot], token
        after = {slot: self._begun(slot) + 1 for slot in ids}
        result = to_arrays(self._together([to_tensor(self._ids), to_tensor(self._of_slots)]))[0]
        for slot, filled in after.items():
            self.filled[slot] = filled
        return {slot: result[slot] for slot in ids}

    def score(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [tokens, vocabulary] behind every one of `tokens`, by `main`: the caches stay as they are."""
        if self.source is not None:
            raise UsageError(
                "expected a decoder's tokens to score, found a model that answers a text: load its function main, "
                "which takes both"
            )
        ids = self.checked(tokens, None)
        low, high = self._sizes
        if self._whole is None or not low <= len(ids) <= high:
            raise InputError(
                f"expected {low} to {high} tokens, which main takes of one text, found {len(ids)}: score them in "
                "parts, or compile with another --shape"
            )
        result = self._whole([to_tensor(_row(ids))])
        logits: np.ndarray = to_arrays(result)[0][0]
        return logits

    def truncate(self, count: int, slot: int = 0) -> None:
        """Forget all but the first `count` positions; of a state without positions all or none."""
        filled = self.filled[slot]
        check_length(count, filled)
        if self.overwrites and count not in (0, filled):
            raise UsageError(
                f"expected the length 0 or {filled} of a state that every token overwrites, found {count}: read the "
                "tokens again"
            )
        self.filled[slot] = count

    def fork(self, slot: int, to: int) -> None:
        """Let `to` go on from what is in `slot`: one copy of its filled positions."""
        filled = self.filled[slot]
        for array, by_position in zip(self._arrays, self._by_position):
            if by_position:
                array[to, :filled] = array[slot, :filled]
            else:
                array[to] = array[slot]
        self.filled[to] = filled

    def _step(self, function: str, ids: np.ndarray, slot: int) -> np.ndarray:
        self._lengths[0] = self.filled[slot]
        after = self._begun(slot) + len(ids)
        result = self._run[slot][function]([to_tensor(_row(ids)), to_tensor(self._lengths)])
        self.filled[slot] = after
        logits: np.ndarray = to_arrays(result)[0][0]
        return logits

    def _begun(self, slot: int) -> int:
        """The length in front of a call; until it has ended nobody knows what is in a state that it overwrites."""
        filled = self.filled[slot]
        if self.overwrites:
            self.filled[slot] = 0
        return filled

    def checked(self, tokens: Sequence[int], slot: int | None) -> np.ndarray:
        """`tokens` as an array of ids that the model has, and that the caches of `slot`, where one is given, hold."""
        ids = ids_of(tokens, self._highest)
        return ids if slot is None else with_room(ids, self.filled[slot], self.context, self.longest)


def _row(ids: np.ndarray) -> np.ndarray:
    array = aligned_empty((1, len(ids)), np.dtype(np.int64))
    array[0] = ids
    return array


def _scored(main: FunctionSpec) -> tuple[int, int]:
    """The fewest and most tokens of one text of which `main` gives all logits; (1, 0) where it does not."""
    (batch, sequence), logits = main.inputs[0].shape, main.outputs[0].shape
    bounds = [main.ranges[d] if isinstance(d, str) else (int(d), int(d)) for d in (batch, sequence)]
    return bounds[1] if bounds[0][0] == 1 and len(logits) == 3 else (1, 0)


def _caches(specs: Sequence[TensorSpec], context: int, slots: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The caches [slots, context, heads, size] and states [slots, ...], in one piece of memory in huge pages.

    It is taken when it is written. Beside others a slot begins at a cache line, so that it has room for a multiple of
    16 positions; states have to fill lines by themselves.
    """
    room = context if slots == 1 else -(-context // 16) * 16
    shapes = [(slots, *(room if d == "capacity" else int(d) for d in spec.shape[1:])) for spec in specs]
    sizes = [-(-math.prod(shape) * numpy_dtype(spec.dtype).itemsize // 64) * 64 for shape, spec in zip(shapes, specs)]
    strides = [math.prod(shape[1:]) * numpy_dtype(spec.dtype).itemsize for shape, spec in zip(shapes, specs)]
    if slots > 1 and (odd := [spec.name for spec, stride in zip(specs, strides) if stride % 64]):
        raise UsageError(f"expected states of whole cache lines beside {slots} slots, found {odd[0]}: load one slot")
    total, free = sum(sizes), _free_bytes()
    if free is not None and total > free:
        raise EnvironmentProblem(
            f"expected memory for caches of {total} bytes, which a context of {context} takes"
            f"{f' in {slots} slots' if slots > 1 else ''}, found {free} free: load the model with a smaller context"
        )
    pages = mmap.mmap(-1, -(-total // _HUGE) * _HUGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)[:total]
    arrays, start = [], 0
    for spec, shape, size in zip(specs, shapes, sizes):
        dtype = numpy_dtype(spec.dtype)
        array = memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        arrays.append(array)
        start += size
    return arrays, memory


def _free_bytes() -> int | None:
    """What this machine can still give, as Linux says it; None elsewhere."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return None
