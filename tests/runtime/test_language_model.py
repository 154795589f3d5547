"""A language model from its directory to text: one artifact, caches that stay, what users can ask and get wrong."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from byte_tokens import END, write_tokenizer
from checkpoints import write_checkpoint
from children import fork

from halo_tvm import LanguageModel
from halo_tvm.artifact import read_manifest
from halo_tvm.cli import main
from halo_tvm.compilation import Compilation
from halo_tvm.compiler import compile_model
from halo_tvm.config import CompileConfig
from halo_tvm.errors import (
    ArtifactCorrupt,
    EnvironmentProblem,
    InputError,
    MissingPackage,
    UnsupportedModel,
    UsageError,
    ValidationFailed,
)
from halo_tvm.importers import import_model
from halo_tvm.importers._language import NO_TEXTS
from halo_tvm.interpreter import evaluate
from halo_tvm.params import squares_of
from halo_tvm.peers.client import engine_command
from halo_tvm.report.schema import from_json
from halo_tvm.runtime import load
from halo_tvm.runtime.language import Sampling
from halo_tvm.runtime.language.chat import render
from halo_tvm.runtime.language.fidelity import compare_text, text_of
from halo_tvm.runtime.language.held import Held
from halo_tvm.runtime.language.sampling import Sampler, log_probabilities
from halo_tvm.runtime.language.spec import LanguageSpec, spec_of
from halo_tvm.runtime.language.text import Pieces, Text
from halo_tvm.runtime.validation import validate_artifact
from halo_tvm.text_reference import _kept, calibration_of, passage_of

tokenizers = pytest.importorskip("tokenizers")
PROMPT = list(range(60, 71))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language") / "tiny"
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    write_checkpoint(folder, "llama", vocab_size=258, intermediate_size=48, max_position_embeddings=4096, **sizes)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def artifact(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("language-artifact") / "m.halo"
    compile_model(CompileConfig(model=str(directory), output=str(path), threads=2, records=False, slots=3))
    return path


@pytest.fixture(scope="module")
def model(artifact: Path):
    with LanguageModel.load(artifact, context=48, threads=2) as loaded:
        yield loaded


@pytest.mark.slow
def test_functions_share_weights_and_kernels(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    assert list(manifest.functions) == ["decode", "decode_slots", "main", "prefill"]
    assert manifest.reports["build"]["apart_bytes"] == 0
    assert "tokenizer.json" in manifest.files and manifest.language["end"] == [END]
    checked = {row["output"] for row in manifest.validation["outputs"]}
    assert checked == {"logits", "prefill.logits", "decode.logits"}  # compiling validates all three functions
    text = manifest.validation["text"]  # and reads a passage, a byte a token
    assert text["tokens"] == 16 * 256 and text["divergence"] < 1e-6 and text["top1"] > 0.999
    assert text["perplexity"] == pytest.approx(text["source_perplexity"], rel=1e-4) and text["perplexity"] > 100
    for name in ("prefill", "decode", "decode_slots"):
        state = manifest.functions[name].state
        outputs = {tensor.name for tensor in manifest.functions[name].outputs}
        assert state == ("key_0", "value_0") and outputs == {"logits", *state}  # written in place
        report = manifest.reports["functions"][name]
        assert report["build"]["planned_bytes"] > 0 and report["schedule"]["kernels"]["kernels"]


def test_logits_and_greedy_text_are_those_of_the_definition(directory: Path, artifact: Path, model) -> None:
    """Chunks, single steps and truncation give what whole sequences give in float64."""
    source = import_model(str(directory))
    ids, wanted = list(PROMPT), []
    for _ in range(8):
        wanted.append(evaluate(source, {"input_ids": np.array([ids])})["logits"][0, -1])
        ids.append(int(wanted[-1].argmax()))
    found = [model.prefill(PROMPT), *(model.decode(token) for token in ids[len(PROMPT) : -1])]
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert model.length == len(ids) - 1
    model.truncate(5)
    logits = [model.decode(token) for token in ids[5 : len(PROMPT)]][-1]
    np.testing.assert_allclose(logits, wanted[0], atol=1e-5 * np.abs(wanted).max())
    answer = model.generate(PROMPT, max_new_tokens=8, logprobs=2)
    assert list(answer.tokens) == ids[len(PROMPT) :] and answer.kept_tokens == len(PROMPT) - 1
    assert (answer.ended, answer.prompt_tokens, len(answer.logprobs)) == ("length", len(PROMPT), 8)
    assert answer.logprobs[0][1][0][0] == answer.tokens[0] and answer.answer_rate > 0 and answer.prompt_rate > 0
    model.truncate(3)
    np.testing.assert_allclose(model.extend(ids[3:-1]), wanted[-1], atol=1e-5 * np.abs(wanted[-1]).max())
    every = model.score([*ids, *ids, *ids])  # more than the context of 48: no cache is read or written
    assert every.shape == (3 * len(ids), 258) and model.length == len(ids) - 1
    np.testing.assert_allclose(every[len(PROMPT) - 1 : len(ids) - 1], wanted, atol=1e-5 * np.abs(wanted).max())
    with load(artifact, threads=2) as whole:  # main is still there, for whole batches
        np.testing.assert_allclose(whole(input_ids=np.array([ids[:-1]]))[0, -1], wanted[-1], atol=1e-4)


def test_a_plain_module_gives_the_caches_that_were_written(artifact: Path, model) -> None:
    """Whoever keeps caches of his own passes them and gets them back; his arrays stay as they were."""
    wanted = [model.prefill(PROMPT), model.decode(3), model.decode(5)]
    with load(artifact, function="prefill", threads=2) as prefill, load(artifact, function="decode") as decode:
        empty = {t.name: np.zeros((1, 48, *t.shape[2:]), np.float32) for t in prefill.input_specs[2:]}
        assert [t.name for t in decode.output_specs] == ["logits", *empty] and decode.num_outputs == 3
        found, caches = [], tuple(empty.values())
        for module, ids in ((prefill, PROMPT), (decode, [3]), (decode, [5])):
            length = sum(len(ids) for _, ids in found)
            logits, *caches = module(np.array([ids]), np.array([length], np.int32), *caches)
            found.append((logits[0], ids))
        assert not any(array.any() for array in empty.values()) and all(array.any() for array in caches)
        np.testing.assert_allclose([logits for logits, _ in found], wanted, atol=1e-5)
        decode.set_input(input_ids=np.array([[5]]), lengths=np.array([len(PROMPT) + 1], np.int32))
        decode.run(**dict(zip(empty, caches)))
        np.testing.assert_allclose(decode.get_output("logits")[0], wanted[-1], atol=1e-5)
        decode(np.array([[5]]), np.array([47], np.int32), *caches)
        for module, ids, filled in ((decode, [5], 48), (prefill, PROMPT, 48 - len(PROMPT) + 1)):
            with pytest.raises(InputError, match=f"from which {len(ids)} fit into 'capacity' 48, found {filled}"):
                module(np.array([ids]), np.array([filled], np.int32), *caches)
        assert decode.example_inputs(sizes={"capacity": 1})["lengths"] == 0


def test_streams_chats_and_stops(model) -> None:
    text = model.generate("abc", max_new_tokens=12).text
    assert "".join(model.stream("abc", max_new_tokens=12)) == text
    stop = text[3:6]
    cut = model.generate("abc", max_new_tokens=12, stop=[stop])
    assert (cut.text, cut.ended) == (text[: text.find(stop)], "stop")
    first = model.generate(messages=[{"role": "user", "content": "hi"}], max_new_tokens=4)
    turns = [("user", "hi"), ("assistant", "x"), ("user", "go")]
    second = model.generate(messages=[{"role": r, "content": c} for r, c in turns], max_new_tokens=4)
    assert first.prompt_tokens == len("<user>hi\n>") and second.kept_tokens == len("<user>hi\n")
    full = model.generate(PROMPT)
    assert full.ended in ("length", "end") and model.length <= model.context
    drawn = [model.generate(PROMPT, max_new_tokens=9, temperature=2.0, top_k=40, seed=s).tokens for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_slots_decode_together_as_they_do_alone(artifact: Path, model) -> None:
    """Ragged lengths, any subset, a slot that takes no part, one that is full; more prompts than slots."""
    prompts = [PROMPT, PROMPT[:3], PROMPT[2:8], [7], PROMPT[::-1]]
    with LanguageModel.load(artifact, context=21, slots=3, threads=2) as several:
        assert several.slots == 3 and several.cache_bytes == 3 * 2 * 32 * 16 * 4  # room for 32 positions each
        for slot in (2, 0, 1):
            np.testing.assert_allclose(several.prefill(prompts[slot], slot), model.prefill(prompts[slot]), atol=1e-6)
        said = {slot: list(prompts[slot]) for slot in range(3)}
        for round, part in enumerate([(0, 1, 2), (2, 0), (1,), (0, 2), (2, 1)]):
            found = several.decode_together({slot: 50 + round + slot for slot in part})
            for slot in part:
                said[slot].append(50 + round + slot)
                np.testing.assert_allclose(found[slot], model.prefill(said[slot]), atol=1e-5)
        several.truncate(2, slot=1)
        np.testing.assert_allclose(several.decode(9, slot=1), model.prefill([*said[1][:2], 9]), atol=1e-5)
        several.fork(0, to=2)  # both go on by themselves
        found = several.decode_together({0: 50, 2: 60})
        for slot, token in ((0, 50), (2, 60)):
            np.testing.assert_allclose(found[slot], model.prefill([*said[0], token]), atol=1e-5)
        kept = several.generate([*said[0], 50, 7], max_new_tokens=1).kept_tokens
        assert kept == len(said[0]) + 1
        found = several.generate_all(prompts, max_new_tokens=12)
        for prompt, answer in zip(prompts, found):
            alone = model.generate(prompt, max_new_tokens=min(12, 22 - len(prompt)))
            assert (answer.tokens, answer.text, answer.ended) == (alone.tokens, alone.text, alone.ended)
        assert several.generate_all([]) == []
        chats = [[{"role": "user", "content": said}] for said in ("a", "b")]
        found = several.generate_all([chats[0], "ab", chats[1]], max_new_tokens=4)
        alone = [model.generate(messages=chat, max_new_tokens=4) for chat in chats]
        alone.insert(1, model.generate("ab", max_new_tokens=4))
        assert [answer.tokens for answer in found] == [answer.tokens for answer in alone]
        assert [several.text(answer.tokens) for answer in found] == [answer.text for answer in found]
        for ask, message in (
            (lambda: several.decode_together({3: 1}), "a slot from 0 to 2, found 3"),
            (lambda: several.fork(0, to=3), "a slot from 0 to 2, found 3"),
            (lambda: several.fork(1, to=1), "expected two slots, found 1 twice"),
            (lambda: several.decode_together({0: 258, 1: 1}), "token ids from 0 to 257, found 258"),
            (lambda: several.generate_all([PROMPT, []]), "found an empty prompt"),
        ):
            with pytest.raises((InputError, UsageError), match=message):
                ask()
    with pytest.raises(UsageError, match="expected 1 to 3 slots, which the artifact was compiled for, found 4"):
        LanguageModel.load(artifact, slots=4)


@pytest.mark.parametrize(
    ("kv", "dtype", "near"),
    [
        pytest.param("fp16", "float16", 2e-3, marks=pytest.mark.slow),  # the gate's artifact has them, too
        ("int8", "int8", 2e-2),
    ],
)
@pytest.mark.sampled(1)
def test_narrow_caches(directory: Path, model, tmp_path: Path, kv: str, dtype: str, near: float) -> None:
    """Written narrow and widened where they are read: in chunks, single steps, several slots, and behind a cut."""
    path, functions = tmp_path / "m.halo", ("prefill", "decode")
    how = {"threads": 2, "records": False, "kv": kv, "function": functions, "slots": 2}
    compile_model(CompileConfig(model=str(directory), output=str(path), **how))
    manifest = read_manifest(path)
    kept = {t.dtype for f in (*functions, "decode_slots") for t in manifest.functions[f].inputs[2:]}
    assert kept == {dtype} and manifest.precision == "fp32"
    text = manifest.validation["text"]  # the gate has read the passage behind these caches
    assert 2 * text["divergence"] < text["behind_caches"] <= text["caches_bound"] == (0.01 if kv == "int8" else 0.005)
    with pytest.raises(ValidationFailed, match=r"behind caches of at most \S+ nats .*, found \S+, and \S+ without"):
        validate_artifact(path, divergence=text["behind_caches"] / 2)
    with LanguageModel.load(path, context=48, slots=2, threads=2) as narrow:
        # Of twice as many slots; in eight bits a head of 16 has a scale of 4 bytes.
        assert narrow.cache_bytes == model.cache_bytes * (1 if kv == "fp16" else 20 / 32)
        narrow.prefill(PROMPT[:4], slot=1)
        narrow.prefill([*PROMPT, 9])
        narrow.truncate(len(PROMPT))
        found = [narrow.decode(3), *narrow.decode_together({0: 5, 1: PROMPT[4]}).values()]
    wanted = [model.prefill([*PROMPT, 3]), model.decode(5), model.prefill(PROMPT[:5])]
    np.testing.assert_allclose(found, wanted, atol=near * np.abs(wanted).max())
    assert np.abs(np.subtract(found, wanted)).max() > 0


def test_a_passage_measures_what_linears_read(directory: Path, tmp_path: Path) -> None:
    """The inputs of the head are a norm's, whose mean square is one before its weight."""
    model = import_model(str(directory))
    text = tmp_path / "text.txt"
    text.write_text("Call me Ishmael. " * 40)
    passage_of(model, str(text), "--calibrate").measure_inputs()
    measured = {name: model.params.materialise(name) for name in model.params.sources if name.endswith("|squares")}
    parts = ("self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "embed_tokens")
    assert all(name.endswith(f"{part}.weight|squares") for name, part in zip(measured, parts, strict=True))
    head, norm = measured[squares_of("model.embed_tokens.weight")], model.params.materialise("model.norm.weight")
    assert np.mean(head / norm**2) == pytest.approx(1, abs=1e-2) and np.ptp(head / norm**2) > 0.1
    text.write_text("Call me Ishmael. " * 20)
    for path, message in (
        (text, "at least 512 tokens as --calibrate .*, found 256 in whole windows of 256"),
        (tmp_path / "none", "a text in UTF-8 as --calibrate .*No such file"),
    ):
        with pytest.raises(UsageError, match=message):
            passage_of(model, str(path), "--calibrate")
    with pytest.raises(UsageError, match="a definition of ours serves beside --calibrate .*another engine evaluates"):
        calibration_of(replace(model, engine=lambda inputs: {}), str(text))


def test_a_text_is_a_gate(directory: Path, tmp_path: Path, capsys) -> None:
    """What a language model loses is bounded when it is compiled, and its artifact remembers by what."""
    path, text = tmp_path / "m.halo", tmp_path / "text.txt"
    how = {"threads": 2, "records": False, "function": ("prefill", "decode"), "precision": "int8"}
    result = compile_model(CompileConfig(model=str(directory), output=str(path), allow_quality_loss=True, **how))
    assert "nats per token (any is accepted)" in result.validation
    assert read_manifest(path).validation["text"]["bound"] == "inf" and validate_artifact(path)["passed"]
    lost = r"a divergence .* at most 1e-12 nats .*, found \S+, .*same likeliest token \S+% .* --allow-quality-loss"
    with pytest.raises(ValidationFailed, match=lost):
        validate_artifact(path, divergence=1e-12)
    text.write_text("Call me Ishmael. " * 40)
    assert main(["validate", str(path), "--text", str(text), "--reference", str(directory)]) == 0
    assert "text of 512 tokens" in capsys.readouterr().out
    assert main(["validate", str(path), "--text", str(text)]) == 1
    assert "expected --reference with the original beside --text" in capsys.readouterr().err
    with pytest.raises(UsageError, match="max_divergence must be a number of nats from 0, but is nan"):
        CompileConfig("m", max_divergence=float("nan"))


def test_which_caches_are_narrow() -> None:
    asked = {"precision": "int8"}
    for how, dtype in (
        ({}, "float32"),
        (asked, "float16"),
        ({**asked, "kv": "fp32"}, "float32"),
        ({"kv": "int8"}, "int8"),
    ):
        assert Compilation.of(CompileConfig("m", **how)).caches == dtype
    with pytest.raises(UsageError, match="c reads keys and values as they are kept, found --kv fp16"):
        Compilation.of(CompileConfig("m", target="c", kv="fp16"))


def test_the_end_token_ends_an_answer(model, monkeypatch) -> None:
    token = model.generate(PROMPT, max_new_tokens=1).tokens[0]
    monkeypatch.setattr(model._held, "_spec", __import__("dataclasses").replace(model._spec, end=(token,)))
    answer = model.generate(PROMPT, max_new_tokens=5)
    assert (answer.tokens, answer.text, answer.ended) == ((token,), "", "end")


def test_an_answer_has_at_least_so_many_tokens_and_no_bad_words(model) -> None:
    plain = model.generate("ab", max_new_tokens=12)
    sure = {"max_new_tokens": 12, "logit_bias": {END: 1e6}}
    assert model.generate("ab", **sure).tokens == (END,)
    for least in (1, 5, 12):
        found = model.generate("ab", min_new_tokens=least, **sure)
        assert found.tokens[:least] == plain.tokens[:least] and END not in found.tokens[:least]
        assert found.tokens[least:] == ((END,) if least < 12 else ())
    (one,) = model.generate_all(["ab"], min_new_tokens=5, **sure)
    assert one.tokens == (*plain.tokens[:5], END) and "".join(model.stream("ab", min_new_tokens=5, **sure)) == one.text
    word = model.text(plain.tokens[1:3])
    told = model.generate("ab", max_new_tokens=12, bad_words=[word, list(plain.tokens[:1])])
    assert word not in told.text and plain.tokens[0] not in told.tokens
    once = model.generate("ab", max_new_tokens=40, no_repeat_ngram_size=1).tokens
    assert len({*once, *model.tokens("ab")}) == len(once) + 2


def test_special_tokens_are_shown_and_stop_where_asked(model) -> None:
    """The tokenizer's <begin>, 256, which a bias makes the likeliest; its <end>, 257, ends an answer."""
    begins, ends = {"logit_bias": {256: 1e6}}, {"logit_bias": {END: 1e6}}
    hidden, shown = (model.generate(PROMPT, max_new_tokens=3, special=special, **begins) for special in (False, True))
    assert hidden.tokens == shown.tokens == (256, 256, 256)
    assert (
        (hidden.text, shown.text) == ("", "<begin>" * 3) == (model.text([256] * 3), model.text([256] * 3, special=True))
    )
    assert "".join(model.stream(PROMPT, max_new_tokens=3, special=True, **begins)) == shown.text
    for special in (False, True):
        stopped = model.generate(PROMPT, max_new_tokens=3, stop="<begin>", special=special, **begins)
        assert (stopped.text, stopped.tokens, stopped.ended) == ("", (256,), "stop")
    stopped = model.generate(PROMPT, max_new_tokens=3, stop=["gin><be"], special=True, **begins)
    assert (stopped.text, stopped.ended) == ("<be", "stop")
    ended = model.generate(PROMPT, max_new_tokens=3, special=True, **ends)
    assert (ended.text, ended.tokens, ended.ended) == ("", (END,), "end")
    goes_on = model.generate(PROMPT, max_new_tokens=3, ignore_eos=True, **ends)
    assert goes_on.ended == "length" and END not in goes_on.tokens
    assert model.generate(PROMPT, max_new_tokens=3, stop=None).ended == "length"


def test_numbers_of_numpy_are_numbers(model) -> None:
    drawn = [
        model.generate(PROMPT, max_new_tokens=kind(5), temperature=near(0.75), top_k=kind(9), seed=kind(3)).tokens
        for kind, near in ((int, float), (np.int64, np.float32))
    ]
    assert drawn[0] == drawn[1]


def test_an_interrupted_call_leaves_what_was_there(artifact: Path, monkeypatch) -> None:
    """Between two chunks, and behind the last one: what follows goes on from the tokens that were held."""
    rng = np.random.default_rng(0)
    long, more = rng.integers(0, 256, 540), rng.integers(0, 256, 5)
    with LanguageModel.load(artifact, context=600, threads=2) as model:
        wanted = model.prefill([*PROMPT, *more])
        step, feed, calls = model._steps._step, model._steps.feed, itertools.count()

        def between(*asked):
            if next(calls) == 1:
                raise KeyboardInterrupt
            return step(*asked)

        def behind(*asked):
            feed(*asked)
            raise KeyboardInterrupt

        for name, broken in (("_step", between), ("feed", behind)):
            model.prefill(PROMPT)
            with monkeypatch.context() as patched:
                patched.setattr(model._steps, name, broken)
                with pytest.raises(KeyboardInterrupt):
                    model.extend(long)
            assert model.length == len(PROMPT)
            np.testing.assert_allclose(model.extend(more), wanted, atol=1e-5)
            assert model.length == len(PROMPT) + len(more) == model._steps.filled[0]


def test_a_context_is_called_too_short_only_where_it_can_be_longer(artifact: Path) -> None:
    with LanguageModel.load(artifact, context=8) as model:
        with pytest.raises(InputError, match=r"or load the model with a larger context, up to 4096 \(--context, con"):
            model.prefill([1] * 9)
    with LanguageModel.load(artifact, context=4096) as model:
        with pytest.raises(InputError, match="found 4097: shorten the prompt; the model's positions allow no more"):
            model.generate([1] * 4097)


def test_a_conversation_forgets_its_oldest_turns(artifact: Path, capsys, monkeypatch) -> None:
    asked, conversation = [], Text.conversation
    monkeypatch.setattr(Text, "conversation", lambda self, m, *rest: (asked.append(m), conversation(self, m, *rest))[1])
    lines = iter(["one", "two", "three", "four", "x" * 100, "five"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(lines, None) or (_ for _ in ()).throw(EOFError))
    words = ["--system", "sys", "--context", "100", "--max-new-tokens", "4", "--logit-bias", "120=1000"]  # "x"
    assert main(["run", str(artifact), "--interactive", *words]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "forgotten" in line][0].startswith(
        "[the context of 100 tokens is full: the oldest"
    )
    errors = [line for line in said if line.startswith("error: ")]
    assert len(errors) == 1 and "a prompt of at most 100 tokens" in errors[0] and "--context" in errors[0]
    roles = [m["role"] for m in asked[-1]]
    assert roles[0] == "system" and roles[1:] == ["user", "assistant"] * (len(roles) // 2 - 1) + ["user"]
    assert asked[-1][-1]["content"] == "five" and asked[-1][1]["content"] != "one"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.generate(""), "found an empty prompt"),
        (lambda m: m.generate("a", tools=[TOOL]), "expected messages beside tools and template, found a prompt"),
        (lambda m: m.generate([]), "found an empty prompt"),
        (lambda m: m.prefill([]), "at least one token, found none"),
        (lambda m: m.generate([1] * 49), "at most 48 tokens, which the context holds, found 49"),
        (lambda m: m.prefill([1] * 49), "at most 48 more tokens in a context of 48, found 49"),
        (lambda m: m.decode(258), "token ids from 0 to 257, found 258"),
        (lambda m: m.decode(-1), "token ids from 0 to 257, found -1"),
        (lambda m: m.prefill([0.5]), "a list of token ids"),
        (lambda m: m.generate("a", max_new_tokens=0), "max_new_tokens of at least 1, found 0"),
        (lambda m: m.generate("a", top_p=0.0), "top_p above 0 and at most 1, found 0.0"),
        (lambda m: m.generate("a", temperature=-1.0), "temperature of 0 or more"),
        (lambda m: m.generate("a", temperature=float("nan")), "temperature of 0 or more"),
        (lambda m: m.generate("a", top_k=-1), "top_k as a whole number of 0 or more, found -1"),
        (lambda m: m.generate("a", max_new_tokens=2.5), "max_new_tokens of at least 1, found 2.5: pass a whole number"),
        (lambda m: m.generate("a", max_new_tokens="5"), "max_new_tokens of at least 1, found '5'"),
        (lambda m: m.generate("a", seed=-1), "seed as a whole number of 0 or more, found -1"),
        (lambda m: m.generate("a", seed=1.5), "seed as a whole number of 0 or more, found 1.5"),
        (lambda m: m.generate("a", logprobs=2.5), "logprobs from 0 to 258, found 2.5"),
        (lambda m: m.generate("a", logprobs=True), "logprobs from 0 to 258, found True"),
        (lambda m: m.generate("a", min_new_tokens=-1), "min_new_tokens from 0 to max_new_tokens, found -1"),
        (
            lambda m: m.generate("a", min_new_tokens=3, max_new_tokens=2),
            "min_new_tokens from 0 to max_new_to.* found 3",
        ),
        (lambda m: m.generate("a", typical_p=0.0), "typical_p above 0 and at most 1, found 0.0"),
        (lambda m: m.generate("a", no_repeat_ngram_size=1.5), "no_repeat_ngram_size as a whole number .* found 1.5"),
        (lambda m: m.generate("a", bad_words="no"), "bad_words as a list of texts, found 'no'"),
        (lambda m: m.generate("a", bad_words=[""]), "bad_words as texts of at least one character, .* found ''"),
        (lambda m: m.generate("a", bad_words=[[-1]]), "bad_words as texts .* found \\[-1\\]"),
        (lambda m: m.generate("a", bad_words=[[258]]), "token ids from 0 to 257 in bad_words, found 258"),
        (lambda m: m.generate("a", stop=5), "stop as a text or a list of texts, found 5"),
        (lambda m: m.generate("a", stop=b"e"), "stop as a text or a list of texts, found b'e'"),
        (lambda m: m.generate("a", repetition_penalty=1e-60), "repetition_penalty above 0, from 0.001 to 1000"),
        (lambda m: m.generate("a", presence_penalty=float("nan")), "presence_penalty from -1000 to 1000, found nan"),
        (lambda m: m.generate("a", logit_bias=[1]), "logit_bias as a number by token id"),
        (lambda m: m.generate("a", logit_bias={"a": 1}), "token ids in logit_bias, found 'a'"),
        (lambda m: m.generate("a", logit_bias={258: 1}), "token ids from 0 to 257 in logit_bias, found 258"),
        (
            lambda m: m.generate("a", logit_bias={1: float("inf")}),
            "numbers in logit_bias, or -inf for never, found inf",
        ),
        (lambda m: m.generate(np.array([[5, 6], [5, 6]])), "a list of token ids, found int64 of rank 2"),
        (lambda m: m.generate(b"hello"), "a prompt as text or token ids, found bytes"),
        (lambda m: m.prefill(b"hello"), "a list of token ids, found bytes"),
        (lambda m: m.generate_all("AB"), "a list of prompts, found one, 'AB': put it into a list"),
        (lambda m: m.generate_all([{"role": "user", "content": "a"}]), "prompts or conversations, found a message"),
        (lambda m: m.truncate(0.0), "expected a length from 0 to"),
        (lambda m: m.prefill([1], slot=0.0), "a slot from 0 to 0, found 0.0"),
        (lambda m: m.generate("a", repetition_penalty=0.0), "repetition_penalty above 0"),
        (lambda m: m.generate("a", logprobs=999), "logprobs from 0 to 258"),
        (lambda m: m.generate("a", stop=[""]), "stop strings of at least one character"),
        (lambda m: m.generate("\ud800"), "a prompt of Unicode text"),
        (lambda m: m.generate(), "found both or neither"),
        (lambda m: m.generate(messages=[{"role": "user"}]), "messages with role and content"),
        (lambda m: m.generate("a", max_tokens=3), "unknown option 'max_tokens': .* did you mean 'max_new_tokens'"),
        (lambda m: next(m.stream("a", temprature=1)), "did you mean 'temperature'"),
        (lambda m: m.generate_all(["a"], topk=3), "did you mean 'top_k'"),
        (lambda m: m.generate_all([[{"role": "user"}]]), "messages with role and content"),
        (lambda m: m.text([258]), "token ids from 0 to 257, found 258"),
        (lambda m: m.text([-1]), "token ids from 0 to 257, found -1"),
        (lambda m: m.truncate(49), "expected a length from 0 to"),
        (lambda m: m.extend([]), "at least one token, found none"),
        (lambda m: m.score([]), "at least one token, found none"),
        (lambda m: m.score([1] * 2049), "1 to 2048 tokens, which main takes of one text, found 2049"),
        (lambda m: m.score([258]), "token ids from 0 to 257, found 258"),
    ],
)
def test_what_cannot_be_meant_is_refused(model, ask, message: str) -> None:
    with pytest.raises((InputError, UsageError), match=message):
        ask(model)


