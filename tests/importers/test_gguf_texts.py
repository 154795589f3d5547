"""Tokenizers of GGUF files: how texts are cut, where they begin and end, and those that cannot be rebuilt."""

from __future__ import annotations

import numpy as np
import pytest

from halo_tvm.importers.gguf import _ends
from halo_tvm.importers.gguf._tokenizer import NoTokenizer, tokenizer_json

pytest.importorskip("gguf")
from gguf_files import TEXT, byte_level_texts


def test_a_byte_level_tokenizer_is_rebuilt() -> None:
    from tokenizers import Tokenizer

    metadata = byte_level_texts()
    tokenizer = Tokenizer.from_str(tokenizer_json(metadata))
    ids = tokenizer.encode(TEXT + "<|turn|>").ids
    assert ids[0] == 0 and ids[-1] == 2 and len(ids) < len(TEXT)
    assert tokenizer.decode(ids) == TEXT
    pieces = {
        pre: [
            piece
            for piece, _ in Tokenizer.from_str(
                tokenizer_json({**metadata, "tokenizer.ggml.pre": pre})
            ).pre_tokenizer.pre_tokenize_str("a 1234 isn'T")
        ]
        for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2", "falcon")
    }
    assert pieces == {
        "gpt-2": ["a", "\u01201234", "\u0120isn", "'", "T"],
        "smollm": ["a", "\u0120", "1", "2", "3", "4", "\u0120isn", "'", "T"],
        "llama-bpe": ["a", "\u0120", "123", "4", "\u0120isn", "'T"],
        "qwen2": ["a", "\u0120", "1", "2", "3", "4", "\u0120isn", "'T"],
        "falcon": ["a", "\u0120", "123", "4", "\u0120isn", "'", "T"],
    }


_CUT = "The fo\u0301o's 12345 \u4e2d\u6587abc \u306e\uac00\n\n  x+=don'T!! "


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        (
            "deepseek-llm",
            "The| fo|\u0301|o|'|s| |1|2|3|4|5| |\u4e2d\u6587|abc| |\u306e\uac00|\n|\n| | x|+=|don|'|T|!!| ",
        ),
        (
            "deepseek-coder",
            "The| fo|\u0301|o|'|s| |1|2|3|4|5| |\u4e2d\u6587|abc| |\u306e\uac00|\n|\n| | x|+=|don|'|T|!!| ",
        ),
        ("kimi-k2", "The| fo\u0301o's| |123|45| |\u4e2d\u6587|abc| \u306e\uac00|\n\n| | x|+=|don'T|!!| "),
        ("youtu", "The| fo\u0301o's| |1|2|3|4|5| |\u4e2d\u6587|abc| |\u306e|\uac00|\n\n| | x|+=|don'T|!!| "),
        ("exaone-moe", "The fo\u0301o|'s| |1|2|3|4|5| \u4e2d\u6587abc \u306e\uac00|\n\n| | x|+=|don|'T|!!| "),
        ("jais-2", "The| fo|\u0301o|'s| |123|45| \u4e2d\u6587abc| \u306e\uac00|\n\n| | x|+=|don|'T|!!| "),
        ("qwen35", "The| f\u00f3o|'s| |1|2|3|4|5| \u4e2d\u6587abc| \u306e\uac00|\n\n| | x|+=|don|'T|!!| "),
        ("default", "The| fo|\u0301|o|'|s| |123|45| \u4e2d\u6587abc| \u306e\uac00|\n\n | x|+=|don|'|T|!!| "),
    ],
)
def test_texts_are_cut_as_the_name_says(pre: str, pieces: str) -> None:
    from tokenizers import Tokenizer, decoders

    tokenizer = Tokenizer.from_str(tokenizer_json({**byte_level_texts(), "tokenizer.ggml.pre": pre}))
    text = _CUT if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(_CUT)
    found = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [decoders.ByteLevel().decode([piece]) for piece in found] == pieces.split("|")


