"""The flash_attention rule: numbers against float64, declines, the decision space, and the code it becomes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from assembly import k_loops
from attention_functions import SEEN, TARGETS, attributes, check, check_nan_stays, function, normal, of_a_cache
from attention_functions import compiled as compiled_by
from covering import covering

from halo_tvm.errors import Declined
from halo_tvm.relay_ops.parts.kept_rows import kept as as_kept
from halo_tvm.relay_ops.parts.kept_rows import kept_columns
from halo_tvm.tir_schedules import RULES

pytestmark = pytest.mark.covering

RULE = RULES["flash_attention"]
LENGTHS = (1, 2, 7, 15, 16, 17, 33, 64, 100, 128)
compiled = partial(compiled_by, RULE)


@pytest.mark.parametrize("name", SEEN)
def test_separate_symbolic_lengths(target, name):
    attrs = attributes(2, 1, 32, **SEEN[name])
    run = compiled(function([("b", "s", 2, 32), ("b", "t", 1, 32), ("b", "t", 1, 32)], attrs), target)
    for s in LENGTHS:
        for t in LENGTHS:
            check(run, normal((1 + 2 * (s == 17), s, 2, 32), *[(1 + 2 * (s == 17), t, 1, 32)] * 2), attrs)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_symbolic_lengths(target, causal):
    attrs = attributes(4, 2, 64, packed=True, causal=causal)
    run = compiled(function([("b", "s", 8 * 64)], attrs), target)
    for s in (*LENGTHS, 500):
        check(run, normal((3 if s < 100 else 1, s, 8 * 64)), attrs)


@pytest.mark.parametrize("d", [16, 48, 80, 128, 256, 592])
@pytest.mark.parametrize("s", [1, 33])
def test_head_sizes_static(target, d, s):
    attrs = attributes(2, 2, d, packed=True, causal=True)
    check(compiled(function([(2, s, 6 * d)], attrs), target), normal((2, s, 6 * d)), attrs)


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32"])
def test_key_mask(target, dtype):
    attrs = attributes(2, 2, 16, packed=True, has_key_mask=True)
    run = compiled(function([("b", "s", 96), ("b", "s")], attrs, ["float32", dtype]), target)
    for s in LENGTHS:
        mask = np.arange(s) < np.array([[0], [s], [s // 2]])  # the first batch row sees nothing: zeros
        (x,) = normal((3, s, 96))
        x[..., 32:64][~mask] = np.inf  # keys that are hidden hold anything
        check(run, [x, mask.astype(dtype)], attrs)


@pytest.mark.parametrize("ones", [(1, 0, 0), (0, 1, 1), (0, 0, 0), (1, 1, 0)])
def test_bias(target, ones):
    attrs = attributes(2, 2, 16, has_bias=True, causal=True)
    full = ("b", 2, "s")
    shape = (*(1 if one else dim for one, dim in zip(ones, full)), "t")
    run = compiled(function([("b", "s", 2, 16), *[("b", "t", 2, 16)] * 2, shape], attrs), target)
    for s, t in ((1, 1), (7, 33), (17, 100), (64, 64), (100, 15)):
        sizes = {"b": 3, "s": s, "t": t}
        bias = tuple(sizes.get(x, x) for x in shape)
        check(run, normal((3, s, 2, 16), *[(3, t, 2, 16)] * 2, bias), attrs)


@pytest.mark.parametrize(("causal", "kept"), [(False, "float32"), (True, "float32"), (True, "float16"), (True, "int8")])
def test_lengths_of_a_cache(target, causal, kept):
    attrs = attributes(2, 1, 16, causal=causal, has_lengths=True)
    shapes = [("b", "s", 2, 16), *[("b", "t", 1, kept_columns(16, kept))] * 2, ("b",)]
    run = compiled(function(shapes, attrs, ["float32", kept, kept, "int32"]), target)
    for s, t, lengths in ((33, 200, (200, 33, 150)), (17, 130, (0, 5, 999)), (1, 64, (-3, 1, 64))):
        q, *caches = normal((3, s, 2, 16), *[(3, t, 1, 16)] * 2)
        check(run, of_a_cache([q, *(as_kept(x, np.dtype(kept)) for x in caches)], lengths), attrs)


def test_additive_masks_hide_keys(target):
    attrs = attributes(1, 1, 16, has_bias=True)
    q, k, v = normal((2, 3, 1, 16), *[(2, 70, 1, 16)] * 2)
    for least in (-np.inf, np.finfo("float32").min):
        bias = np.zeros((2, 1, 1, 70), "float32")
        bias[0, ..., 5:] = least
        bias[1] = least
        func = function([q.shape, k.shape, v.shape, bias.shape], attrs)
        check(compiled(func, target), [q, k, v, bias], attrs)


def test_all_features_at_once(target):
    attrs = attributes(4, 2, 32, packed=True, causal=True, window=30, softcap=5.0, has_key_mask=True, has_bias=True)
    run = compiled(
        function([("b", "s", 256), ("b", "s"), (1, 4, "s", "s")], attrs, ["float32", "int64", "float32"]), target
    )
    for s in LENGTHS:
        mask = (np.arange(s) % 5 != 3)[None].repeat(2, 0).astype("int64")
        check(run, [*normal((2, s, 256)), mask, *normal((1, 4, s, s))], attrs)


def test_sinks(target):
    """Far below the scores, among them, and far above: a row of zeros."""
    attrs = attributes(4, 2, 16, packed=True, causal=True, window=50, has_sinks=True)
    run = compiled(function([("b", "s", 8 * 16), (4,)], attrs), target)
    for s in (1, 37, 150):
        check(run, [*normal((2, s, 8 * 16)), np.array([-90, -1, 1, 30], np.float32)], attrs)


@pytest.mark.parametrize("more", [{}, {"softcap": 2.0}], ids=["plain", "softcap"])
def test_a_nan_stays(target, more):
    attrs = attributes(2, 1, 16, **more)
    run = compiled(function([("b", "s", 2, 16), *[("b", "t", 1, 16)] * 2], attrs), target)
    for t in (21, 150):
        check_nan_stays(run, normal((2, 5, 2, 16), *[(2, t, 1, 16)] * 2), attrs)


def test_far_scores_do_not_overflow(target):
    attrs = {**attributes(1, 1, 16, packed=True), "scale": 30.0}
    check(compiled(function([(1, 40, 48)], attrs), target), normal((1, 40, 48)), attrs, tolerance=2e-4)


@pytest.mark.slow
def test_every_decision_on_an_odd_shape(target):
    attrs = attributes(2, 1, 48, packed=True, causal=True)
    func = function([("b", "s", 4 * 48)], attrs)
    space = RULE.space(func, target)
    assert space[0] == RULE.default(func, target) and len(set(space)) == len(space) >= 6
    assert {decision.pack_values for decision in space} == {True, False}
    for decision in covering(space):
        check(compiled(func, target, decision), normal((2, 101, 4 * 48)), attrs)


def test_no_call_into_the_mathematical_library(target):
    attrs = attributes(2, 2, 64, packed=True, softcap=3.0)
    assembly = compiled(function([("b", "s", 6 * 64)], attrs), target).mod.inspect_source("asm")
    assert not re.search(r"\b(exp2?f?|tanhf?|powf?|nearbyintf?|fmaxf?)(@PLT|\b)", assembly)
    assert "vfmadd" in assembly


@pytest.mark.parametrize(
    ("attrs", "dtype", "message"),
    [
        (attributes(2, 2, 20, packed=True), "float32", "multiples of 16 up to 1024, got 20"),
        (attributes(2, 2, 1040, packed=True), "float32", "multiples of 16 up to 1024, got 1040"),
        (attributes(2, 2, 32, packed=True), "float16", "serves float32, QKV is float16"),
    ],
)
def test_declines(attrs, dtype, message):
    func = function([("b", "s", 6 * attrs["head_dim"])], attrs, [dtype])
    with pytest.raises(Declined, match=message):
        RULE.default(func, TARGETS["avx2"])


def test_declines_other_functions():
    func = function([(1, 5, 96)], attributes(2, 2, 16, packed=True))
    with pytest.raises(Declined, match="serves functions with the attribute halo.call"):
        RULE.default(func.without_attr("halo.call"), TARGETS["avx2"])
    with pytest.raises(Declined, match="this function calls halo.linear"):
        RULE.default(func.with_attr("halo.call", {"op": "linear"}), TARGETS["avx2"])


def test_declines_a_block_that_holds_no_whole_panels():
    func = function([(1, 5, 96)], attributes(2, 2, 16, packed=True))
    decision = replace(RULE.default(func, TARGETS["avx512"]), block_k=40)
    with pytest.raises(Declined, match="block_k must be a multiple of the panel of 32 keys, got 40"):
        RULE.apply(func, TARGETS["avx512"], decision)


@pytest.mark.parametrize("keys, packs", [("t", False), (512, False), (1024, True)])
def test_values_are_packed_where_the_keys_are_known_to_be_many(keys, packs):
    separate = function([(1, 4, 2, 16), (1, keys, 2, 16), (1, keys, 2, 16)], attributes(2, 2, 16))
    together = function([(1, keys, 96)], attributes(2, 2, 16, packed=True))
    for func in (separate, together):
        assert RULE.default(func, TARGETS["avx512"]).pack_values is packs


def test_the_inner_loops_hold_everything_in_registers(target):
    """The products of both stages: no vector goes through the stack, and half of the instructions multiply."""
    func = function([("b", "s", 36 * 64)], attributes(12, 12, 64, packed=True, causal=True))
    found = k_loops(compiled(func, target), "vfmadd")
    products = [loop for loop in found if loop["vfmadd"] >= 12 and loop["all"] <= 2.01 * loop["vfmadd"]]
    assert len(products) >= 2, found
    assert not any(loop["vector"] for loop in products)


# ---- the analytic estimate ----


def estimated(length: int, causal: bool = True, **fields: object) -> float:
    func = function([("b", "s", 12 * 64)], attributes(4, 4, 64, packed=True, causal=causal))
    b, s = func.params[0].ty.shape[:2]
    decision = replace(RULE.default(func, TARGETS["avx2"]), **fields)
    found = RULE.estimate(func, TARGETS["avx2"], decision, {b: 1, s: length})
    assert found is not None
    return found


def test_estimates_grow_with_the_length_and_the_keys_seen():
    times = [estimated(length) for length in (1, 8, 32, 128, 512)]
    assert times == sorted(times) and times[-1] > 8 * times[-2], "four times the length, nearly 16 times the work"
    assert 1.5 < estimated(512, causal=False) / estimated(512) < 2.0, "half of the scores are masked"


def test_estimates_know_what_is_slow():
    assert estimated(512, score_rows=1, score_vectors=1) > 1.2 * estimated(512), "too few sums to hide latency"
    assert estimated(512, block_q=512) > 1.05 * estimated(512), "softmax and packing of hidden keys, idle cores"
    assert estimated(512, pack_values=False) > estimated(512)
