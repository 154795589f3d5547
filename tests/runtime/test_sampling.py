"""Bias and penalties of sampling against their formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from halo_tvm.errors import InputError
from halo_tvm.runtime.language.sampling import Sampler, Sampling


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"frequency_penalty": -0.2, "presence_penalty": 0.1, "repetition_penalty": 1.2},
        {"logit_bias": {3: 4.0, 7: -np.inf, np.int64(11): -0.5}},
        {"logit_bias": {5: 2.0}, "repetition_penalty": 1.5, "frequency_penalty": 0.3},
    ],
)
def test_greedy_choices_are_those_of_the_formulas(options: dict[str, object]) -> None:
    """logits + bias, divided or multiplied by the repetition penalty, less counts and presence of what was said."""
    rng = np.random.default_rng(1)
    seen, said = [2, 4], []
    sampler = Sampler(Sampling(**options), list(seen))
    for _ in range(40):
        logits = rng.standard_normal(13).astype(np.float32) * 2
        wanted = logits.astype(np.float64)
        for token, bias in options.get("logit_bias", {}).items():
            wanted[token] += bias
        for token in {*seen, *said}:
            penalty = options.get("repetition_penalty", 1)
            wanted[token] = wanted[token] / penalty if wanted[token] >= 0 else wanted[token] * penalty
        for token in set(said):
            wanted[token] -= said.count(token) * options.get("frequency_penalty", 0) + options.get(
                "presence_penalty", 0
            )
        before = logits.copy()
        said.append(sampler.choose(logits))
        assert said[-1] == wanted.argmax()
        np.testing.assert_array_equal(logits, before)
    assert len(set(said)) > 2


def test_draws_follow_the_bias() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, top_k=0, logit_bias={0: np.log(4.0), 3: -np.inf}, seed=0), [])
    counts = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(counts, np.array([4, 2, 3, 0]) / 9, atol=0.03)


def test_top_k_of_0_is_no_bound_and_no_draw() -> None:
    logits = np.arange(6, dtype=np.float32)
    assert Sampler(Sampling(top_k=0), []).choose(logits) == 5
    alike = [Sampler(Sampling(temperature=2.0, top_k=k, seed=4), []) for k in (None, 0)]
    assert [alike[0].choose(logits) for _ in range(50)] == [alike[1].choose(logits) for _ in range(50)]


@pytest.mark.filterwarnings("error")
def test_a_temperature_near_0_is_the_likeliest() -> None:
    assert Sampler(Sampling(temperature=1e-320), []).choose(np.array([1, 3, 2], np.float32)) == 1


@pytest.mark.parametrize(
    ("ngram", "words", "seen"),
    [
        (1, (), [3, 4]),
        (2, (), [3, 4, 5, 3]),
        (3, (), [1, 2, 1, 2]),
        (9, (), [1]),
        (None, ((1,), (0, 0), (2, 0, 3)), [1, 2]),
        (2, ((0,), (7, 7)), [9]),
        (4, ((2, 2, 2, 2, 1),), [2, 2]),
    ],
)
def test_words_and_runs_are_ruled_out_as_by_transformers(
    ngram: int | None, words: tuple[tuple[int, ...], ...], seen: list[int]
) -> None:
    """Few tokens of strong preferences, so that runs come again wherever they may."""
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    size, steps = 40, []
    if ngram:
        steps.append(processors.NoRepeatNGramLogitsProcessor(ngram))
    if words:
        steps.append(processors.NoBadWordsLogitsProcessor([list(word) for word in words], eos_token_id=39))
    rng = np.random.default_rng(0)
    sampler = Sampler(Sampling(no_repeat_ngram_size=ngram), list(seen), words)
    said, differed = list(seen), False
    for _ in range(30):
        logits = rng.standard_normal(size).astype(np.float32) - np.minimum(np.arange(size), 8).astype(np.float32)
        wanted = torch.from_numpy(logits)[None]
        for step in steps:
            wanted = step(torch.tensor([said]), wanted)
        differed |= int(wanted.argmax()) != int(logits.argmax())
        said.append(sampler.choose(logits))
        assert said[-1] == int(wanted.argmax())
    assert differed or ngram == 9


def test_typical_draws_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(3)
    for share in (0.2, 0.9):
        logits = rng.standard_normal(60).astype(np.float32) * 2
        warped = processors.TypicalLogitsWarper(share)(torch.tensor([[0]]), torch.from_numpy(logits)[None])
        shares = warped.softmax(-1)[0].numpy()
        sampler = Sampler(Sampling(typical_p=share, seed=1), [])
        counts = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=60) / 4000
        assert not counts[shares == 0].any() and (shares == 0).any()
        assert np.abs(counts - shares).max() < 0.04


def test_where_everything_is_ruled_out_the_options_are_named() -> None:
    sampler = Sampler(Sampling(no_repeat_ngram_size=1), [0])
    assert sampler.choose(np.zeros(2, np.float32)) == 1
    with pytest.raises(InputError, match="a token that may come next, found none: logit_bias, bad_words and no_rep"):
        sampler.choose(np.zeros(2, np.float32))
