"""The decode_attention rule: numbers against float64, declines, the decision space, and the code it becomes."""

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
from halo_tvm.passes.schedule import rule_for
from halo_tvm.relay_ops.parts.kept_rows import kept as as_kept
from halo_tvm.relay_ops.parts.kept_rows import kept_columns
from halo_tvm.tir_schedules import RULES

pytestmark = pytest.mark.covering

RULE = RULES["decode_attention"]
KEYS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 300, 1000)
compiled = partial(compiled_by, RULE)


def cached(s, h, h_kv, d, kept="float32", **attrs):
    """A call over caches of `t` keys with lengths as data: its function and its attributes."""
    attrs = attributes(h, h_kv, d, has_lengths=True, **attrs)
    shapes = [("b", s, h, d), *[("b", "t", h_kv, kept_columns(d, kept))] * 2, ("b",)]
    return function(shapes, attrs, ["float32", kept, kept, "int32"]), attrs


@pytest.mark.parametrize("s", [1, 8])
@pytest.mark.parametrize("name", SEEN)
def test_symbolic_keys(target, name, s):
    attrs = attributes(2, 1, 32, **SEEN[name])
    run = compiled(function([("b", s, 2, 32), *[("b", "t", 1, 32)] * 2], attrs), target)
    for t in KEYS:
        b = 1 + 2 * (t == 17)
        check(run, normal((b, s, 2, 32), *[(b, t, 1, 32)] * 2), attrs)


@pytest.mark.parametrize("kept", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("heads", "s"), [((1, 1), 4), ((12, 12), 1), ((5, 1), 1), ((12, 2), 1), ((6, 2), 3)])
def test_lengths(target, heads, s, kept):
    func, attrs = cached(s, *heads, 16, kept, causal=True)
    run = compiled(func, target)
    for t, lengths in ((40, (40, 3, 17)), (128, (0, 1, 128)), (700, (650, 64, 129)), (33, (-5, 99, 32))):
        q, *caches = normal((3, s, heads[0], 16), *[(3, t, heads[1], 16)] * 2)
        check(run, of_a_cache([q, *(as_kept(x, np.dtype(kept)) for x in caches)], lengths), attrs)


@pytest.mark.parametrize("more", [{}, {"softcap": 2.0}], ids=["plain", "softcap"])
def test_a_nan_stays(target, more):
    attrs = attributes(2, 1, 16, **more)
    run = compiled(function([("b", 1, 2, 16), *[("b", "t", 1, 16)] * 2], attrs), target)
    for t in (21, 150):
        check_nan_stays(run, normal((2, 1, 2, 16), *[(2, t, 1, 16)] * 2), attrs)


@pytest.mark.parametrize("d", [16, 80, 256, 592])
def test_head_sizes_static(target, d):
    attrs = attributes(4, 2, d, causal=True)
    arrays = normal((2, 1, 4, d), *[(2, 77, 2, d)] * 2)
    check(compiled(function([x.shape for x in arrays], attrs), target), arrays, attrs)


@pytest.mark.parametrize("s", [1, 3])
def test_sinks(target, s):
    """Far below the scores, among them, and far above; counted once, however many tasks divide the keys."""
    attrs = attributes(4, 2, 16, causal=True, window=200, has_sinks=True, has_lengths=True)
    shapes = [("b", s, 4, 16), *[("b", "t", 2, 16)] * 2, (4,), ("b",)]
    run = compiled(function(shapes, attrs, [*["float32"] * 4, "int32"]), target)
    sinks = np.array([-90, -1, 1, 30], np.float32)
    for t, lengths in ((40, (40, 3)), (700, (650, 0))):
        q, *caches = normal((2, s, 4, 16), *[(2, t, 2, 16)] * 2)
        check(run, [q, *caches, sinks, np.array(lengths, np.int32)], attrs)


@pytest.mark.parametrize("ones", [(1, 0, 0), (0, 1, 1)])
def test_bias(target, ones):
    attrs = attributes(2, 2, 16, has_bias=True)
    shape = (*(1 if one else dim for one, dim in zip(ones, ("b", 2, 3))), "t")
    run = compiled(function([("b", 3, 2, 16), *[("b", "t", 2, 16)] * 2, shape], attrs), target)
    for t in (1, 33, 100, 200):
        bias = tuple({"b": 3, "t": t}.get(x, x) for x in shape)
        check(run, normal((3, 3, 2, 16), *[(3, t, 2, 16)] * 2, bias), attrs)


