"""A tokenizer of single bytes, which tests give their tiny language models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

END = 257
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """One token per byte, and two special ones."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<begin>", "<end>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "chat_template": TEMPLATE}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [END]}))
