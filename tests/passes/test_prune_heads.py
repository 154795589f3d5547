"""Head pruning equals the model whose pruned heads contribute nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graphs import context_of, small_model
from tvm import relax

from halo_tvm.errors import UsageError
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.interpreter import evaluate
from halo_tvm.models import FAMILIES
from halo_tvm.models.bert import BertConfig
from halo_tvm.models.builder import ModelBuilder, RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.params import ParamSource, ParamTable
from halo_tvm.passes import PASSES

SMALL = {"hidden": 96, "heads": 3, "vocabulary": 50, "feed_forward": 64, "positions": 16}
IDS = np.arange(10).reshape(2, 5)


def model(family: str) -> ImportedModel:
    config = (gpt2 if family == "gpt2" else BertConfig)(layers=2, **SMALL)
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
    with pytest.raises(UsageError, match="expected heads like \"h.0.attn: 1 5\", found 'h.0'"):
        pruned(model("gpt2"), heads=("h.0",))


def test_entries_for_one_layer_add_up() -> None:
    assert pruned(model("gpt2"), heads=("h.0.attn: 0", "h.0.*: 2", "h.0.attn: 0"))[1]["pruned"] == {"h.0.attn": [0, 2]}


def test_pattern_without_a_layer_is_refused_with_the_layers_there_are() -> None:
    with pytest.raises(UsageError, match=r"for 'h\.7\.attn', found none: the layers are h\.0\.attn, h\.1\.attn"):
        pruned(model("gpt2"), heads=("h.7.attn: 1",))


@pytest.mark.parametrize("threshold", ["x", -0.1, True, float("nan")])
def test_threshold_that_is_no_number_is_refused(threshold: object) -> None:
    with pytest.raises(UsageError, match="expected a threshold of 0 or more"):
        pruned(model("gpt2"), threshold=threshold)


X = InputSpec("x", ("batch", "sequence", 32), "float32")


def one_layer(m: ModelBuilder, *, layer: str | None = "a", bias: tuple[int, ...] = (), outputs: str = "y"):
    """Attention of two heads between projections; `outputs` names what the model gives besides y."""
    x, b, s = m.inputs["x"], m.dim("batch"), m.dim("sequence")
    m.layer = layer
    parts = [m.emit(relax.op.reshape(m.linear(x, part, 32, 32), (b, s, 2, 16))) for part in "qkv"]
    lengths = m.inputs.get("lengths")
    extras = [*([m.weight("bias", bias)] if bias else []), *([] if lengths is None else [lengths])]
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25}
    attrs |= {"has_bias": True if bias else None, "has_lengths": None if lengths is None else True}
    heads = m.op("attention", *parts, *extras, **attrs)
    joined = m.emit(relax.op.reshape(heads, (b, s, 32)))
    made = {"y": m.linear(joined, "o", 32, 32), "projection": parts[2], "heads": heads, "joined": joined}
    made |= {name: m.emit(relax.op.exp(made[name.split()[1]])) for name in outputs.split(", ") if " " in name}
    return {name: made[name] for name in outputs.split(", ")}


def without_aliases(imported: ImportedModel) -> ImportedModel:
    """As importers leave it: an output is the binding that computes it, not a copy behind."""
    return dataclasses.replace(imported, mod=relax.transform.CanonicalizeBindings()(imported.mod))


@pytest.mark.parametrize("layer", ["None", "*"])
def test_unnamed_layers_match_no_pattern(layer: str) -> None:
    with pytest.raises(UsageError, match="importer names no layers"):
        pruned(small_model((X,), lambda m: one_layer(m, layer=None)), heads=(f"{layer}: 1",))


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ("y, projection", "a projection is an output of the model"),
        ("y, heads", "the attention's result is an output of the model"),
        ("y, joined", "the joined heads is an output of the model"),
        ("y, second projection", "a projection has 2 users, not one"),
        ("y, second heads", "the attention's result has 2 users, not one"),
        ("y, second joined", "the joined heads has 2 users, not one"),
    ],
)
def test_what_is_read_elsewhere_too_is_declined(outputs: str, reason: str) -> None:
    source = without_aliases(small_model((X,), lambda m: one_layer(m, outputs=outputs)))
    _, report = pruned(source, heads=("a: 1",))
    assert report == {"pruned": {}, "declined": [{"layer": "a", "reason": reason}]}


@pytest.mark.parametrize("lengths", [(), (InputSpec("lengths", (2,), "int32"),)], ids=["whole", "lengths"])
def test_a_bias_per_head_is_declined_and_a_shared_one_is_not(lengths: tuple[InputSpec, ...]) -> None:
    inputs = (InputSpec("x", (2, 5, 32), "float32"), *lengths)

    def body(heads: int):
        def build(m: ModelBuilder):
            m._dims.update(batch=2, sequence=5)
            return one_layer(m, bias=(1, heads, 1, 5))

        return build

    assert pruned(small_model(inputs, body(2)), heads=("a: 1",))[1]["declined"] == [
        {"layer": "a", "reason": "its bias has a plane per head"}
    ]
    assert pruned(small_model(inputs, body(1)), heads=("a: 1",))[1]["pruned"] == {"a": [1]}


def test_output_projection_that_is_the_model_result_is_pruned() -> None:
    source = without_aliases(small_model((X,), one_layer))
    small, report = pruned(source, heads=("a: 1",))
    assert report["pruned"] == {"a": [1]}
    assert relax.analysis.check_well_formed(small.mod)
    x = {"x": np.random.default_rng(0).standard_normal((2, 5, 32)).astype("float32")}
    expected = evaluate(with_zeros(source, "o.weight", (slice(None), slice(16, 32))), x)["y"]
    np.testing.assert_allclose(evaluate(small, x)["y"], expected, rtol=0, atol=1e-6)