@pytest.mark.parametrize(
    ("architecture", "pre"), [("mamba", "gpt-2"), ("mpt", "mpt"), ("starcoder", "starcoder"), ("llama", "default")]
)
def test_older_files_do_not_name_the_pre_tokenizer(architecture: str, pre: str) -> None:
    metadata = {**byte_level_texts(), "general.architecture": architecture}
    named = tokenizer_json({**metadata, "tokenizer.ggml.pre": pre})
    del metadata["tokenizer.ggml.pre"]
    assert tokenizer_json(metadata) == named


def test_gemma_4_has_its_merges_in_the_file() -> None:
    from tokenizers import Tokenizer

    texts = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", *(f"<0x{i:02X}>" for i in range(256)))
    texts += (*"\u2581abcd", "ab", "\u2581ab", "cd")
    kinds = np.array([3, 3, 3, 2, 4, *[6] * 256, *[1] * 8], np.int32)
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ("a b", "\u2581 ab", "c d"),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }
    tokenizer = Tokenizer.from_str(tokenizer_json(metadata))
    encoded = tokenizer.encode("ab abcd<|turn>\u20ac")
    assert encoded.tokens == ["<bos>", "ab", "\u2581ab", "cd", "<|turn>", "<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.decode(encoded.ids) == "ab abcd<|turn>\u20ac"


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False)])
def test_a_text_begins_with_a_token_where_llama_cpp_adds_it(pre: str, begins: bool) -> None:
    """Nothing says so, and some pre-tokenizers do; metadata goes before them."""
    from tokenizers import Tokenizer

    metadata = {**byte_level_texts(), "tokenizer.ggml.pre": pre}
    del metadata["tokenizer.ggml.add_bos_token"]
    for more, wanted in (({}, begins), ({"tokenizer.ggml.add_bos_token": False}, False)):
        ids = Tokenizer.from_str(tokenizer_json({**metadata, **more})).encode("The").ids
        assert (ids[0] == 0) == wanted


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (("<s>", "</s>", "<|end|>", "a"), [1, 2]),
        (("<|im_end|>", "</s>", "<|endoftext|>"), [1, 0, 2]),
        (("<|return|>", "</s>", "<|end|>", "<|call|>"), [1, 0, 3]),
        (("<|flush|>", "</s>", "<|end|>", "<|calls|>"), [1, 0, 3]),
        (("<|flush|>", "</s>", "<|end|>"), [1, 0, 2]),
    ],
)
def test_tokens_end_an_answer_by_their_text_too(tokens: tuple[str, ...], ends: list[int]) -> None:
    """As llama.cpp has it; <|end|> stands inside of answers where there are calls."""
    assert _ends({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 1}) == ends


def test_a_sentence_piece_tokenizer_is_rebuilt_from_scores() -> None:
    from tokenizers import Tokenizer

    texts = (
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *"\u2581abcd",
        "ab",
        "\u2581ab",
        "cd",
        "abcd",
    )
    kinds = np.array([2, 3, 3, *[6] * 256, *[1] * 9], np.int32)
    scores = np.array([0.0] * 259 + [-9.0] * 5 + [-1.0, -2.0, -3.0, -0.5], np.float32)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
    }
    tokenizer = Tokenizer.from_str(tokenizer_json(metadata))
    encoded = tokenizer.encode("ab abcd \u20ac")
    assert encoded.tokens == ["<s>", "\u2581ab", "\u2581ab", "cd", "\u2581", "<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.decode(encoded.ids) == "ab abcd \u20ac"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "unheard"}, "expected a pre-tokenizer among .* found 'unheard'"),
        ({"tokenizer.ggml.model": "rwkv"}, "of the kind gpt2 or llama, or gemma4, found 'rwkv'"),
        ({"tokenizer.ggml.tokens": 5}, "tokenizer.ggml.tokens as texts, found int"),
        ({"tokenizer.ggml.tokens": ("a", "a")}, "tokens of different texts"),
        ({"tokenizer.ggml.token_type": np.ones(3, np.float32)}, "token_type as .* integers"),
        ({"tokenizer.ggml.merges": ("nothing there",)}, "expected merges of two tokens into a third"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_says_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(NoTokenizer, match=message):
        tokenizer_json({**byte_level_texts(), **changes})
