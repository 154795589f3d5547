"""Language models whose layers keep a state that tokens overwrite: what a slot can keep, and what is read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from byte_tokens import write_tokenizer
from checkpoints import write_checkpoint

from halo_tvm import LanguageModel
from halo_tvm.artifact import TensorSpec
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import UsageError
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate
from halo_tvm.runtime.language.held import Held
from halo_tvm.runtime.language.steps import _caches

pytest.importorskip("tokenizers")
PROMPT = list(range(60, 71))


SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
KINDS = {
    "lfm2": {**SMALL, "layer_types": ["conv", "full_attention"]},  # a short convolution beside caches
    "mamba": {},  # no cache by position: states by channel
    "bamba": {},  # states by head beside caches
}


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states") / "tiny"
    write_checkpoint(folder, request.param, vocab_size=258, **KINDS[request.param])
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("states-artifact") / "m.halo"
    compile_model(CompileConfig(model=str(directory), output=str(path), threads=2, records=False, slots=3))
    with LanguageModel.load(path, context=48, slots=3, threads=2) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def wanted(directory: Path):
    """The logits behind token ids, of whole sequences in float64."""
    source = import_model(str(directory))
    return lambda ids: evaluate(source, {"input_ids": np.array([ids])})["logits"][0, -1]


def near(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


class Recording:
    """Steps that note what they read."""

    overwrites, context, source = True, 64, None

    def __init__(self) -> None:
        self.filled = [0]
        self.read: list[list[int]] = []

    def feed(self, tokens: list[int], slot: int) -> None:
        self.read.append(list(tokens))
        self.filled[slot] += len(tokens)

    def truncate(self, count: int, slot: int) -> None:
        assert count in (0, self.filled[slot])
        self.filled[slot] = count


def test_tokens_are_read_again_where_a_state_is_not_theirs() -> None:
    held = Held(None, None, steps := Recording())
    held.feed([1, 2, 3, 4], 0)
    assert held.keep_common([1, 2, 3, 4, 5], 0) == 4 and steps.filled == [4]
    held.forget(2, 0)  # which a state cannot
    assert steps.read == [[1, 2, 3, 4], [1, 2]] and steps.filled == [2]
    steps.filled[0] = 0  # as a call leaves it that did not end
    held.feed([7], 0)
    assert steps.read[2:] == [[1, 2], [7]]
    assert held.keep_common([1, 2, 7], 0) == 0 and steps.filled == [0]  # the last token is to be read


def test_slots_of_a_state_begin_at_cache_lines() -> None:
    states = [TensorSpec("state_0", (1, 1, 3, 5), "float32")]
    arrays, _ = _caches(states, 16, 1)
    assert arrays[0].shape == (1, 1, 3, 5)
    with pytest.raises(UsageError, match="expected states of whole cache lines beside 2 slots, found state_0"):
        _caches(states, 16, 2)


@pytest.mark.slow
def test_steps_chunks_and_slots_equal_whole_sequences(model, wanted) -> None:
    """A slot that takes no part in a step, or is emptied, does not see what others left."""
    near(model.prefill(PROMPT), wanted(PROMPT))
    near(model.decode(7), wanted([*PROMPT, 7]))
    near(model.extend([8, 9]), wanted([*PROMPT, 7, 8, 9]))
    near(model.prefill(PROMPT[:1], 1), wanted(PROMPT[:1]))
    model.fork(0, to=2)
    found = model.decode_together({0: 3, 2: 4})
    near(found[0], wanted([*PROMPT, 7, 8, 9, 3]))
    near(found[2], wanted([*PROMPT, 7, 8, 9, 4]))
    found = model.decode_together({0: 5, 1: 6})
    near(found[0], wanted([*PROMPT, 7, 8, 9, 3, 5]))
    near(found[1], wanted([PROMPT[0], 6]))
    near(model.decode(1, 2), wanted([*PROMPT, 7, 8, 9, 4, 1]))
    near(model.prefill([9, 8], 0), wanted([9, 8]))
    every = model.score(PROMPT)
    near(every[-1], wanted(PROMPT))
    near(model.decode(7), wanted([9, 8, 7]))


@pytest.mark.slow
def test_a_state_cannot_be_made_shorter_so_that_tokens_are_read_again(model, wanted) -> None:
    model.prefill(PROMPT)
    model.decode(7)
    model.truncate(5)
    assert model.length == 5
    near(model.decode(9), wanted([*PROMPT[:5], 9]))
    with pytest.raises(UsageError, match="expected the length 0 or 6 of a state that every token overwrites, found 3"):
        model._steps.truncate(3)
    with pytest.raises(UsageError, match="expected a length from 0 to 6, which are filled, found 7"):
        model.truncate(7)


@pytest.mark.slow
def test_a_prompt_keeps_a_slot_whose_tokens_all_are_its_own(model) -> None:
    first = model.generate(PROMPT, max_new_tokens=4)
    longer = [*PROMPT, *first.tokens, 5]
    answer = model.generate(longer, max_new_tokens=4)
    assert answer.kept_tokens == len(PROMPT) + 3  # the last token that was said was not read yet
    again = model.generate(longer, max_new_tokens=4)
    assert again.kept_tokens == 0 and again.tokens == answer.tokens
    for slot in range(3):
        model.truncate(0, slot)
    assert model.generate(longer, max_new_tokens=4).tokens == answer.tokens


@pytest.mark.slow
def test_a_call_that_did_not_end_leaves_no_half_state(model, wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    model.prefill(PROMPT)
    run = model._steps._run[0]["decode"]

    def interrupted(given) -> None:
        run(given)  # the state has moved
        raise KeyboardInterrupt

    monkeypatch.setitem(model._steps._run[0], "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.decode(7)
    monkeypatch.undo()
    near(model.decode(8), wanted([*PROMPT, 8]))