def test_one_answer_at_a_time(model) -> None:
    stream = model.stream(PROMPT, max_new_tokens=20)
    next(stream)
    for ask in (lambda: next(model.stream("a")), lambda: model.generate("a"), lambda: model.decode(1)):
        with pytest.raises(UsageError, match="one answer at a time"):
            ask()
    stream.close()  # dropped half way: the next one works, and threads wait for their turn
    wanted = model.generate(PROMPT, max_new_tokens=5).tokens
    found: list[tuple[int, ...]] = []
    threads = [
        threading.Thread(target=lambda: found.append(model.generate(PROMPT, max_new_tokens=5).tokens)) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted, wanted]


@pytest.fixture
def several(artifact: Path):
    with LanguageModel.load(artifact, context=48, slots=3, threads=2) as loaded:
        yield loaded


def in_threads(model, *asks) -> list[object]:
    """What each gives or raises, called in a thread of its own; all of them wait before the first is answered."""

    def call(index: int) -> None:
        try:
            found[index] = asks[index]()
        except Exception as error:  # noqa: BLE001 - a thread's boundary: the test looks at it
            found[index] = error

    found: list[object] = [None] * len(asks)
    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(asks))]
    with model._together.alone():
        for thread in threads:
            thread.start()
        while sum(one.waits for one in model._together._asked) < len(asks) and all(t.is_alive() for t in threads):
            time.sleep(0.001)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def steps_of(model, monkeypatch) -> list[tuple[int, ...]]:
    """The slots of every step with several of them, as they are run."""
    seen: list[tuple[int, ...]] = []
    run = model._held.feed_together
    monkeypatch.setattr(model._held, "feed_together", lambda tokens: (seen.append(tuple(tokens)), run(tokens))[1])
    return seen


