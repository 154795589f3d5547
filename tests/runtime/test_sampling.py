"""Bias and penalties of sampling against their formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

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
