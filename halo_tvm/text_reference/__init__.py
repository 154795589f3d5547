"""What a language model says about a passage of English: the reference that a lower precision is judged by.

Random tokens tell a wrong kernel from a right one; what rounding costs shows where a model has something to say.

The passage is the beginning of "Alice's Adventures in Wonderland" by Lewis Carroll (1865), in the public domain. It is
cut into windows, and the source computes each of them. Of its logits are kept, per position, the logarithm of the sum
of their exponentials, the 64 largest, and that of the token that follows: 0.5 kB instead of a vocabulary. On the way
the inputs of its linears are measured, which is what a search for scales of narrow weights goes by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import Declined, UsageError
from ..imported import ImportedModel, InputSpec
from ..interpreter import evaluate, linear_weights
from ..params import ParamSource, squares_of
from ..passes.expand import expanded

KEPT = 64  # of the largest logits
WINDOW = 256  # tokens
_MOST = 16  # windows
_LEAST = 2
_FLOPS = 3e11  # of all windows together: seconds of NumPy
_TELLING = 512  # tokens: fewer leave much of a model unseen
_LONGEST = 1 << 22  # characters that are read of a file
_PASSAGE = Path(__file__).with_name("passage.txt")


class Passage:
    """A text in windows of tokens, and what its model's source computes for them, once and when it is asked for."""

    def __init__(self, model: ImportedModel, text: str | None = None) -> None:
        """The shipped passage unless `text` is given; `Declined` where it is no input of the model, with the reason."""
        # Every linear on its own: what is inside of a feed-forward network is measured, too.
        self._model = model if model.engine else replace(model, mod=expanded(model.mod)[0])
        self._spec, self._rows, tokens = _window(model)
        ids = _windows(model, tokens, _PASSAGE.read_text(encoding="ascii") if text is None else text)
        size = 2.0 * sum(math.prod(source.shape) for source in model.params.sources.values()) * tokens
        count = int(np.clip(_FLOPS / max(size, 1.0), _LEAST, _MOST))
        self.ids = ids[: max(1, min(count, len(ids)) // self._rows) * self._rows]
        if len(self.ids) < self._rows:
            raise Declined(
                f"the text has {len(self.ids)} windows of {tokens} tokens, and the model reads {self._rows} at once"
            )
        self._kept: dict[str, np.ndarray] = {}
        self._squares: dict[str, np.ndarray] = {}  # by the name of a weight: sums over all rows, [k]

    def cases(self) -> dict[str, np.ndarray]:
        """Arrays by the keys of `runtime.language.fidelity`.

        Shapes
            text.ids int32 [w, t]   text.logsum float32 [w, t]   text.top int32 [w, t, 64]
            text.logits float32 [w, t, 64]   text.next float32 [w, t - 1]

        Raises `Declined` for a model that does not give logits of every position.
        """
        if not self._kept:
            self._read()
        return {"text.ids": self.ids.astype(np.int32), **self._kept}

    def measure_inputs(self) -> None:
        """Give the model's parameters the mean squares [k] of what each linear's weight is multiplied with.

        They are read when they are needed. A model that another engine than NumPy evaluates is not looked into.
        """
        if self._model.engine is None:
            for name, k in linear_weights(self._model).items():
                measured = ParamSource((k,), "float32", partial(self._mean_squares, name))
                self._model.params.sources[squares_of(name)] = measured

    def _mean_squares(self, weight: str) -> np.ndarray:
        if not self._squares:
            with suppress(Declined):  # logits of another shape: the linears have been seen
                self._read()
        return (self._squares[weight] / self.ids.size).astype(np.float32)

    def _read(self) -> None:
        found = []
        for begin in range(0, len(self.ids), self._rows):
            part = self.ids[begin : begin + self._rows]
            logits = np.asarray(self._run({self._spec.name: part.astype(self._spec.dtype)})[self._model.outputs[0]])
            if logits.ndim != 3 or logits.shape[:2] != part.shape:
                raise Declined(f"expected logits of every position, found {list(logits.shape)} for {list(part.shape)}")
            found += [_kept(row, own) for row, own in zip(logits, part)]
        self._kept = {key: np.stack([row[key] for row in found]) for key in found[0]}

    def _run(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if self._model.engine is None:
            return evaluate(self._model, inputs, self._observe)
        shape = next(iter(inputs.values())).shape
        masks = {spec.name: np.ones(shape, spec.dtype) for spec in self._model.inputs if spec.default == "ones"}
        return self._model.engine({**masks, **inputs})

    def _observe(self, weight: str, x: np.ndarray) -> None:
        rows = x.reshape(-1, x.shape[-1])
        self._squares[weight] = self._squares.get(weight, 0.0) + np.einsum("mk,mk->k", rows, rows)


def passage_of(model: ImportedModel, path: str, option: str) -> Passage:
    """The text of a file, which an `option` names; `UsageError` for one that `model` cannot read or that is short."""
    try:
        with open(path, encoding="utf-8") as file:
            found = Passage(model, file.read(_LONGEST))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"expected a text in UTF-8 as {option} {path}, but {error}: give another file") from None
    except Declined as reason:
        raise UsageError(f"expected a text that the model reads as {option} {path}, but {reason}") from None
    if found.ids.size < _TELLING:
        raise UsageError(
            f"expected a text of at least {_TELLING} tokens as {option} {path}, found {found.ids.size} in whole "
            f"windows of {found.ids.shape[1]}: give a longer one"
        )
    return found


def calibration_of(model: ImportedModel, path: str) -> Passage:
    """A text to measure the inputs of linears on; `UsageError` as `passage_of`, and where none are measured."""
    if model.engine is not None:
        raise UsageError(
            f"expected a model that a definition of ours serves beside --calibrate {path}, found one whose source "
            "another engine evaluates, so that the inputs of its linears are not measured: leave --calibrate out"
        )
    return passage_of(model, path, "--calibrate")


def _window(model: ImportedModel) -> tuple[InputSpec, int, int]:
    """The one input, how many windows it takes at once, and of how many tokens."""
    if (model.language or {}).get("tokenizer") not in model.files:
        raise Declined("the model has no tokenizer")
    needed = [spec for spec in model.inputs if spec.default is None]
    if len(needed) != 1 or len(needed[0].shape) != 2 or np.dtype(needed[0].dtype).kind not in "iu":
        raise Declined(f"expected token ids [batch, sequence] as the only input, found {[s.name for s in needed]}")
    low, high = ([model.ranges[d][i] if isinstance(d, str) else int(d) for d in needed[0].shape] for i in (0, 1))
    return needed[0], low[0], max(low[1], min(WINDOW, high[1]))


def _windows(model: ImportedModel, tokens: int, text: str) -> np.ndarray:
    """A text as token ids int64 [windows, tokens], each window behind what the tokenizer puts before a text."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Declined("the package tokenizers is not installed: pip install 'halo_tvm[lm]'") from None
    try:
        stored = model.files[str((model.language or {})["tokenizer"])]
        tokenizer = Tokenizer.from_buffer(stored if isinstance(stored, bytes) else stored.read_bytes())
        tokenizer.no_truncation()  # which are of training, as `runtime.language.text` has it
        tokenizer.no_padding()
        whole, plain = (tokenizer.encode(text, add_special_tokens=special).ids for special in (True, False))
    except Exception as error:  # noqa: BLE001 - the package raises no narrower one
        raise Declined(f"its tokenizer does not read the text: {str(error)[:200]}") from None
    prefix = whole[: len(whole) - len(plain)] if whole[len(whole) - len(plain) :] == plain else []
    new = tokens - len(prefix)
    if new < 2 or len(plain) < new:
        raise Declined(f"the text of {len(plain)} tokens gives no window of {tokens}")
    ids = np.array([prefix + plain[i : i + new] for i in range(0, len(plain) - new + 1, new)], np.int64)
    _, high = next((spec.values for spec in model.inputs if spec.values), None) or (0, np.iinfo(np.int64).max)
    if ids.max() > high:
        raise Declined(f"the text has the token {ids.max()}, and the model's tokens end at {high}")
    return ids


def _kept(logits: np.ndarray, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Of logits [t, vocabulary] what is compared."""
    count = min(KEPT, logits.shape[-1])
    sums, tops = np.empty(len(logits)), np.empty((len(logits), count), np.int32)
    for i, row in enumerate(logits.astype(np.float64, copy=False)):
        top = np.argpartition(row, -count)[-count:] if count < len(row) else np.arange(len(row))
        tops[i] = top[np.argsort(-row[top], kind="stable")]
        peak = row[tops[i, 0]]
        sums[i] = peak + math.log(np.exp(row - peak).sum())
    return {
        "text.logsum": sums.astype(np.float32),
        "text.top": tops,
        "text.logits": np.take_along_axis(logits, tops.astype(np.int64), 1).astype(np.float32),
        "text.next": np.take_along_axis(logits[:-1], ids[1:, None], 1)[:, 0].astype(np.float32),
    }