def test_threads_are_answered_together(model, several, monkeypatch) -> None:
    """More of them than slots, streams among them, each as alone; one that cannot be answered fails by itself."""
    prompts = [PROMPT, PROMPT[:3], [7], PROMPT[::-1], PROMPT[2:8]]
    alone = [model.generate(prompt, max_new_tokens=12) for prompt in prompts]
    drawn = model.generate([9, 8], max_new_tokens=9, temperature=1.5, seed=3)
    steps = steps_of(several, monkeypatch)
    *answers, full, text, sampled = in_threads(
        several,
        *(lambda p=prompt: several.generate(p, max_new_tokens=12) for prompt in prompts),
        lambda: several.generate([1] * 49),
        lambda: "".join(several.stream(PROMPT, max_new_tokens=12)),
        lambda: several.generate([9, 8], max_new_tokens=9, temperature=1.5, seed=3),
    )
    assert [(a.tokens, a.text, a.ended) for a in answers] == [(a.tokens, a.text, a.ended) for a in alone]
    assert isinstance(full, InputError) and text == alone[0].text and sampled.tokens == drawn.tokens
    assert max(map(len, steps)) == 3 and len(steps) < sum(len(a.tokens) - 1 for a in [*alone, alone[0], drawn])


def test_streams_that_rest_hold_up_no_one(model, several, monkeypatch) -> None:
    """Of one thread, more than slots, read in turns, left, dropped and interrupted; direct calls come between."""
    prompts = [PROMPT, PROMPT[:3], [7], PROMPT[::-1]]
    texts = [model.generate(prompt, max_new_tokens=20).text for prompt in prompts]
    steps = steps_of(several, monkeypatch)
    streams = [several.stream(prompt, max_new_tokens=20) for prompt in prompts]
    begun = [next(stream) for stream in streams]  # the fourth gets the slot of one that rests
    assert several.generate([3, 4], max_new_tokens=5).tokens == model.generate([3, 4], max_new_tokens=5).tokens
    assert len(max(steps, key=len)) == 3
    np.testing.assert_allclose(several.prefill(PROMPT[3:]), model.prefill(PROMPT[3:]), atol=1e-6)
    np.testing.assert_allclose(several.decode(5), model.decode(5), atol=1e-5)
    assert [piece + "".join(stream) for piece, stream in zip(begun, streams)] == texts

    left = several.stream(PROMPT, max_new_tokens=20)
    next(left)
    for number in range(5):
        dropped = several.stream([number], max_new_tokens=20)
        next(dropped)
        dropped.close()
    rest = in_threads(several, lambda: "".join(left), lambda: several.generate([7], max_new_tokens=20).text)
    assert texts[0].endswith(rest[0]) and rest[1] == texts[2]


