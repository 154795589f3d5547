"""T5 from a directory that transformers wrote: the same numbers as transformers, compiled and evaluated in float64."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint

import halo_tvm
from halo_tvm import CompileConfig, LanguageModel, compile_model
from halo_tvm.artifact import read_manifest
from halo_tvm.cli import main
from halo_tvm.compilation import Compilation
from halo_tvm.entry_points import apart_bytes, functions_of
from halo_tvm.errors import InputError, UnsupportedModel, UsageError
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate
from halo_tvm.models._t5 import bucket
from halo_tvm.original import import_original
from halo_tvm.phases import lower

tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 131,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 24,
}
KINDS = {
    "t5": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "t5-1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_heads": 3},
    "mt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "umt5": {"feed_forward_proj": "gated-gelu"},
}
LENGTHS = range(1, 41)


def write(directory: Path, kind: str, **changes: object) -> transformers.PreTrainedModel:
    """A small seeded model of transformers, saved to `directory`; every weight is of a size that shows."""
    torch.manual_seed(0)
    family = {"mt5": "MT5", "umt5": "UMT5"}.get(kind, "T5")
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **KINDS[kind], **changes}, dropout_rate=0.0)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    if kind not in ("t5", "umt5"):
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    for name, tensor in model.named_parameters():
        if "layer_norm" in name or "relative" in name:
            tensor.data += torch.randn_like(tensor) * 0.5
    model.save_pretrained(directory)
    model.config.name_or_path = str(directory)
    return model


@pytest.fixture(scope="module", params=sorted(KINDS))
def original(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    return write(directory, request.param), directory


@pytest.fixture(scope="module", params=["t5-1.1", pytest.param("t5", marks=pytest.mark.sweep)])
def whole(request, tmp_path_factory):
    """(model of transformers, the artifact made of its directory, which has a tokenizer)"""
    directory = tmp_path_factory.mktemp(request.param)
    model = write(directory, request.param)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(131)}, unk_token="w2"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    end = tokenizers.processors.TemplateProcessing(single="$A w1", special_tokens=[("w1", 1)])
    tokenizer.post_processor = end
    tokenizer.save(str(directory / "tokenizer.json"))
    output = tmp_path_factory.mktemp("made") / "x.halo"
    compile_model(CompileConfig(str(directory), output=str(output), records=False))
    return model, output


@pytest.fixture(scope="module")
def parts(whole, tmp_path_factory):
    """(model of transformers, cross, decoder that returns its state), the last two loaded."""
    model, path = whole
    directory, output = model.config.name_or_path, tmp_path_factory.mktemp("made") / "decoder.halo"
    compile_model(CompileConfig(f"{directory}:decoder", output=str(output), records=False))
    return model, halo_tvm.load(path, function="cross"), halo_tvm.load(output)


def tokens(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(1, 131, (batch, length))


def padding(batch: int, length: int) -> np.ndarray:
    """Ones, but zeros at the end of every row behind the first."""
    mask = np.ones((batch, length), np.int64)
    for row in range(1, batch):
        mask[row, max(1, length - 2 * row) :] = 0
    return mask


def encoded(model, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.encoder(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state.numpy()


def decoded(model, ids: np.ndarray, states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Logits of all positions at once."""
    with torch.no_grad():
        output = model(
            encoder_outputs=(torch.from_numpy(states),),
            attention_mask=torch.from_numpy(mask),
            decoder_input_ids=torch.from_numpy(ids),
            use_cache=False,
        )
    return output.logits.numpy()


def crossed(cross, states: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip((t.name for t in cross.output_specs), cross(states), strict=True))


def close(found: np.ndarray, wanted: np.ndarray, visible: np.ndarray | None = None) -> None:
    if visible is not None:  # what padding computes is nobody's business
        found, wanted = found[visible != 0], wanted[visible != 0]
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


@pytest.mark.slow
def test_encoder_of_every_length_equals_transformers(whole) -> None:
    model, path = whole
    encoder = halo_tvm.load(path, function="encode")
    for length in LENGTHS:
        ids, mask = tokens(3, length), padding(3, length)
        close(encoder(input_ids=ids, attention_mask=mask), encoded(model, ids, mask), mask)
    ids = tokens(1, 7)
    close(encoder(ids), encoded(model, ids, np.ones_like(ids)))


def apart(directory: Path, precision: str) -> int:
    """Bytes that the functions of a model store beside those of main."""
    model, how = import_model(str(directory)), Compilation.of(CompileConfig("model", precision=precision))
    functions = functions_of(model, (), gpu=False, caches=how.caches)
    assert len(functions) > 2
    return apart_bytes({name: lower(function, how)[0] for name, function in functions.items()}, model.params)


