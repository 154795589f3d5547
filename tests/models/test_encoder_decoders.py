"""Encoder-decoders in the manner of BART from directories that transformers wrote: the same numbers as transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from halo_tvm import CompileConfig, LanguageModel, compile_model
from halo_tvm.artifact import read_manifest
from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.importers import import_model
from halo_tvm.importers._language import language_of
from halo_tvm.importers._sentence_piece import marian_tokenizer
from halo_tvm.interpreter import evaluate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 131,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 64,
    "dropout": 0.0,
}
_MARIAN = {
    "pad_token_id": 130,
    "decoder_start_token_id": 130,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "bos_token_id": None,
    "scale_embedding": True,
    "activation_function": "swish",
}
KINDS = {
    "bart": ("BartForConditionalGeneration", {"decoder_attention_heads": 2}),
    "mbart": ("MBartForConditionalGeneration", {"decoder_start_token_id": 2, "tie_word_embeddings": False}),
    "pegasus": ("PegasusForConditionalGeneration", {"activation_function": "relu"}),
    "blenderbot": ("BlenderbotForConditionalGeneration", {"decoder_start_token_id": 1}),
    "blenderbot-small": ("BlenderbotSmallForConditionalGeneration", {"decoder_start_token_id": 1}),
    "plbart": ("PLBartForConditionalGeneration", {}),
    "marian": ("MarianMTModel", _MARIAN),
    "marian-two": (
        "MarianMTModel",
        {**_MARIAN, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 117, "pad_token_id": 116},
    ),
    "m2m_100": ("M2M100ForConditionalGeneration", {"scale_embedding": True}),
}


def write(directory: Path, kind: str) -> transformers.PreTrainedModel:
    """A small seeded model of transformers, saved to `directory`; every weight is of a size that shows."""
    torch.manual_seed(0)
    name, changes = KINDS[kind]
    made = getattr(transformers, name)
    model = made(made.config_class(**{**SMALL, **changes})).eval()
    for tensor in model.parameters():
        tensor.data += torch.randn_like(tensor) * (0.5 if tensor.ndim == 1 else 0.1)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    model.save_pretrained(directory)
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()


def expected(model: transformers.PreTrainedModel, text: np.ndarray, mask: np.ndarray, answer: np.ndarray) -> np.ndarray:
    given = {"input_ids": text, "attention_mask": mask, "decoder_input_ids": answer}
    with torch.no_grad():
        return model(**{name: torch.from_numpy(x) for name, x in given.items()}, use_cache=False).logits.numpy()


def tokens(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(4, 117, (batch, length))


@pytest.mark.parametrize("kind", KINDS)
def test_the_float64_reference_equals_transformers(kind: str, tmp_path: Path) -> None:
    model = write(tmp_path / kind, kind)
    text, answer, mask = tokens(2, 29), tokens(2, 13), np.ones((2, 29), np.int64)
    mask[1, 20:] = 0
    text[1, 20:] = model.config.pad_token_id
    imported = import_model(str(tmp_path / kind))
    found = evaluate(imported, {"input_ids": text, "attention_mask": mask, "decoder_input_ids": answer})["logits"]
    wanted = expected(model.double(), text, mask, answer)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    assert list(imported.entries) == ["encode", "cross", "decode"]


@pytest.mark.parametrize("kind", ["bart", pytest.param("m2m_100", marks=pytest.mark.sweep)])
def test_one_artifact_answers_a_text(kind: str, tmp_path: Path) -> None:
    """Twenty greedy steps behind caches, for texts of several lengths."""
    model = write(tmp_path / kind, kind)
    path = tmp_path / "x.halo"
    compile_model(CompileConfig(str(tmp_path / kind), output=str(path), records=False))
    manifest = read_manifest(path)
    assert manifest.reports["build"]["apart_bytes"] == 0
    assert {row["output"] for row in manifest.validation["outputs"]} == {"logits", "decode.logits"}
    with LanguageModel.load(path, context=40, threads=2) as ours:
        for length in (1, 6, 33):
            text = tokens(1, length)
            found, said = [ours.prefill(text[0])], [2]
            for _ in range(20):
                said.append(int(found[-1].argmax()))
                found.append(ours.decode(said[-1]))
            wanted = expected(model, text, np.ones_like(text), np.array([said]))[0]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
            with torch.no_grad():
                greedy = model.generate(torch.from_numpy(text), max_new_tokens=20, do_sample=False, num_beams=1)[0]
            until = [int(token) for token in greedy[1:]]
            assert list(ours.generate(text[0], max_new_tokens=20).tokens)[:19] == until[:19]  # the last one is forced


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mbart", "m2m_100"])
def test_a_translator_answers_in_the_language_that_is_asked(kind: str, tmp_path: Path) -> None:
    """As transformers with the first token of that language; of mBART it takes the place of the one in the files."""
    from tokenizers import AddedToken, Tokenizer, models

    codes = {"mbart": ("ro_RO", "fr_XX"), "m2m_100": ("ron_Latn", "__fr__")}[kind]
    model = write(tmp_path / kind, kind)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(115)}, unk_token="w3"))
    tokenizer.add_special_tokens([AddedToken(code, special=True) for code in (*codes, "<mask>")])
    tokenizer.save(str(tmp_path / kind / "tokenizer.json"))
    config = json.loads((tmp_path / kind / "config.json").read_text())
    config["decoder_start_token_id"] = 115 if kind == "mbart" else 2
    (tmp_path / kind / "config.json").write_text(json.dumps(config))
    (tmp_path / kind / "generation_config.json").unlink(missing_ok=True)
    path = tmp_path / "x.halo"
    compile_model(CompileConfig(str(tmp_path / kind), output=str(path), records=False))
    text = tokens(1, 9)
    with LanguageModel.load(path, context=40, threads=2) as ours:
        for name, token in ((codes[0], 115), (codes[1].strip("_"), 116), (None, 115)):
            start = [token] if kind == "mbart" else [2, token] if name else [2]
            said = ours.generate(text[0], max_new_tokens=8, language=name).tokens
            wanted = list(start)
            for _ in said:
                wanted.append(int(expected(model, text, np.ones_like(text), np.array([wanted]))[0, -1].argmax()))
            assert list(said) == wanted[len(start) :]
        with pytest.raises(UsageError, match="unknown language 'fr_XY': known are fr"):
            ours.generate(text[0], language="fr_XY")


def test_a_translator_whose_tokenizer_is_made_knows_no_languages(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (tmp_path / "merges.txt").write_text("a b\n")
    found, files = language_of(tmp_path, {"model_type": "mbart"}, answers=True)
    assert found["languages"] == {} and list(files) == ["tokenizer.json"]


def _train(folder: Path, name: str, lines: list[str]) -> list[str]:
    """Write a small model of SentencePiece; its pieces."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="trains the tokenizer that is read")
    prefix = str(folder / name)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=prefix, vocab_size=300, character_coverage=0.999, minloglevel=2
    )
    (folder / f"{name}.model").rename(folder / f"{name}.spm")
    made = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.spm")
    return [made.id_to_piece(i) for i in range(made.get_piece_size()) if not made.is_control(i)]


