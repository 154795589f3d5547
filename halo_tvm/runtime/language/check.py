"""Do `prefill` and `decode` say what `main` was checked for? The same tokens, in pieces behind a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...artifact import OpenArtifact
from .model import LanguageModel

_SINGLE = 2  # tokens at the end that are decoded one by one
Logits = tuple[int, str, np.ndarray, np.ndarray]  # case, function, what it gives, what is expected


def logits_behind_caches(
    artifact: OpenArtifact, cases: Mapping[int, Mapping[str, Mapping[str, np.ndarray]]], threads: int | None
) -> Iterator[Logits]:
    """Logits [1, vocabulary] of the last tokens of every case whose reference has those of all positions."""
    fitting = {
        index: (case["input"]["input_ids"][0], case["output"]["logits"][0])
        for index, case in sorted(cases.items())
        if np.ndim(case.get("input", {}).get("input_ids")) == 2 and np.ndim(case["output"].get("logits")) == 3
    }
    fitting = {i: (ids, wanted) for i, (ids, wanted) in fitting.items() if len(ids) > _SINGLE}
    if not fitting:
        return
    longest = max(len(ids) for ids, _ in fitting.values())
    with LanguageModel.load(artifact, context=longest, threads=threads) as model:
        for index, (ids, wanted) in fitting.items():
            begin = len(ids) - _SINGLE
            yield index, "prefill", model.prefill(ids[:begin])[None], wanted[begin - 1 : begin]
            for at in range(begin, len(ids)):
                yield index, "decode", model.decode(int(ids[at]))[None], wanted[at : at + 1]
