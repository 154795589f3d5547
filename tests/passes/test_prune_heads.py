"""Head pruning equals the model whose pruned heads contribute nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graphs import context_of

from halo_tvm.errors import UsageError
from halo_tvm.imported import ImportedModel
from halo_tvm.interpreter import evaluate
from halo_tvm.models import FAMILIES
from halo_tvm.models._builder import RandomWeights
from halo_tvm.models.bert import BertConfig
from halo_tvm.models.gpt2 import GPT2Config
from halo_tvm.params import ParamSource, ParamTable
from halo_tvm.passes import PASSES

SMALL = {"hidden": 96, "heads": 3, "vocabulary": 50, "feed_forward": 64, "positions": 16}
IDS = np.arange(10).reshape(2, 5)


def model(family: str) -> ImportedModel:
    config = (GPT2Config if family == "gpt2" else BertConfig)(layers=2, **SMALL)
    return FAMILIES[family].build(family, config, RandomWeights(0), {})


def with_zeros(imported: ImportedModel, name: str, zero: tuple[object, ...]) -> ImportedModel:
    """`imported` with a part of one weight set to zero."""
    old = imported.params.sources[name]

    def load() -> np.ndarray:
        values = old.load().copy()
        values[zero] = 0
        return values

    sources = {**imported.params.sources, name: ParamSource(old.shape, old.dtype, load)}
    return dataclasses.replace(imported, params=ParamTable(sources))


def pruned(imported: ImportedModel, **options: object):
    mod, report = PASSES["prune_heads"](**options)(imported.mod, context_of(imported))
    return dataclasses.replace(imported, mod=mod), report


def test_gpt2_head_of_one_projection() -> None:
    source = model("gpt2")
    small, report = pruned(source, heads=("h.0.attn: 1",))
    assert report == {"pruned": {"h.0.attn": [1]}, "declined": []}
    expected = evaluate(with_zeros(source, "h.0.attn.c_proj.weight", (slice(32, 64),)), {"input_ids": IDS})["logits"]
    np.testing.assert_allclose(evaluate(small, {"input_ids": IDS})["logits"], expected, rtol=0, atol=1e-12)


def test_bert_heads_of_three_projections_in_every_layer() -> None:
    source = model("bert")
    x = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "token_type_ids": np.zeros_like(IDS)}
    small, report = pruned(source, heads=("encoder.layer.*: 0 2",))
    assert list(report["pruned"]) == ["encoder.layer.0.attention", "encoder.layer.1.attention"]
    zeroed = source
    for layer in range(2):
        name = f"encoder.layer.{layer}.attention.output.dense.weight"
        zeroed = with_zeros(zeroed, name, (slice(None), np.r_[0:32, 64:96]))
    np.testing.assert_allclose(
        evaluate(small, x)["last_hidden_state"], evaluate(zeroed, x)["last_hidden_state"], rtol=0, atol=1e-12
    )


def test_threshold_finds_the_head_whose_output_is_weak() -> None:
    source = with_zeros(model("gpt2"), "h.1.attn.c_proj.weight", (slice(0, 32),))
    assert pruned(source, threshold=0.5)[1]["pruned"] == {"h.1.attn": [0]}


def test_no_option_changes_nothing() -> None:
    source = model("gpt2")
    small, report = pruned(source)
    assert report["pruned"] == {} and small.mod is source.mod


def test_all_heads_of_a_layer_are_declined() -> None:
    assert pruned(model("gpt2"), heads=("h.0.attn: 0 1 2",))[1]["declined"] == [
        {"layer": "h.0.attn", "reason": "no head would be left"}
    ]


def test_head_number_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected heads among 0\.\.2, found \[7\]"):
        pruned(model("gpt2"), heads=("h.0.attn: 7",))


def test_unreadable_option_is_refused() -> None:
    with pytest.raises(UsageError, match='expected heads like "h.0.attn: 1 5", found \'h.0\''):
        pruned(model("gpt2"), heads=("h.0",))
