"""What a language model says about a passage of English: the reference that a lower precision is judged by.

Random tokens tell a wrong kernel from a right one; what rounding costs shows where a model has something to say.

The passage is the beginning of "Alice's Adventures in Wonderland" by Lewis Carroll (1865), in the public domain. It is
cut into windows, and the source computes each of them. Of its logits are kept, per position, the logarithm of the sum
of their exponentials, the 64 largest, and that of the token that follows: 0.5 kB instead of a vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..errors import Declined
from ..imported import ImportedModel, InputSpec
from ..interpreter import evaluate

KEPT = 64  # of the largest logits
WINDOW = 256  # tokens
_MOST = 16  # windows
_LEAST = 2
_FLOPS = 3e11  # of all windows together: seconds of NumPy
_PASSAGE = Path(__file__).with_name("passage.txt")


def text_cases(model: ImportedModel) -> dict[str, np.ndarray]:
    """Arrays by the keys of `runtime.language.fidelity`.

    Shapes
        text.ids int32 [w, t]   text.logsum float32 [w, t]   text.top int32 [w, t, 64]   text.logits float32 [w, t, 64]
        text.next float32 [w, t - 1]

    Raises `Declined` where the passage is no input of the model, with the reason.
    """
    spec, rows, tokens = _window(model)
    ids = _windows(model, tokens)
    size = 2.0 * sum(math.prod(source.shape) for source in model.params.sources.values()) * tokens
    count = int(np.clip(_FLOPS / max(size, 1.0), _LEAST, _MOST))
    ids = ids[: max(1, min(count, len(ids)) // rows) * rows]
    if len(ids) < rows:
        raise Declined(f"the passage has {len(ids)} windows of {tokens} tokens, and the model reads {rows} at once")
    run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]] = model.engine or (lambda x: evaluate(model, x))
    found = []
    for begin in range(0, len(ids), rows):
        part = ids[begin : begin + rows]
        logits = np.asarray(run({spec.name: part.astype(spec.dtype)})[model.outputs[0]])
        if logits.ndim != 3 or logits.shape[:2] != part.shape:
            raise Declined(f"expected logits of every position, found {list(logits.shape)} for {list(part.shape)}")
        found += [_kept(row, own) for row, own in zip(logits, part)]
    arrays = {key: np.stack([row[key] for row in found]) for key in found[0]}
    return {"text.ids": ids.astype(np.int32), **arrays}


def _window(model: ImportedModel) -> tuple[InputSpec, int, int]:
    """The one input, how many windows it takes at once, and of how many tokens."""
    if (model.language or {}).get("tokenizer") not in model.files:
        raise Declined("the model has no tokenizer")
    needed = [spec for spec in model.inputs if spec.default is None]
    if len(needed) != 1 or len(needed[0].shape) != 2 or np.dtype(needed[0].dtype).kind not in "iu":
        raise Declined(f"expected token ids [batch, sequence] as the only input, found {[s.name for s in needed]}")
    low, high = ([model.ranges[d][i] if isinstance(d, str) else int(d) for d in needed[0].shape] for i in (0, 1))
    return needed[0], low[0], max(low[1], min(WINDOW, high[1]))


def _windows(model: ImportedModel, tokens: int) -> np.ndarray:
    """The passage as token ids int64 [windows, tokens], each window behind what the tokenizer puts before a text."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Declined("the package tokenizers is not installed: pip install 'halo_tvm[lm]'") from None
    text = _PASSAGE.read_text(encoding="ascii")
    try:
        stored = model.files[str((model.language or {})["tokenizer"])]
        tokenizer = Tokenizer.from_buffer(stored if isinstance(stored, bytes) else stored.read_bytes())
        whole, plain = (tokenizer.encode(text, add_special_tokens=special).ids for special in (True, False))
    except Exception as error:  # noqa: BLE001 - the package raises no narrower one
        raise Declined(f"its tokenizer does not read the passage: {str(error)[:200]}") from None
    prefix = whole[: len(whole) - len(plain)] if whole[len(whole) - len(plain) :] == plain else []
    new = tokens - len(prefix)
    if new < 2 or len(plain) < new:
        raise Declined(f"the passage of {len(plain)} tokens gives no window of {tokens}")
    ids = np.array([prefix + plain[i : i + new] for i in range(0, len(plain) - new + 1, new)], np.int64)
    _, high = next((spec.values for spec in model.inputs if spec.values), None) or (0, np.iinfo(np.int64).max)
    if ids.max() > high:
        raise Declined(f"the passage has the token {ids.max()}, and the model's tokens end at {high}")
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
