"""Decisions that no space holds are declined before any work: a log may be anybody's, and code grows with them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest

from halo_tvm.errors import Declined
from halo_tvm.records.decision import decision_from_plain
from halo_tvm.records.home import shipped_logs
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.attention.decode_attention import Decision as Decode
from halo_tvm.tir_schedules.attention.decode_attention_gpu import Decision as DecodeGPU
from halo_tvm.tir_schedules.attention.flash_attention import Decision as Attention
from halo_tvm.tir_schedules.attention.flash_attention_gpu import Decision as AttentionGPU
from halo_tvm.tir_schedules.general.search import Decision as Search
from halo_tvm.tir_schedules.injective.elementwise import ElementwiseDecision
from halo_tvm.tir_schedules.injective.elementwise_gpu import ElementThreads
from halo_tvm.tir_schedules.products.batched_matmul import Decision as Product
from halo_tvm.tir_schedules.products.experts import ExpertsNest
from halo_tvm.tir_schedules.products.gemm import Decision as Gemm
from halo_tvm.tir_schedules.products.gemv import Decision as Gemv
from halo_tvm.tir_schedules.products.recurrence import Decision as Recurrence
from halo_tvm.tir_schedules.products.state_loop import Decision as States
from halo_tvm.tir_schedules.products.tensor_core_gemm import Decision as TensorCores
from halo_tvm.tir_schedules.rows.row_reduction import RowDecision
from halo_tvm.tir_schedules.rows.row_reduction_gpu import RowThreads
from halo_tvm.tir_schedules.rule import Numbers
from halo_tvm.tir_schedules.windows.channelwise import Decision as Channelwise
from halo_tvm.tir_schedules.windows.convolution import Decision as Convolution
from halo_tvm.tir_schedules.windows.winograd import Cut

pytestmark = pytest.mark.covering(2)

# One of each rule's space; whatever is wrong is found before the function is looked at, so there is none.
GOOD = {
    "gemm": Gemm(8, 4, 2, 1, True),
    "experts": ExpertsNest.Decision(6, 4, 64),
    "batched_matmul": Product(8, 3, 64, 512),
    "channelwise": Channelwise(8, 16, 8),
    "convolution": Convolution(8, 4, 64),
    "convolution_winograd": Cut(8, 4, 32),
    "elementwise": ElementwiseDecision(16, 2, 16, 8192, 16),
    "row_reduction": RowDecision(16, 4, 16, 8192),
    "flash_attention": Attention(32, 64, 4, 4, 4, 4),
    "decode_attention": Decode(128, 16, 64),
    "search": Search((1,), (16,), (2,), (-1,), (1,), 16, 8192),
    "recurrence": Recurrence(4, "blocks"),
    "state_loop": States("tasks"),
    "flash_attention_gpu": AttentionGPU(128, 64, 4),
    "decode_attention_gpu": DecodeGPU(8, 128, 4, 4),
    "gemv": Gemv(2, 4, 2),
    "tensor_core_gemm": TensorCores(128, 128, 32, 4, 3),
    "elementwise_gpu": ElementThreads(4, 1, 256),
    "row_reduction_gpu": RowThreads(128, 1, 4, True),
}
NO_FUNCTION = object()


def test_every_rule_with_numbers_is_here():
    # Other tests of the same session register rules of their own.
    own = {name: rule for name, rule in RULES.items() if type(rule).__module__.startswith("halo_tvm.tir_schedules.")}
    served = {name for name, rule in own.items() if dataclasses.fields(rule.Decision)}
    assert set(GOOD) == served - {"fallback"}, "the net's number only decides whether threads are started"


FIELDS = [
    (rule, f.name)
    for rule, good in GOOD.items()
    for f in dataclasses.fields(good)
    if type(getattr(good, f.name)) is int
]


@pytest.mark.parametrize("value", [-1, 100_000_000_000])
@pytest.mark.parametrize(("rule", "field"), FIELDS)
def test_a_number_that_no_space_holds_is_declined_at_once(rule, field, value):
    decision = replace(GOOD[rule], **{field: value})
    with pytest.raises(Declined, match=rf"{field} is {value}, the rule serves \d+(,| to) \d+"):
        RULES[rule].apply(NO_FUNCTION, resolve("cpu"), decision)


def test_a_word_that_no_space_holds():
    with pytest.raises(Declined, match="parallel is sideways, the rule serves no, directions, blocks"):
        RULES["recurrence"].apply(NO_FUNCTION, resolve("cpu"), Recurrence(1, "sideways"))


def test_every_field_has_a_domain_that_holds_its_ends():
    for name, good in GOOD.items():
        counted = {f.name for f in dataclasses.fields(good) if type(getattr(good, f.name)) is not bool}
        assert set(RULES[name].domains) == counted, name
        RULES[name].check(good)
    assert [n for n in range(70) if n in Numbers(1, 64, powers=True)] == [1, 2, 4, 8, 16, 32, 64]
    assert [n for n in range(200) if n in Numbers(32, 128, step=32)] == [32, 64, 96, 128]
    assert [n for n in range(9) if n in Numbers(3, 5)] == [3, 4, 5]


def test_shipped_records_are_within():
    """What is wrong with a decision is said first; what is wrong with no function at all comes after."""
    found = [json.loads(line) for path in shipped_logs().glob("*/records.jsonl") for line in path.open()]
    assert found
    for record in found:
        rule = RULES[record["rule"]]
        with pytest.raises((AttributeError, TypeError)):
            rule.apply(NO_FUNCTION, resolve("cpu"), decision_from_plain(rule.Decision, record["decision"]))