def test_the_tokenizer_of_a_translator_is_made_of_its_files(tmp_path: Path) -> None:
    """The same ids and texts as transformers' MarianTokenizer; what is no such file is refused."""
    from tokenizers import Tokenizer

    passage = Path(__file__).parents[2] / "halo_tvm" / "text_reference" / "passage.txt"
    lines = [line for line in passage.read_text(encoding="ascii").splitlines() if line.strip()]
    pieces = _train(tmp_path, "source", lines)
    pieces += _train(tmp_path, "target", [line.replace("the", "der").replace("ing", "ung") for line in lines])
    words = list(dict.fromkeys(["</s>", "<unk>", *pieces, ">>fra<<", "<pad>"]))
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    wanted, found = (
        transformers.MarianTokenizer.from_pretrained(tmp_path),
        Tokenizer.from_buffer(marian_tokenizer(tmp_path)),
    )
    for text in (
        *lines[:40],
        ">>fra<< Hello, the house.",
        "  two  spaces ",
        "\ufb01ne \u00bd \u2460",
        "\u201cx\u201d\ttab",
        "",
    ):
        ids = wanted(text)["input_ids"]
        assert found.encode(text).ids == ids, text
        if wanted.unk_token_id not in ids:
            assert found.decode(ids) == wanted.decode(ids, skip_special_tokens=True)
    whole = (tmp_path / "source.spm").read_bytes()
    for raw in (whole[:-7], b"\xff" * 40, b"", b"\x0a\x05ab"):
        (tmp_path / "source.spm").write_bytes(raw)
        with pytest.raises(UnsupportedModel, match=r"expected source.spm to be a"):
            marian_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 2}))
    with pytest.raises(UnsupportedModel, match=r"expected vocab.json to be ids from 0 on"):
        marian_tokenizer(tmp_path)
