"""A config.json that leaves a word out means what transformers takes for it."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from halo_tvm.errors import UnsupportedModel
from halo_tvm.models import FAMILIES, completed

# What another word of the same config follows, or none can do without.
FOLLOW = {"architectures", "model_type"}
READ = [(kind, family) for family in FAMILIES.values() if family.from_huggingface for kind in family.huggingface_types]


@pytest.mark.slow
def test_words_that_are_left_out() -> None:
    """Every word of every model type: read as its default, or missed."""
    transformers = pytest.importorskip("transformers")
    wrong, read = [], 0
    for kind, family in READ:
        if kind not in transformers.CONFIG_MAPPING:  # by the name alone, as Kimi K2
            continue
        usual = transformers.CONFIG_MAPPING[kind]().to_dict()
        for word in [None, *usual.keys() - FOLLOW]:
            config = completed({name: value for name, value in usual.items() if name != word})
            try:
                found = family.from_huggingface(config)
            except (KeyError, TypeError, UnsupportedModel):  # a sentence, from the importer
                found = None
            if word is None:
                expected = found
                read += found is not None
            elif expected is not None and found not in (None, expected):
                wrong.append(f"{kind}: {word}")
    assert not wrong, "; ".join(wrong)
    assert read >= 95, "types whose default configuration is read"


def test_what_is_said_stays() -> None:
    config = MappingProxyType({"model_type": "mistral", "sliding_window": None, "num_key_value_heads": 2})
    assert completed(config) == dict(config)
    older = completed({"model_type": "cwm", "rope_theta": 5000.0})
    assert "rope_parameters" not in older and older["rope_theta"] == 5000.0
