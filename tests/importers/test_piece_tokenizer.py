"""tokenizer.model of SentencePiece gives the tokens that its own package does."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers._language import language_of
from halo_tvm.importers._piece_tokenizer import piece_tokenizer

tokenizers = pytest.importorskip("tokenizers")
PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
PIECES += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
PIECES += [("▁a", -1.0, 1), ("bb", -2.0, 1), ("ab", -3.0, 1), ("▁", -9.0, 1), ("a", -9.0, 1), ("b", -9.0, 1)]
IDS = {text: i for i, (text, _, _) in enumerate(PIECES)}


def message(*fields: tuple[int, int | bytes | float]) -> bytes:
    """A message of protocol buffers, of short fields."""
    raw = b""
    for number, value in fields:
        if isinstance(value, bytes):
            raw += bytes([number << 3 | 2, len(value)]) + value
        elif isinstance(value, float):
            raw += bytes([number << 3 | 5]) + struct.pack("<f", value)
        else:
            tag = number << 3
            raw += (bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])) + bytes([value])
    return raw


def write_model(folder: Path, kind: int = 2, suffix: int = 0, **normal: int) -> None:
    pieces = b"".join(message((1, message((1, t.encode()), (2, score), (3, k)))) for t, score, k in PIECES)
    about = message((2, message((3, kind), (24, suffix))))
    rules = message((3, message((3, normal.get("front", 1)), (4, normal.get("single", 0)))))
    (folder / "tokenizer.model").write_bytes(pieces + about + rules)


def tokenizer_of(folder: Path, about: dict[str, object]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(piece_tokenizer(folder, about).decode())


def test_pieces_merge_by_their_scores(tmp_path: Path) -> None:
    write_model(tmp_path)
    tokenizer = tokenizer_of(tmp_path, {"tokenizer_class": "LlamaTokenizer"})
    names = ["<s>", "▁a", "bb", "▁", "b"]  # bb before ab
    assert tokenizer.encode("abb b").ids == [IDS[name] for name in names]
    found = tokenizer.encode("😀</s>", add_special_tokens=False).ids
    assert found == [IDS["▁"], *(IDS[f"<0x{byte:02X}>"] for byte in "😀".encode()), IDS["</s>"]]
    assert tokenizer.decode(found) == "😀" and tokenizer.decode([IDS["▁a"], IDS["bb"]]) == "abb"
    plain = tokenizer_of(tmp_path, {"add_bos_token": False, "add_eos_token": True})
    assert plain.encode("b").ids == [IDS["▁"], IDS["b"], IDS["</s>"]]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<tool>": len(PIECES)}))
    assert tokenizer_of(tmp_path, {}).encode("<tool>b").ids[1] == len(PIECES)
    write_model(tmp_path, front=0, single=1)
    assert tokenizer_of(tmp_path, {}).encode("  b   b ").ids == [IDS[name] for name in ("<s>", "b", "▁", "b")]


def test_a_language_model_gets_it_where_no_json_lies(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    language, files = language_of(tmp_path, {"model_type": "llama"})
    assert language["tokenizer"] == "tokenizer.json"
    assert files["tokenizer.json"] == piece_tokenizer(tmp_path, {})


def test_other_tokenizers_have_other_ids(tmp_path: Path) -> None:
    assert piece_tokenizer(tmp_path, {}) is None
    write_model(tmp_path, kind=1)
    assert piece_tokenizer(tmp_path, {}) is None  # unigram
    write_model(tmp_path, suffix=1)
    assert piece_tokenizer(tmp_path, {}) is None
    write_model(tmp_path)
    assert piece_tokenizer(tmp_path, {"tokenizer_class": "ChatGLMTokenizer"}) is None
    raw = (tmp_path / "tokenizer.model").read_bytes()
    for broken in (raw[:-3], b"\x0b", b"\x0a\x03\x0a\x01\xff"):
        (tmp_path / "tokenizer.model").write_bytes(broken)
        with pytest.raises(UnsupportedModel, match="expected tokenizer.model to be a model of SentencePiece"):
            piece_tokenizer(tmp_path, {})


@pytest.mark.parametrize(
    "how",
    [
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"normalization_rule_name": "nmt_nfkc"},
        {"normalization_rule_name": "identity", "add_dummy_prefix": False, "user_defined_symbols": ["<tool>"]},
    ],
)
def test_ids_are_those_of_sentencepiece(how: dict[str, object], tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="trains the tokenizer that is read")
    passage = Path(__file__).parents[2] / "halo_tvm" / "text_reference" / "passage.txt"
    sentencepiece.SentencePieceTrainer.train(
        input=str(passage),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=900,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        minloglevel=2,
        **how,
    )
    made = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    tokenizer = tokenizer_of(tmp_path, {"add_bos_token": False})
    texts = ["Hello  two  spaces", "héllo 😀日本", "  lead", "1234 ﬁ Å", "a<tool>b", "\n\nx\ty", ""]
    for text in (*passage.read_text().split("\n\n")[:40], *texts):
        assert tokenizer.encode(text).ids == made.encode(text), text
        assert tokenizer.decode(made.encode(text)) == made.decode(made.encode(text)), text
