"""vocab.json and merges.txt without tokenizer.json: texts become the tokens that the package itself makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import write_checkpoint

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model

tokenizers = pytest.importorskip("tokenizers")
TEXTS = ("The cat's cat sat.\n\n  Two 12345 spaces  ", "naïve 日本 🙂", "", "a</s>b", "word<extra>word")
CORPUS = ["the cat sat on the mat, the cat's hat and 12 mats", "naïve café 日本"] * 4


def folder_of(path: Path, **about: object) -> object:
    """A tiny GPT-2 with the two files of a tokenizer that was trained here; the tokenizer."""
    trained = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
    trained.train_from_iterator(
        CORPUS, vocab_size=300, min_frequency=1, special_tokens=["</s>", "<pad>"], show_progress=False
    )
    write_checkpoint(path, "gpt2", vocab_size=320)
    trained.save_model(str(path))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **about}))
    trained.add_special_tokens(["<extra>"])
    (path / "added_tokens.json").write_text(json.dumps({"<extra>": trained.token_to_id("<extra>")}))
    return trained


@pytest.mark.parametrize("begin", [False, True])
def test_texts_are_cut_as_by_the_package(tmp_path: Path, begin: bool) -> None:
    trained = folder_of(
        tmp_path, bos_token={"content": "</s>"}, eos_token="</s>", pad_token="<pad>", add_bos_token=begin
    )
    model = import_model(str(tmp_path))
    rebuilt = tokenizers.Tokenizer.from_buffer(model.files["tokenizer.json"])
    for text in TEXTS:
        wanted = trained.encode(text).ids
        assert rebuilt.encode(text).ids == [trained.token_to_id("</s>")] * begin + wanted
        assert rebuilt.decode(wanted, skip_special_tokens=False) == text


def test_an_added_token_is_special_where_the_configuration_says_so(tmp_path: Path) -> None:
    """A <tool_call>, say, is part of what a model answers."""
    number = folder_of(tmp_path).get_vocab_size()
    listed = {str(number): {"content": "<call>", "special": False}, "0": {"content": "</s>", "special": False}}
    about = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "added_tokens_decoder": listed}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    rebuilt = tokenizers.Tokenizer.from_buffer(import_model(str(tmp_path)).files["tokenizer.json"])
    ids = rebuilt.encode("the<call>cat<extra></s>").ids
    assert number in ids and rebuilt.decode(ids) == "the<call>cat"


def test_a_tokenizer_of_another_class_is_none(tmp_path: Path) -> None:
    folder_of(tmp_path, tokenizer_class="ClvpTokenizer")
    assert not import_model(str(tmp_path)).files


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("merges.txt", "#version: 0.2\na b c\n", "two tokens a line, not 'a b c'"),
        ("merges.txt", "zz q\n", "pairs of tokens that make a token"),
        ("vocab.json", '{"a": 0, "b": 0}', "ids from 0 on, each once"),
        ("vocab.json", '{"a": 0, "b": "1"}', "ids from 0 on, each once"),
        ("added_tokens.json", '{"<extra>": -1}', "the id that '<extra>' has"),
        ("added_tokens.json", '{"</s>": 7}', "the id that '</s>' has"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, file: str, text: str, message: str) -> None:
    folder_of(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(tmp_path))