@pytest.mark.slow
def test_every_precision_stores_a_weight_once(tmp_path: Path) -> None:
    """The encoder's table is the head of main and decode; main reads what steps read, which are quantised in groups."""
    write(tmp_path / "t5", "t5")
    write_checkpoint(tmp_path / "llama", "llama", num_hidden_layers=1)
    for directory, precision in (("t5", "fp32"), ("t5", "bf16"), ("t5", "int8"), ("t5", "int4"), ("llama", "int8")):
        assert apart(tmp_path / directory, precision) == 0, (directory, precision)


@pytest.mark.slow
def test_chained_steps_equal_decoding_at_once(parts) -> None:
    """Forty tokens one by one, the module keeping keys and values; two sequences, the second one's text padded."""
    model, cross, decoder = parts
    ids, source = tokens(2, 40), tokens(2, 11)
    mask = padding(2, 11)
    states = encoded(model, source, mask)
    wanted = decoded(model, ids, states, mask)
    given = crossed(cross, states)
    for _ in range(2):  # forgetting the first text brings the same numbers again
        decoder.reset_state()
        for i in range(40):
            close(decoder(input_ids=ids[:, i : i + 1], attention_mask=mask, **given), wanted[:, i : i + 1])


@pytest.mark.slow
def test_steps_of_several_tokens_with_keys_and_values_passed(parts) -> None:
    model, cross, decoder = parts
    ids, source = tokens(2, 40), tokens(2, 9)
    states = encoded(model, source, np.ones_like(source))
    given, wanted = crossed(cross, states), decoded(model, ids, states, np.ones_like(source))
    state = {
        t.name: np.zeros((2, 0, *t.shape[2:]), np.float32) for t in decoder.input_specs if t.name in decoder.spec.state
    }
    names = [t.name for t in decoder.output_specs]
    start = 0
    for count in (1, 5, 13, 2, 19):
        outputs = dict(zip(names, decoder(input_ids=ids[:, start : start + count], **given, **state), strict=True))
        close(outputs.pop("logits"), wanted[:, start : start + count])
        state, start = outputs, start + count
    assert start == 40 and all(value.shape[1] == 40 for value in state.values())


def test_one_artifact_answers_a_text(whole, capsys) -> None:
    """Forty greedy steps behind caches, for texts of several lengths; text in and out, on the command line, too."""
    model, path = whole
    manifest = read_manifest(path)
    assert list(manifest.functions) == ["cross", "decode", "encode", "main"]
    assert manifest.reports["build"]["apart_bytes"] == 0  # one table of weights
    assert {row["output"] for row in manifest.validation["outputs"]} == {"logits", "decode.logits"}
    with LanguageModel.load(path, context=41, threads=2) as ours:
        for too_early in (lambda: ours.decode(0), lambda: ours.decode_together({0: 0})):
            with pytest.raises(UsageError, match="a text or sound that these tokens answer, found none yet"):
                too_early()
        for length in (1, 6, 33):
            text = tokens(1, length)
            states, mask = encoded(model, text, np.ones_like(text)), np.ones_like(text)
            found, said = [ours.prefill(text[0])], []
            for _ in range(40):
                said.append(int(found[-1].argmax()))
                found.append(ours.decode(said[-1]))
            wanted = decoded(model, np.array([[0, *said]]), states, mask)[0]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
            until = said.index(1) + 1 if 1 in said else 40
            answer = ours.generate(text[0], max_new_tokens=40)
            assert (list(answer.tokens), answer.kept_tokens) == (
                said[:until],
                length,
            )  # the same text is not read again
            ours.encode(text[0])
            np.testing.assert_allclose(ours.extend([0, *said[:3]]), wanted[3], rtol=0, atol=1e-4 * np.abs(wanted).max())
        answer = ours.generate("w5 w7 w9", max_new_tokens=4)
        assert (answer.prompt_tokens, answer.kept_tokens, ours.length) == (4, 0, len(answer.tokens))
        assert main(["run", str(path), "--prompt", "w5 w7 w9", "--max-new-tokens", "4"]) == 0
        assert capsys.readouterr().out.strip() == answer.text and answer.text.startswith("w")
        for ask, message in (
            (lambda: ours.generate([1] * 513), "a text of at most 512 tokens, which the encoder reads, found 513"),
            (lambda: ours.generate([131]), "token ids from 0 to 130, found 131"),
            (lambda: ours.generate([]), "found an empty prompt"),
            (lambda: ours.score([1]), "a model that answers a text: load its function main"),
            (lambda: ours.generate(messages=[{"role": "user", "content": "a"}]), "the model has no chat template"),
        ):
            with pytest.raises((InputError, UsageError), match=message):
                ask()
    assert main(["bench", str(path), *"-p 7 -n 3 -d 0,5 -r 1 -t 1".split()]) == 0  # the context is that of the answer
    shown = capsys.readouterr().out
    assert all(f" {test} " in shown for test in ("pp7", "tg3", "pp7 @ d5", "tg3 @ d5"))
    with pytest.raises(UsageError, match="expected 1 to 1 slots"):
        LanguageModel.load(path, slots=2)


