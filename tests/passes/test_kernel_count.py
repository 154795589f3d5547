"""Kernels per layer and copies, of the built-in families and of graphs that copy."""

from __future__ import annotations

import pytest
from checkpoints import tiny_llama
from tvm import relax
from tvm.relax import op

from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig
from halo_tvm.imported import ImportedModel, InputSpec
from halo_tvm.models import FAMILIES
from halo_tvm.models._t5 import T5Config
from halo_tvm.models.bert import BertConfig
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.gpt2 import gpt2
from halo_tvm.params import ParamTable
from halo_tvm.passes.kernel_count import count_kernels, repeated
from halo_tvm.phase_reports import KernelCount
from halo_tvm.phases import lower

_SIZES = {"layers": 3, "hidden": 64, "heads": 4, "vocabulary": 67, "feed_forward": 96}
_T5 = T5Config(**_SIZES, decoder_layers=3, head_dim=16)
_LLAMA = tiny_llama(**_SIZES, kv_heads=2, head_dim=16, positions=64)


def count(model: ImportedModel, precision: str = "fp32") -> KernelCount:
    return count_kernels(lower(model, Compilation.of(CompileConfig("model", precision=precision)))[0])


@pytest.mark.parametrize(
    ("family", "config", "precision", "per_layer", "outside", "copies"),
    [
        # norm, qkv, attention, projection with residual, norm, up with activation, down with residual
        ("gpt2", gpt2(**_SIZES, positions=64), "fp32", 7, 3, 0),  # embeddings, last norm, head
        ("bert", BertConfig(**_SIZES, positions=64), "fp32", 7, 4, 0),  # embeddings of three tables, norm
        # rows are rounded in front of two products, elsewhere by what makes them
        ("bert", BertConfig(**_SIZES, positions=64), "int8", 9, 4, 0),
        ("t5", _T5, "fp32", 7, 3, 0),  # embedding, position bias, last norm
        # and a rotation of the joined row; gate and up are one product, the activation and what it gates behind it
        ("llama", _LLAMA, "fp32", 8, 4, 0),
        ("llama", _LLAMA, "bf16", 8, 4, 0),
        ("llama", _LLAMA, "int8", 10, 4, 0),  # rows are rounded in front of two products, elsewhere by what makes them
        ("llama", _LLAMA, "int4", 8, 4, 0),  # in groups: each product rounds its rows itself
        # two attentions, q, k and v apart; keys and values are appended to what came before
        ("t5-decoder", _T5, "fp32", 15, 4, 6),
    ],
)
def test_kernels_of_a_layer(
    family: str, config: object, precision: str, per_layer: int, outside: int, copies: int
) -> None:
    """Exact, so that a pass that stops fusing, or brings a copy, is seen; fewer kernels are welcome here."""
    found = count(FAMILIES[family].build(family, config, RandomWeights(0), {}), precision)
    assert (found.per_layer, found.layers, found.outside) == (per_layer, 3, outside)
    assert len(found.copies) == copies and all("concat" in name for name in found.copies)


def graph(body) -> ImportedModel:
    """`body(bb, x)` of x [4, 6] as a model without weights."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 6], "float32"))
    with bb.function("main", [x], attrs={"num_input": 1, "halo.params": []}):
        with bb.dataflow():
            out = bb.emit_output(body(bb, x))
        bb.emit_func_output(out)
    spec = InputSpec("x", (4, 6), "float32")
    return ImportedModel("graph", bb.get(), ParamTable(), (spec,), ("y",), {}, {}, {}, {})


@pytest.mark.parametrize(
    ("name", "body", "kernels", "copies"),
    [
        ("transpose", lambda bb, x: op.permute_dims(x), 1, 1),
        ("concat", lambda bb, x: op.concat([x, x], axis=1), 1, 1),
        ("slice", lambda bb, x: op.strided_slice(x, [0], [1], [3]), 1, 1),
        ("broadcast", lambda bb, x: op.broadcast_to(x, [3, 4, 6]), 1, 1),
        ("pad", lambda bb, x: op.nn.pad(x, [1, 1, 1, 1]), 1, 1),
        ("cast", lambda bb, x: op.astype(x, "int32"), 1, 0),
        ("fused into arithmetic", lambda bb, x: op.exp(bb.emit(op.permute_dims(x))), 1, 0),
        ("sum", lambda bb, x: op.sum(x, axis=1), 1, 0),
        ("lookup", lambda bb, x: op.take(x, relax.const([1, 2, 0], "int64"), axis=0), 1, 0),
        ("reshape", lambda bb, x: op.add(bb.emit(op.reshape(bb.emit(op.exp(x)), [24])), relax.const(1.0)), 2, 0),
    ],
)
def test_what_is_a_copy(name: str, body, kernels: int, copies: int) -> None:
    found = count(graph(body))
    assert (found.kernels, len(found.copies)) == (kernels, copies)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("abcabcabcz", (3, 3)),
        ("eabababh", (2, 3)),
        ("aaaa", (1, 4)),
        ("abcd", (0, 0)),
        ("xabcabcababab", (2, 3)),  # six kernels either way: the first found is the shorter sequence
        ("", (0, 0)),
    ],
)
def test_repetition(names: str, expected: tuple[int, int]) -> None:
    assert repeated(names) == expected


def test_text() -> None:
    assert str(KernelCount(45, 6, 7, 3, ())) == "7 per layer, 6 layers, 3 outside, 0 copies"
    assert str(KernelCount(2, 0, 0, 2, ("transpose", "transpose"))) == "2, 2 copies (transpose)"