def test_who_is_interrupted_leaves_the_others_their_answers(model, several, monkeypatch) -> None:
    """Ctrl-C in the thread that runs the steps; an error in a step of several is told to each."""
    wanted = "".join(model.stream(PROMPT, max_new_tokens=20))
    stream, feed = several.stream(PROMPT, max_new_tokens=20), several._held.feed_together
    first = next(stream)

    def fails(error: type[BaseException]):
        calls = iter(range(99))

        def step(tokens):
            found = feed(tokens)  # the caches have the token, the answer not
            if next(calls) == 2:
                raise error("cut")
            return found

        return step

    monkeypatch.setattr(several._held, "feed_together", fails(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        several.generate([7], max_new_tokens=20)
    assert first + "".join(stream) == wanted
    monkeypatch.setattr(several._held, "feed_together", fails(RuntimeError))
    with pytest.raises(RuntimeError, match="cut"):
        several.generate_all([PROMPT, [7]], max_new_tokens=20)
    assert several.generate(PROMPT, max_new_tokens=20).text == wanted


def test_a_fork_is_told_to_load_again(model) -> None:
    pid = fork()
    if pid == 0:
        try:
            model.decode(1)
        except EnvironmentProblem:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_loading_refuses_what_does_not_fit(artifact: Path, directory: Path, monkeypatch, tmp_path: Path) -> None:
    for context in (4097, 2.5):
        with pytest.raises(UsageError, match=f"from 1 to 4096, which the model's positions allow, found {context}"):
            LanguageModel.load(artifact, context=context)
    with pytest.raises(UsageError, match="expected a whole number of slots, found 2.0"):
        LanguageModel.load(artifact, slots=2.0)
    monkeypatch.setattr("halo_tvm.runtime.language.steps._free_bytes", lambda: 100)
    with pytest.raises(EnvironmentProblem, match="memory for caches of 1024 bytes, which a context of 8 takes"):
        LanguageModel.load(artifact, context=8)
    manifest = read_manifest(artifact)
    alone = replace(manifest, functions={"main": manifest.functions["main"]})
    with pytest.raises(UsageError, match="found main: compile it with --function prefill --function decode"):
        spec_of(artifact, alone)
    with pytest.raises(UsageError, match="compile the directory of a language model"):
        spec_of(artifact, replace(alone, language=None))
    assert import_model("gpt2").language == NO_TEXTS, "a built-in decoder goes on with ids"
    path = tmp_path / "main.halo"
    with pytest.raises(UsageError, match="unknown function 'decoed'"):
        compile_model(CompileConfig(model=str(directory), output=str(path), function=("decoed",)))


def test_the_command_line_answers(artifact: Path, capsys, monkeypatch) -> None:
    assert main(["run", str(artifact), "--prompt", "abc", "--max-new-tokens", "6", "--context", "40"]) == 0
    said = capsys.readouterr()
    assert said.out.endswith("\n") and "ended by" in said.err and "3 tokens read" in said.err
    lines = iter(["hi", " ", "go on"])
    steps = itertools.count()

    def fed(self: Held, tokens: list[int], slot: int) -> np.ndarray:
        if next(steps) == 2:  # Ctrl-C at the third step of the first answer
            raise KeyboardInterrupt
        return whole(self, tokens, slot)

    whole = Held.feed
    monkeypatch.setattr(Held, "feed", fed)
    monkeypatch.setattr("builtins.input", lambda _prompt: next(lines, None) or (_ for _ in ()).throw(EOFError))
    assert main(["run", str(artifact), "--interactive", "--max-new-tokens", "3"]) == 0
    first, second = capsys.readouterr().err.splitlines()[-2:]  # the answer ends, the chat goes on with what is new
    assert first == "[interrupted]" and "ended by" in second and "more were kept" in second
    said = []
    monkeypatch.setattr(Text, "conversation", lambda _self, *asked: said.append(asked) or [1])
    lines = iter(["hi"])
    words = ["--system", "be short", "--template", "think=false", "--template", "date=a, b", "--stop", "a,b"]
    assert main(["run", str(artifact), "--interactive", "--max-new-tokens", "1", *words]) == 0
    ((messages, tools, template),) = said
    assert [m["content"] for m in messages[:2]] == ["be short", "hi"] and tools is None
    assert template == {"think": False, "date": "a, b"}
    words = ["--prompt", "hello", "--chat", "--system", "be brief", "--template", "think=true"]
    assert main(["run", str(artifact), "--max-new-tokens", "1", *words]) == 0
    messages, tools, template = said[-1]
    assert [m["content"] for m in messages] == ["be brief", "hello"] and template == {"think": True}
    capsys.readouterr()
    for words, message in (
        (["--interactive", "--chat"], "expected --chat beside --prompt, found it beside --interactive"),
        (
            ["--prompt", "a", "--system", "b"],
            "expected --system beside --interactive or --chat, found it beside --prompt",
        ),
        (["--prompt", "a", "--shape", "batch=2"], "expected --shape without --prompt, found it beside --prompt"),
        (["--interactive", "--translate"], "expected --translate beside --audio, found it beside --interactive"),
        (
            ["--temperature", "0.7"],
            "expected --temperature beside --prompt, --interactive or --audio, found it alone",
        ),
        (["--interactive", "--template", "think"], "expected NAME=VALUE as --template, found 'think'"),
        (["--prompt", "a", "--logit-bias", "5"], "expected ID=NUMBER as --logit-bias, found '5'"),
    ):
        assert main(["run", str(artifact), *words]) == 1
        assert message in capsys.readouterr().err
    steps = itertools.count(2)  # Ctrl-C at the first step
    assert main(["run", str(artifact), "--prompt", "a"]) == 130
    assert capsys.readouterr().err == "halo-tvm: interrupted\n"
    assert main(["run", str(artifact), "--prompt", "a", "--temperature", "0.7", "--top-p", "0.9"]) == 0
    capsys.readouterr()
    words = "--max-new-tokens 2 --special --ignore-eos --logit-bias 256=1e6,257=2e6 --frequency-penalty 0.1".split()
    assert main(["run", str(artifact), "--prompt", "a", *words]) == 0
    assert capsys.readouterr().out == "<begin><begin>\n"
    assert main(["run", str(artifact), "--prompt", "a", "--function", "decode"]) == 1
    assert "--function decode without --prompt" in capsys.readouterr().err
    words = ["--function", "decode", "--shape", "capacity=32"]
    assert main(["run", str(artifact), *words]) == 0
    assert "logits" in capsys.readouterr().out
    assert main(["profile", str(artifact), *words, "--rounds", "1", "--no-measure", "--threads", "2"]) == 0
    shown = capsys.readouterr().out
    assert ": decode" in shown and "append_heads" in shown


@pytest.mark.slow
def test_tokens_are_timed_in_the_words_of_llama_bench(artifact: Path, capsys, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    words = ["bench", str(artifact), *"-p 5,9 -n 3 -d 0,7 -t 1,2 -r 2 --json".split(), str(file)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    found = from_json(json.loads(file.read_text()))
    names = ["pp5", "pp9", "tg3", "pp5 @ d7", "pp9 @ d7", "tg3 @ d7"]
    assert [(t.threads, t.test) for t in found.tests] == [(n, name) for n in (1, 2) for name in names]
    for test in found.tests:
        rates = [(test.prompt + test.generated) / s for s in test.seconds]
        assert len(rates) == 2 and test.tokens_per_s == pytest.approx(np.mean(rates)) and f" {test.test} " in shown
    for more, message in (
        (["-p", "5", "--shape", "capacity=9"], "expected -p and -n without --shape"),
        (["-p", "5", "--vs", "onnxruntime"], "unknown engine that speaks 'onnxruntime'"),
        (["-p", "5", "--vs", "llama-cpp"], "a peer needs the original directory"),
        (["-d", "7"], "expected -p or -n beside -d and -t"),
        (["-n", "x"], "--n-gen must be a number from 1 on, but is 'x'"),
        (["-p", "4000", "-d", "97"], "a context from 1 to 4096, which the model's positions allow, found 4097"),
    ):
        assert main(["bench", str(artifact), *more]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_engines_speak_in_turns(artifact: Path, directory: Path, capsys, monkeypatch, tmp_path: Path) -> None:
    """Each in its own process on a file of the same weights; what fails is told, and ends nobody else's part."""
    speaker = Path(__file__).parents[1] / "peers" / "fake_speaker.py"
    behaviour = {"llama-cpp": "plain", "llama-cpp-q8_0": "breaks"}

    def command(module: str) -> list[str]:
        if module == "llama_cpp":
            return [sys.executable, str(speaker), behaviour.popitem()[1]]
        return engine_command(module)

    monkeypatch.setattr("halo_tvm.peers.tokens.engine_command", command)
    words = ["bench", str(artifact), "--reference", str(directory), "--cache", str(tmp_path / "kept")]
    words += "-p 5 -n 3 -d 0,7 -t 1 -r 2 --json".split()
    file = tmp_path / "tokens.json"
    assert main([*words, str(file), "--vs", "llama-cpp-q8_0,llama-cpp"]) == 0
    shown = capsys.readouterr().out
    found = from_json(json.loads(file.read_text()))
    broken, plain = sorted(found.peers, key=lambda peer: len(peer.seconds))
    assert "cannot read" in broken.failure and broken.engine in shown and not broken.seconds
    assert [len(seconds) for seconds in plain.seconds] == [2] * 4 and plain.note == "GGUF"
    assert [len(test.read_seconds) for test in found.tests] == [0, 2, 0, 2]
    assert found.divergence < 1e-6 and " % " in shown
    assert sorted(f.name for f in (tmp_path / "kept").rglob("*.gguf")) == ["F32.gguf", "Q8_0.gguf"]
    behaviour["llama-cpp"] = "missing"
    assert main([*words, str(file), "--vs", "llama-cpp"]) == 5
    assert "pip install llama-cpp-python" in capsys.readouterr().err


# ------------------------------------------------------------------ the parts


def test_divergence_and_perplexity_are_those_of_the_whole_distributions() -> None:
    """Where 64 logits are all there are; beyond, a passage's divergence is no more than that."""
    rng = np.random.default_rng(0)
    for vocabulary in (50, 300):
        p, q = (rng.standard_normal((2, 9, vocabulary)).astype(np.float32) * 4 for _ in "pq")
        q = p + 0.1 * q
        ids = rng.integers(0, vocabulary, (2, 9))
        kept = [_kept(row, own) for row, own in zip(p, ids)]
        text = text_of({"text.ids": ids.astype(np.int32), **{k: np.stack([r[k] for r in kept]) for k in kept[0]}})
        found = compare_text(lambda part: q[(part[:, None] == ids).all(-1).argmax(1)], text, 1, 0.5)
        logs = [x - np.log(np.exp(x.astype(np.float64)).sum(-1, keepdims=True)) for x in (p, q)]
        wanted = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean()
        assert found.divergence == pytest.approx(wanted, rel=1e-4 if vocabulary == 50 else 0.3)
        assert found.divergence <= wanted * 1.0001 and found.passed == (wanted <= 0.5)
        following = [np.take_along_axis(x[:, :-1], ids[:, 1:, None], 2).mean() for x in logs]
        assert found.source_perplexity == pytest.approx(np.exp(-following[0]), rel=1e-4)
        assert found.perplexity == pytest.approx(np.exp(-following[1]), rel=1e-4)
        assert found.top1 == (p.argmax(-1) == q.argmax(-1)).mean()
    with pytest.raises(ValueError, match="text.logsum is missing beside text.ids"):
        text_of({"text.ids": ids})


def test_pieces_hold_back_half_characters_and_the_beginning_of_a_stop() -> None:
    class Bytes:
        def decoded(self, ids):
            return bytes(ids).decode("utf-8", errors="replace")

    whole = "aé€😀 END bcd"
    pieces = Pieces(Bytes(), ())
    parts = [pieces.add(b) for b in (whole * 9).encode()]
    assert "".join(parts) + pieces.rest() == whole * 9 and not any("\ufffd" in part for part in parts)
    pieces = Pieces(Bytes(), ("END!", "END b"))
    shown = list(itertools.takewhile(lambda _part: not pieces.stopped, map(pieces.add, whole.encode())))
    assert pieces.stopped and "".join(shown) == "aé€😀 " and pieces.rest() == ""
    pieces = Pieces(Bytes(), ("END",))
    assert pieces.add(ord("E")) == "" and pieces.rest() == "E"
    pieces = Pieces(Bytes(), ())
    assert pieces.add(0xE2) == "" and pieces.rest() == "\ufffd"


def test_runs_of_bytes_stay_characters() -> None:
    """Tokenizers with byte fallback read a run of bytes as one text, or none of it."""

    class Fallback:
        def decoded(self, ids):
            runs = itertools.groupby(ids, lambda byte: byte >= 128)
            return "".join(self.read(bytes(run), far) for far, run in runs)

        def read(self, run: bytes, far: bool) -> str:
            try:
                return run.decode("utf-8")
            except UnicodeDecodeError:
                return "\ufffd" * len(run)

    for whole in ("😀" * 30, "é日😀" * 20 + " end", "日本語" * 9 + "a😀"):
        pieces = Pieces(Fallback(), ("never",))
        assert "".join(map(pieces.add, whole.encode())) + pieces.rest() == whole
    pieces = Pieces(Fallback(), ())
    broken = ["".join(map(pieces.add, "é😀".encode() + b"\xf0\x9f")), pieces.rest()]
    assert broken == ["é😀", "\ufffd\ufffd"]
    pieces = Pieces(Fallback(), ())
    assert "".join(map(pieces.add, "é😀".encode() + b"\xf0a b")) == "é😀\ufffda b"


def test_texts_without_a_tokenizer_or_with_one_of_more_tokens_than_the_head(directory: Path, tmp_path: Path) -> None:
    without = Text(LanguageSpec(context=8, vocabulary=258))
    assert without.decoded([65, 66]) == ""
    with pytest.raises(
        UsageError, match="expected token ids, found text, but the model was compiled from a directory wi"
    ):
        without.tokens("a")
    with pytest.raises(UsageError, match="expected a model with a tokenizer"):
        without.of([65, 66])
    with pytest.raises(UsageError, match="the model has no chat template: pass a prompt"):
        without.conversation([{"role": "user", "content": "a"}])
    spec = LanguageSpec(context=8, vocabulary=257, tokenizer="tokenizer.json")
    with (directory / "tokenizer.json").open("rb") as file:
        small = Text(spec, file)
    assert max(small.tokens("abc<begin>")) == 256
    with pytest.raises(
        InputError, match="expected tokens below 257, which the model has, found 257: its tokenizer has"
    ):
        small.tokens("abc<end>")
    (tmp_path / "tokenizer.json").write_text("{}")
    with (tmp_path / "tokenizer.json").open("rb") as file, pytest.raises(ArtifactCorrupt, match="expected a tokenizer"):
        Text(spec, file).tokens("a")


def test_truncation_and_padding_of_training_change_no_prompt(directory: Path, tmp_path: Path) -> None:
    """Fine-tuned models often have them in tokenizer.json."""
    plain = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    plain.enable_truncation(max_length=4)
    plain.enable_padding(length=4096)
    plain.save(str(tmp_path / "tokenizer.json"))
    with (tmp_path / "tokenizer.json").open("rb") as file:
        assert len(Text(LanguageSpec(context=8, vocabulary=258), file).tokens("abcdefgh")) == 8
    model, text = import_model(str(directory)), tmp_path / "text.txt"
    text.write_text("Call me Ishmael. " * 40)
    cut = replace(model, files={"tokenizer.json": tmp_path / "tokenizer.json"})
    wanted, found = (passage_of(m, str(text), "--calibrate").ids for m in (model, cut))
    np.testing.assert_array_equal(found, wanted)


def test_samplers_are_those_of_transformers() -> None:
    """The candidates that are left, and their shares, for every order of magnitude of a vocabulary."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.generation import logits_process as processors

    rng = np.random.default_rng(0)
    for size, options in (
        (50, {"temperature": 0.7, "top_k": 5}),
        (2000, {"temperature": 1.5, "top_p": 0.9}),
        (2000, {"top_p": 0.3, "min_p": 0.2}),
        (300, {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.3}),
    ):
        logits = rng.standard_normal(size).astype(np.float32) * 3
        seen = [1, 2, 3]
        steps = [processors.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"])] if len(options) > 4 else []
        for name, kind in (("temperature", "Temperature"), ("top_k", "TopK"), ("top_p", "TopP"), ("min_p", "MinP")):
            if name in options:
                steps.append(getattr(processors, f"{kind}LogitsWarper")(options[name]))
        wanted = transformers.LogitsProcessorList(steps)(torch.tensor([seen]), torch.from_numpy(logits)[None])
        shares = wanted.softmax(-1)[0].numpy()
        sampler = Sampler(Sampling(**options, seed=3), seen)
        drawn = []
        for _ in range(4000):
            sampler._seen = set(seen) if sampler._seen is not None else None
            drawn.append(sampler.choose(logits))
        counts = np.bincount(drawn, minlength=size) / len(drawn)
        assert not counts[shares == 0].any()
        assert np.abs(counts - shares).max() < 0.04
    token = int(logits.argmax())
    own, top = log_probabilities(logits, token, 3)
    assert top[0] == (token, own) and own == pytest.approx(torch.from_numpy(logits).log_softmax(-1)[token].item())
    assert Sampler(Sampling(temperature=0, top_k=5), []).choose(logits) == token
    with pytest.raises(InputError, match="expected logits to choose a token from, found nan"):
        Sampler(Sampling(), []).choose(np.full(5, np.nan, np.float32))


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 'a' * 1000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'|center(1000000000) }}",
        "{{ 9 ** 999999999 }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages|tojson(indent=1000000) }}",
        "{% for m in messages %}",
        "{{ messages[7].content.x }}",
    ],
)
@pytest.mark.sampled(4)
def test_a_hostile_template_does_nothing(template: str) -> None:
    with pytest.raises(UnsupportedModel, match="expected a chat template that renders the messages"):
        render(template, [{"role": "user", "content": "a"}], {})


def test_templates_say_what_they_refuse_and_need(monkeypatch) -> None:
    messages = [{"role": "user", "content": "é"}]
    assert render("{{ bos_token }}{{ messages|tojson }}", messages, {"bos_token": "<s>"}).startswith('<s>[{"role": "us')
    with pytest.raises(UsageError, match="refuses this conversation \\(roles must alternate\\)"):
        render("{{ raise_exception('roles must alternate') }}", messages, {})
    monkeypatch.setitem(__import__("sys").modules, "jinja2.sandbox", None)
    with pytest.raises(MissingPackage, match=r"pip install 'halo_tvm\[lm\]'"):
        render("", messages, {})


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"b": 1, "a": "é"}}}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{% if tools is not none %}{{ tools|length }}{% else %}none{% endif %}", ("1", "none")),
        ("{% if tools %}{{ tools[0]|tojson(ensure_ascii=False, separators=(',', ':')) }}{% endif %}", (None, "")),
        ("{% if documents is not none %}{{ documents[0] }}{% endif %}{{ thinks }}", ("no", "")),
        ("{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x }}", ("q", "q")),
        (
            "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].name }}{% else %}{{ m.content }}{% endif %}"
            "{% endfor %}",
            ("qweatherrain", "q"),
        ),
    ],
)
def test_templates_read_tools_and_options(template: str, wanted: tuple[str | None, str]) -> None:
    """As transformers renders them; what is not given is none."""
    ask = [{"role": "user", "content": "q"}]
    called = [{"role": "assistant", "tool_calls": [{"name": "weather"}]}, {"role": "tool", "content": "rain"}]
    rendering = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    for messages, tools, options, text in (
        ([*ask, *called], [TOOL], {"thinks": "no"}, wanted[0]),
        (ask, None, {}, wanted[1]),
    ):
        found = render(template, messages, {}, tools, options)
        given = {"tools": tools, "chat_template": template, "add_generation_prompt": True, **options}
        assert [found] == rendering([messages], **given)[0] and text in (None, found)


def test_tools_have_a_template_of_their_own() -> None:
    spec = LanguageSpec(9, 9, chat_template="plain", tool_template="{{ tools[0].function.name }}{{ mood }}")
    said = []
    text = Text(spec)
    text.tokens = lambda prompt, *, special: said.append(prompt) or []
    text.conversation([{"role": "user", "content": ""}])
    text.conversation([{"role": "user", "content": ""}], [TOOL], {"mood": "!"})
    assert said == ["plain", "weather!"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tools": TOOL}, "expected tools as a list of JSON objects, .* found {'type'"),
        ({"tools": [print]}, "expected tools as a list of JSON objects"),
        (
            {"options": {"messages": []}},
            "expected options of the chat template beside messages and tools, found messages",
        ),
        ({"messages": [{"role": "assistant"}]}, "expected messages with role and content"),
    ],
)
def test_wrong_tools_are_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        render("", **{"messages": [{"role": "user", "content": ""}], "words": {}, **asked})


PARTS = "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
FORMS = {
    "prints": "[{{ m.content|trim }}]",
    "walks": f"[{PARTS}]",
    "reads both": "{% if m.content is string %}'{{ m.content }}'{% else %}[" + PARTS + "]{% endif %}",
    "prints the first": "[{% if loop.first %}{{ m.content|trim }}{% else %}" + PARTS + "{% endif %}]",
}


@pytest.mark.parametrize(
    ("form", "text", "parts", "mixed"),
    [
        ("prints", "[a][b]", "[a][b\nc]", "[a][b\nc]"),
        ("walks", "[a][b]", "[a][bc]", "[a][bc]"),
        ("reads both", "'a''b'", "[a][bc]", "'a'[bc]"),
        ("prints the first", "[a][b]", "[a][bc]", "[a][bc]"),
    ],
)
def test_a_template_gets_texts_or_parts_as_it_reads_them(form: str, text: str, parts: str, mixed: str) -> None:
    template = "{% for m in messages %}" + FORMS[form] + "{% endfor %}"
    first, last = [{"type": "text", "text": "a"}], [{"type": "text", "text": t} for t in "bc"]
    for contents, wanted in ((("a", "b"), text), ((first, last), parts), (("a", last), mixed)):
        messages = [{"role": role, "content": content} for role, content in zip(("system", "user"), contents)]
        assert render(template, messages, {}) == wanted
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(UsageError, match="parts of messages like .*found 'image_url': the model reads text alone"):
        render(template, image, {})


def test_the_example_of_the_documentation_runs(artifact: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    page = (Path(__file__).parents[2] / "docs" / "language_models.md").read_text(encoding="utf-8")
    (tmp_path / "smollm2.halo").symlink_to(artifact)
    monkeypatch.chdir(tmp_path)
    exec(page.split("```python\n")[1].split("```")[0], {})
    assert "tokens of the prompt were in the caches already" in capsys.readouterr().out
