"""What the files around a language model say about its texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers._language import language_of


@pytest.mark.parametrize(
    ("about", "special", "words"),
    [
        ({"bos_token": "<s>", "pad_token": None, "add_bos_token": True}, None, {"bos_token": "<s>"}),
        (
            {"sep_token": {"content": "<sep>"}, "extra_special_tokens": {"image_token": "<image>"}},
            None,
            {"sep_token": "<sep>", "image_token": "<image>"},
        ),
        (
            {"eos_token": "</s>", "extra_special_tokens": ["<a>"]},
            {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "<end>"},
            {"bos_token": "<s>", "eos_token": "<end>"},
        ),
        ({"eos_token": "</s>", "added_tokens_decoder": {}}, {"eos_token": "<old>"}, {"eos_token": "</s>"}),
    ],
)
def test_a_template_may_name_every_special_token(
    tmp_path: Path, about: dict[str, object], special: dict[str, object] | None, words: dict[str, str]
) -> None:
    """As transformers reads them, which leaves out the older file where the newer one has the tokens."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    if special is not None:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    assert language_of(tmp_path, {})[0]["words"] == words


def test_a_decoder_never_chooses_what_is_suppressed(tmp_path: Path) -> None:
    generation = tmp_path / "generation_config.json"
    for suppressed, wanted in (([3, 7], [3, 7]), ([], None), (None, None)):
        generation.write_text(json.dumps({"suppress_tokens": suppressed}))
        assert language_of(tmp_path, {})[0].get("never") == wanted
    generation.write_text(json.dumps({"suppress_tokens": [-1]}))
    with pytest.raises(UnsupportedModel, match="expected suppress_tokens as integers"):
        language_of(tmp_path, {})
