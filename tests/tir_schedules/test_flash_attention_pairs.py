"""The flash_attention rule in bfloat16: only the weights' rounding may show, and only where it is allowed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tvm
from assembly import k_loops
from attention_functions import (
    SEEN,
    Attention,
    attributes,
    function,
    normal,
    of_a_cache,
    rounded_to_bfloat16,
)
from attention_functions import compiled as compiled_by
from covering import covering
from tile_registers import build_emulated

from halo_tvm.errors import Declined
from halo_tvm.targets import Target, read_host
from halo_tvm.targets.x86 import X86
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.blocks import EXACT_BUFFERS

RULE = RULES["flash_attention"]
LEVELS = {isa.name: Target(X86, isa, cores=2) for isa in X86.isas}
PAIRS = LEVELS["avx512-bf16"]
LOG2_E = np.float32(1.4426950408889634)
compiled = partial(compiled_by, RULE)


@pytest.fixture(params=["avx512-bf16", "avx512-amx"])
def target(request):
    """Pairs are multiplied in vectors, and in registers of two dimensions."""
    found = LEVELS[request.param]
    if not found.isa.requires <= read_host().flags:
        pytest.skip(f"this processor does not run {request.param}")
    return found


def narrow(h, h_kv, d, **others):
    return attributes(h, h_kv, d, products="bfloat16", **others)


def check(executable, arrays, attrs):
    """Against float64 of the rounded operands: what is left is the rounding of the weights, 2**-8 of each."""
    heads, d, operands = attrs["num_heads"] + attrs["num_kv_heads"], attrs["head_dim"], 1 if attrs.get("packed") else 3
    factor = np.float32(attrs["scale"] / attrs["softcap"] if attrs.get("softcap") else attrs["scale"] * LOG2_E)

    def keys(k):
        return rounded_to_bfloat16(k * factor) / factor.astype("float64")

    if operands == 1:
        (qkv,), queries = arrays[:1], attrs["num_heads"] * d
        parts = np.split(qkv, [queries, heads * d], axis=-1)
        rounded = [np.concatenate([rounded_to_bfloat16(parts[0]), keys(parts[1]), rounded_to_bfloat16(parts[2])], -1)]
        positive = [np.concatenate([rounded[0][..., : heads * d], abs(rounded[0][..., heads * d :])], -1)]
    else:
        q, k, v = arrays[:3]
        rounded = [rounded_to_bfloat16(q), keys(k), rounded_to_bfloat16(v)]
        positive = [*rounded[:2], abs(rounded[2])]
    extras = [x.astype("float64") if x.dtype == "float32" else x for x in arrays[operands:]]
    exact = Attention.reference(*rounded, *extras, **attrs)
    bound = 2.0**-8 * Attention.reference(*positive, *extras, **attrs) + 1e-4
    out = tvm.runtime.tensor(np.full(exact.shape, np.nan, "float32"))
    executable["main"](*map(tvm.runtime.tensor, arrays), out)
    assert (abs(out.numpy() - exact) < bound).all(), [x.shape for x in arrays]


@pytest.mark.parametrize("name", SEEN)
def test_separate_symbolic_lengths(name, target):
    attrs = narrow(2, 1, 32, **SEEN[name])
    run = compiled(function([("b", "s", 2, 32), ("b", "t", 1, 32), ("b", "t", 1, 32)], attrs), target)
    for s in (1, 17, 33, 100):
        for t in (1, 15, 16, 31, 33, 64, 129, 200):
            check(run, normal((2, s, 2, 32), *[(2, t, 1, 32)] * 2), attrs)


@pytest.mark.parametrize(("d", "causal"), [(64, False), (96, True), (128, True), (256, False)])
def test_packed(d, causal, target):
    """Heads of 96 leave a narrower tile of values behind the whole ones."""
    attrs = narrow(4, 2, d, packed=True, causal=causal)
    run = compiled(function([("b", "s", 8 * d)], attrs), target)
    for s in (1, 31, 128, 161):
        check(run, normal((2, s, 8 * d)), attrs)


def test_masks_biases_and_caches(target):
    attrs = narrow(2, 2, 32, packed=True, has_key_mask=True)
    run = compiled(function([("b", "s", 192), ("b", "s")], attrs, ["float32", "bool"]), target)
    for s in (1, 17, 40, 130):
        check(run, [*normal((3, s, 192)), np.arange(s) < np.array([[0], [s], [s // 2]])], attrs)
    attrs = narrow(2, 2, 32, has_bias=True, causal=True)
    shapes = [("b", "s", 2, 32), *[("b", "t", 2, 32)] * 2, (1, 2, "s", "t")]
    run = compiled(function(shapes, attrs), target)
    for s, t in ((1, 1), (7, 33), (17, 100), (64, 64), (100, 15)):
        check(run, normal((3, s, 2, 32), *[(3, t, 2, 32)] * 2, (1, 2, s, t)), attrs)


def test_many_static_keys(target):
    attrs = narrow(2, 1, 32)
    run = compiled(function([(1, 33, 2, 32), *[(1, 1100, 1, 32)] * 2], attrs), target)
    check(run, normal((1, 33, 2, 32), *[(1, 1100, 1, 32)] * 2), attrs)


@pytest.mark.parametrize("seen", ["plain", "causal", "window"])
def test_what_lies_behind_the_lengths_is_not_read(seen, target):
    attrs = narrow(2, 1, 32, **SEEN[seen], has_lengths=True)
    shapes = [("b", "s", 2, 32), *[("b", "t", 1, 32)] * 2, ("b",)]
    run = compiled(function(shapes, attrs, [*["float32"] * 3, "int32"]), target)
    for s, t, lengths in ((33, 200, (200, 33, 150)), (17, 130, (0, 5, 999)), (1, 64, (-3, 1, 64))):
        check(run, of_a_cache(normal((3, s, 2, 32), *[(3, t, 1, 32)] * 2), lengths), attrs)


def test_values_that_are_no_numbers_stay_none(target):
    """Also a NaN that would round to zero as an integer."""
    attrs = narrow(1, 1, 32, packed=True)
    run = compiled(function([("b", "s", 96)], attrs), target)
    for bits in (0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000, 0x7F800000, 0xFF800000):
        (qkv,) = normal((1, 5, 96))
        qkv[0, 2, 70] = value = np.uint32(bits).view("float32")
        out = tvm.runtime.tensor(np.zeros((1, 5, 1, 32), "float32"))
        run["main"](tvm.runtime.tensor(qkv), out)
        np.testing.assert_array_equal(out.numpy()[0, :, 0, 70 - 64], np.full(5, value), hex(bits))


@pytest.mark.slow
def test_every_decision_on_an_odd_shape(target):
    attrs = narrow(2, 1, 64, packed=True, causal=True)
    func = function([("b", "s", 4 * 64)], attrs)
    space = RULE.space(func, target)
    assert space[0] == RULE.default(func, target) and len(set(space)) == len(space) >= 6
    for decision in covering(space):
        check(compiled(func, target, decision), normal((2, 101, 4 * 64)), attrs)


def test_a_block_of_keys_that_is_no_power_of_two(target):
    attrs = narrow(2, 1, 64, packed=True, causal=True)
    func = function([("b", "s", 4 * 64)], attrs)
    run = compiled(func, target, replace(RULE.default(func, target), block_k=96))
    for s in (95, 97, 200):
        check(run, normal((2, s, 4 * 64)), attrs)


def test_all_features_at_once(target):
    features = {"causal": True, "window": 30, "softcap": 5.0, "has_key_mask": True, "has_bias": True}
    attrs = narrow(4, 2, 32, packed=True, **features)
    func = function([("b", "s", 256), ("b", "s"), (1, 4, "s", "s")], attrs, ["float32", "int64", "float32"])
    run = compiled(func, target)
    for s in (1, 16, 17, 33, 100, 130):
        mask = (np.arange(s) % 5 != 3)[None].repeat(2, 0).astype("int64")
        check(run, [*normal((2, s, 256)), mask, *normal((1, 4, s, s))], attrs)


def assembly(attrs, target):
    func = function([("b", "s", 6 * attrs["head_dim"])], attrs)
    return compiled(func, target).mod.inspect_source("asm")


@pytest.mark.parametrize(
    ("attrs", "level", "pairs"),
    [
        (narrow(2, 2, 64, packed=True), "avx512-bf16", True),
        (attributes(2, 2, 64, packed=True), "avx512-bf16", False),
        (narrow(2, 2, 64, packed=True), "avx512-vnni", False),
        (narrow(2, 2, 48, packed=True), "avx512-bf16", False),
        (narrow(2, 2, 64, packed=True), "avx512-amx", False),
    ],
    ids=["allowed", "not allowed", "no such instruction", "heads that are no whole pairs of vectors", "tiles"],
)
def test_where_pairs_are_multiplied(attrs, level, pairs):
    assert ("vdpbf16ps" in assembly(attrs, LEVELS[level])) is pairs


def test_tiles_under_emulation(tmp_path):
    attrs = narrow(2, 1, 64, packed=True, causal=True, has_key_mask=True)
    func, amx = function([("b", "s", 256), ("b", "s")], attrs, ["float32", "bool"]), LEVELS["avx512-amx"]
    run = build_emulated(RULE.apply(func, amx, RULE.default(func, amx)), tmp_path)
    for s in (1, 33, 100, 161):
        check(run, [*normal((2, s, 256)), np.arange(s)[None].repeat(2, 0) % 7 != 3], attrs)


def test_tiles_beside_functions_whose_buffers_shrink(tmp_path):
    """Lowering then makes every buffer as small as its loads and stores let it: five rows, where tiles write 32."""
    attrs = narrow(2, 2, 32, packed=True)
    func, amx = function([(1, 5, 192)], attrs), LEVELS["avx512-amx"]
    func = RULE.apply(func, amx, RULE.default(func, amx)).without_attr(EXACT_BUFFERS)
    check(build_emulated(func, tmp_path), normal((1, 5, 192)), attrs)


def test_tiles_give_their_registers_back():
    text = assembly(narrow(2, 2, 64, packed=True), LEVELS["avx512-amx"])
    assert "tdpbf16ps" in text and 0 < text.count("ldtilecfg") <= text.count("tilerelease")


@pytest.mark.parametrize("changes", [{"block_q": 48}, {"score_vectors": 4, "block_k": 128}])
def test_declines_what_holds_no_whole_tiles(changes):
    func, amx = function([(1, 5, 192)], narrow(2, 2, 32, packed=True)), LEVELS["avx512-amx"]
    with pytest.raises(Declined, match="expected queries in 32 and panels of 32 keys, got"):
        RULE.apply(func, amx, replace(RULE.default(func, amx), **changes))


def test_declines_a_block_that_holds_no_whole_pairs():
    func = function([(1, 5, 192)], narrow(2, 2, 32, packed=True))
    decision = replace(RULE.default(func, PAIRS), block_k=48)
    with pytest.raises(Declined, match="block_k must be a multiple of 32 keys in pairs, got 48"):
        RULE.apply(func, PAIRS, decision)


def test_the_inner_loops_hold_everything_in_registers():
    func = function([("b", "s", 36 * 64)], narrow(12, 12, 64, packed=True, causal=True))
    found = k_loops(compiled(func, PAIRS), "vdpbf16ps")
    products = [loop for loop in found if loop["vdpbf16ps"] >= 8 and loop["all"] <= 2.5 * loop["vdpbf16ps"]]
    assert len(products) >= 2, found
    assert not any(loop["vector"] for loop in products)


def test_products_must_be_a_known_kind():
    with pytest.raises(ValueError, match="products must be one of float32, tf32, bfloat16, got 'int8'"):
        function([("b", "s", 192)], {**narrow(2, 2, 32, packed=True), "products": "int8"})
