"""Do the functions behind caches say what `main` was checked for? The same tokens, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from ...artifact import OpenArtifact
from .model import LanguageModel

_SINGLE = 2  # tokens at the end that are decoded one by one
_STEPS = 256  # of a passage, at the ends of its windows
Logits = tuple[int, str, np.ndarray, np.ndarray]  # case, function, what it gives, what is expected


def logits_behind_caches(
    artifact: OpenArtifact, cases: Mapping[int, Mapping[str, Mapping[str, np.ndarray]]], threads: int | None
) -> Iterator[Logits]:
    """Logits [1, vocabulary] of the last tokens of every case whose reference has those of all positions."""
    fitting = {
        index: (*_tokens(case["input"]), case["output"]["logits"][0])
        for index, case in sorted(cases.items())
        if np.ndim(case["output"].get("logits")) == 3 and _is_text_or_sound(case.get("input", {}))
    }
    fitting = {i: (text, ids, wanted) for i, (text, ids, wanted) in fitting.items() if len(ids) > _SINGLE}
    if not fitting:
        return
    longest = max(len(ids) for _, ids, _ in fitting.values())
    with LanguageModel.load(artifact, context=longest, threads=threads) as model:
        for index, (text, ids, wanted) in fitting.items():
            begin = len(ids) - _SINGLE
            if text is None:
                yield index, "prefill", model.prefill(ids[:begin])[None], wanted[begin - 1 : begin]
            else:
                model.encode(text)
                yield index, "decode", model.extend(ids[:begin])[None], wanted[begin - 1 : begin]
            for at in range(begin, len(ids)):
                yield index, "decode", model.decode(int(ids[at]))[None], wanted[at : at + 1]


@contextmanager
def reader_behind_caches(
    artifact: OpenArtifact, windows: np.ndarray, threads: int | None
) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """For windows of ids [w, t] a function of one window that gives the logits [n, vocabulary] of its last positions.

    All but the last tokens go into the caches at once; the others are decoded one by one, `_STEPS` in all windows.
    """
    count, tokens = windows.shape
    single = max(1, min(tokens // 2, _STEPS // count))
    with LanguageModel.load(artifact, context=tokens, threads=threads) as model:

        def last_logits(ids: np.ndarray) -> np.ndarray:
            begin = tokens - single
            model.truncate(0)
            rows = [model.prefill(ids[:begin]).copy()]
            rows += [model.decode(int(token)).copy() for token in ids[begin:]]
            return np.stack(rows).astype(np.float32, copy=False)

        yield last_logits


def _is_text_or_sound(inputs: Mapping[str, np.ndarray]) -> bool:
    sound = np.ndim(inputs.get("input_features")) == 3 and np.ndim(inputs.get("decoder_input_ids")) == 2
    return sound or np.ndim(inputs.get("input_ids")) == 2


def _tokens(inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray | None, np.ndarray]:
    """The first row of a case: what an encoder reads, None without one, and the tokens of the decoder."""
    if "input_features" in inputs:
        return inputs["input_features"][0], inputs["decoder_input_ids"][0]
    ids = inputs["input_ids"][0]
    answer = inputs.get("decoder_input_ids")
    if answer is None:
        return None, ids
    mask = inputs.get("attention_mask")
    return ids if mask is None else ids[mask[0] != 0], answer[0]