def test_the_float64_reference_equals_transformers(original) -> None:
    model, directory = original
    ids, mask = tokens(2, 29), padding(2, 29)
    answer = tokens(2, 13)
    given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": answer}
    found = evaluate(import_model(str(directory)), given)["logits"]
    states = encoded(model.double(), ids, mask)
    close(found, decoded(model, answer, states, mask))
    model.float()


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 24), (8, 20), (64, 300), (32, 17)])
@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_are_those_of_transformers(buckets: int, distance: int, both_ways: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    delta = np.arange(-2 * distance, 2 * distance)
    wanted = T5Attention._relative_position_bucket(torch.from_numpy(delta), both_ways, buckets, distance)
    np.testing.assert_array_equal(bucket(delta, buckets, distance, both_ways), wanted.numpy())
    if both_ways:  # the table ends where every bucket behind is the last one
        ends = bucket(np.array([-distance, -10 * distance, distance, 10 * distance]), buckets, distance, True)
        assert ends[0] == ends[1] and ends[2] == ends[3]


def test_positions_become_one_kernel_and_one_weight(original) -> None:
    """One bias for all layers, read by every attention; its table is made of the buckets while compiling."""
    family, directory = original
    model = import_model(f"{directory}:encoder")
    users = [b for b in model.mod["main"].body.blocks[0].bindings if "attention" in str(getattr(b.value, "op", ""))]
    alike = users[0].value.args[4].same_as(users[1].value.args[4])
    assert len(users) == 2 and alike == (family.config.model_type != "umt5")  # whose layers have one each


def test_parts_and_what_is_none(tmp_path: Path) -> None:
    write(tmp_path / "small", "t5")
    decoder = import_model(f"{tmp_path / 'small'}:decoder")
    assert decoder.name == "small-decoder" and decoder.source["part"] == "decoder"
    alone = import_model(f"{tmp_path / 'small'}:encoder")
    assert (alone.report["part"], alone.report["other_parts"]) == ("encoder", ["cross", "decoder"])
    assert list(import_model(str(tmp_path / "small")).entries) == ["encode", "cross", "decode"]
    assert CompileConfig(f"{tmp_path / 'small'}:decoder").artifact.name == "small-decoder.halo"
    assert import_original(decoder.source, tmp_path / "small").name == decoder.name
    with pytest.raises(UsageError, match="among cross, decoder, encoder, found 'head'"):
        import_model(f"{tmp_path / 'small'}:head")
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    only = {**config, "architectures": ["T5EncoderModel"]}
    (tmp_path / "small" / "config.json").write_text(json.dumps(only))
    assert import_model(str(tmp_path / "small")).report["part"] == "encoder"
    (tmp_path / "small" / "config.json").write_text(json.dumps({**config, "feed_forward_proj": "gated-tanh"}))
    with pytest.raises(UnsupportedModel, match="found 'gated-tanh'"):
        import_model(str(tmp_path / "small"))
    (tmp_path / "small" / "config.json").write_text(json.dumps({**config, "relative_attention_num_buckets": 7}))
    with pytest.raises(UnsupportedModel, match="7 buckets"):
        import_model(str(tmp_path / "small"))


@pytest.mark.parametrize(
    ("name", "table", "millions"),
    [
        ("t5-small", 32128 * 512, 60.5),
        ("t5-base", 32128 * 768, 222.9),
        ("flan-t5-small", 32128 * 512, 77.0),
        ("flan-t5-base", 32128 * 768, 247.6),
    ],
)
def test_the_parts_have_the_published_parameters(name: str, table: int, millions: float) -> None:
    """Together, with the table that encoder and decoder share counted once."""
    parts = [import_model(name + part).params.sources.values() for part in ("", "-cross", "-decoder")]
    total = sum(int(np.prod(source.shape)) for part in parts for source in part) - table
    assert round(total / 1e6, 1) == millions


def test_random_attention_is_not_flat() -> None:
    model = import_model("t5-small")
    x = np.random.default_rng(0).standard_normal((64, 512))
    name = "encoder.block.0.layer.0.SelfAttention.{}.weight"
    q, k = (x @ model.params.materialise(name.format(part)).T[:, :64] for part in "qk")
    assert 1 < (q @ k.T).std() < 4