def test_all_features_at_once(target):
    attrs = attributes(4, 2, 32, causal=True, window=30, softcap=5.0, has_bias=True, has_lengths=True)
    shapes = [("b", 2, 4, 32), *[("b", "t", 2, 32)] * 2, (1, 4, 1, "t"), ("b",)]
    run = compiled(function(shapes, attrs, [*["float32"] * 4, "int32"]), target)
    for t in KEYS:
        arrays = normal((2, 2, 4, 32), *[(2, t, 2, 32)] * 2, (1, 4, 1, t))
        check(run, [*arrays, np.array([t, t // 2], "int32")], attrs)


def test_far_scores_do_not_overflow(target):
    attrs = {**attributes(1, 1, 16), "scale": 30.0}
    check(
        compiled(function([(1, 1, 1, 16), *[(1, 400, 1, 16)] * 2], attrs), target),
        normal((1, 1, 1, 16), *[(1, 400, 1, 16)] * 2),
        attrs,
        tolerance=2e-4,
    )


@pytest.mark.slow
def test_every_decision_on_an_odd_shape(target):
    func, attrs = cached(2, 6, 3, 48, causal=True)
    space = RULE.space(func, target)
    assert space[0] == RULE.default(func, target) and len(set(space)) == len(space) >= 6
    arrays = of_a_cache(normal((2, 2, 6, 48), *[(2, 701, 3, 48)] * 2), (701, 590))
    for decision in covering(space):
        check(compiled(func, target, decision), arrays, attrs)


def test_it_takes_few_queries_and_leaves_the_rest_to_flash_attention():
    target = TARGETS["avx512"]
    attrs = attributes(2, 2, 32, causal=True)
    for s, rule in ((1, "decode_attention"), (8, "decode_attention"), (9, "flash_attention"), ("s", "flash_attention")):
        func = function([("b", s, 2, 32), *[("b", "t", 2, 32)] * 2], attrs)
        assert rule_for(func, target).rule.name == rule


@pytest.mark.parametrize(
    ("shapes", "more", "dtypes", "message"),
    [
        ([(1, "s", 2, 32), *[(1, "t", 2, 32)] * 2], {}, None, "serves 1 to 8 queries, known when compiling, got s"),
        ([(1, 9, 2, 32), *[(1, "t", 2, 32)] * 2], {}, None, "serves 1 to 8 queries, known when compiling, got 9"),
        ([(1, 1, 6 * 32)], {"packed": True}, None, "serves separate q, k and v, not packed ones"),
        (
            [(1, 1, 2, 32), *[(1, "t", 2, 32)] * 2, (1, "t")],
            {"has_key_mask": True},
            [*["float32"] * 3, "bool"],
            "serves lengths, not key masks",
        ),
        ([(1, 1, 2, 32), *[(1, "t", 2, 32)] * 2], {}, ["float16"] * 3, "serves float32, Q is float16"),
    ],
)
def test_declines(shapes, more, dtypes, message):
    func = function(shapes, attributes(2, 2, 32, **more), dtypes)
    with pytest.raises(Declined, match=message):
        RULE.default(func, TARGETS["avx2"])


def test_declines_a_chunk_of_no_whole_tiles():
    func = function([(1, 1, 2, 32), *[(1, 90, 2, 32)] * 2], attributes(2, 2, 32))
    with pytest.raises(Declined, match="chunk must be a multiple of the 16 keys of a tile, got 40"):
        RULE.apply(func, TARGETS["avx512"], replace(RULE.default(func, TARGETS["avx512"]), chunk=40))


def test_tuning_times_full_caches():
    """0 and 1, which other integers are, would be the time of an empty cache."""
    from halo_tvm.tuning.measure.inputs import Arguments, Weights

    func, _ = cached(1, 4, 2, 16)
    given = Arguments(func, [2, 37], [4], Weights(func, [], 0, 0), 0).one()
    assert given[1].shape == (2, 37, 2, 16) and given[3].numpy().tolist() == [37, 37]


def test_estimates_grow_with_the_keys_and_know_idle_cores():
    func, _ = cached(1, 12, 12, 64, causal=True)
    b, t = func.params[1].ty.shape[:2]

    def estimated(keys, cores=2, **fields):
        target = replace(TARGETS["avx512"], cores=cores)
        decision = replace(RULE.default(func, target), **fields)
        return RULE.estimate(func, target, decision, {b: 1, t: keys})

    times = [estimated(keys) for keys in (16, 128, 1024, 8192)]
    assert times == sorted(times) and times[-1] > 6 * times[-2]
    assert estimated(8192, splits=1) > 1.8 * estimated(8192), "one task leaves the other core idle"
    assert estimated(8192, cores=8) < 0.5 * estimated(8192)


# ---- the code ----


def test_no_call_into_the_mathematical_library(target):
    assembly = compiled(cached(1, 2, 2, 64, softcap=3.0)[0], target).mod.inspect_source("asm")
    assert not re.search(r"\b(exp2?f?|tanhf?|powf?|nearbyintf?|fmaxf?)(@PLT|\b)", assembly)
    assert "vfmadd" in assembly


def test_a_narrow_cache_is_widened_in_vectors(target):
    """Grouped heads, as in a step of a language model: whole registers are read, no number alone."""
    assembly = compiled(cached(1, 9, 3, 64, "float16", causal=True)[0], target).mod.inspect_source("asm")
    widened = re.findall(r"vcvtph2ps\s+(.*)", assembly)
    assert len(widened) >= 16 and all(re.search(r"%[yz]mm\d+$", operands) for operands in widened), widened
    assert not re.search(r"(call|jmp)q?\s+\S*(extendhfsf2|truncsfhf2|h2f|f2h)", assembly)
    assembly = compiled(cached(1, 9, 3, 64, "int8", causal=True)[0], target).mod.inspect_source("asm")
    widened = re.findall(r"vpmovsxbd\s+(.*)", assembly)
    assert len(widened) >= 16 and all(re.search(r"%[yz]mm\d+$", operands) for operands in widened), widened


def test_the_inner_loops_hold_everything_in_registers(target):
    """12 heads of 64: products of a tile of keys (all 64 in straight code), then the values, two keys a turn."""
    func, _ = cached(1, 12, 12, 64, causal=True)
    found = k_loops(compiled(func, target), "vfmadd")
    scores = [loop for loop in found if loop["vfmadd"] == 64]
    assert scores and not any(loop["vector"] for loop in scores)
    assert min(loop["all"] for loop in scores) <= 140, "64 FMAs, 15 sums of 2 shuffles each, loads"
    values = [loop for loop in found if loop["all"] < 1.9 * loop["vfmadd"]]
    assert values and not any(loop["vector"] for loop in values), found
