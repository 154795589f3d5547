"""The decode_attention rule: numbers against float64, declines, the decision space, and the code it becomes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from covering import covering
from test_flash_attention import CONFIG, TARGETS, Attention, attributes, check, function, normal, target  # noqa: F401

from halo_tvm.errors import Declined
from halo_tvm.passes.schedule import rule_for
from halo_tvm.tir_schedules import RULES

RULE = RULES["decode_attention"]
KEYS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 300, 1000)


def compiled(func, target, decision=None):  # noqa: F811
    func = RULE.apply(func, target, decision or RULE.default(func, target))
    assert func.attrs["tirx.is_scheduled"]
    with tvm.transform.PassContext(config=CONFIG):
        return tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target.tvm)


def cached(s, h, h_kv, d, **attrs):
    """A call over caches of `t` keys with lengths as data: its function and its attributes."""
    attrs = attributes(h, h_kv, d, has_lengths=True, **attrs)
    shapes = [("b", s, h, d), *[("b", "t", h_kv, d)] * 2, ("b",)]
    return function(shapes, attrs, ["float32"] * 3 + ["int32"]), attrs


def hidden(arrays, lengths):
    """Caches whose rows behind the valid ones are NaN: nothing may come of them."""
    for x in arrays[1:]:
        for n, length in enumerate(lengths):
            x[n, max(0, length) :] = np.nan
    return arrays


def check_cached(run, arrays, lengths, attrs):
    """As `check`; the reference sees zeros where the kernel sees NaN."""
    q, k, v = arrays
    lengths = np.array(lengths, "int32")
    exact = Attention.reference(*(x.astype("float64") for x in (q, k, v)), lengths, **attrs)
    spoiled = hidden([q, k.copy(), v.copy()], lengths)
    out = tvm.runtime.tensor(np.full(exact.shape, np.nan, "float32"))
    run["main"](*map(tvm.runtime.tensor, [*spoiled, lengths]), out)
    assert np.abs(out.numpy() - exact).max() < 2e-6, (q.shape, k.shape, lengths)


SEEN = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 20},
    "softcap": {"softcap": 2.0},
}


@pytest.mark.parametrize("s", [1, 8])
@pytest.mark.parametrize("name", SEEN)
def test_symbolic_keys(target, name, s):  # noqa: F811
    attrs = attributes(2, 1, 32, **SEEN[name])
    run = compiled(function([("b", s, 2, 32), *[("b", "t", 1, 32)] * 2], attrs), target)
    for t in KEYS:
        b = 1 + 2 * (t == 17)
        check(run, normal((b, s, 2, 32), *[(b, t, 1, 32)] * 2), attrs)


@pytest.mark.parametrize(("heads", "s"), [((1, 1), 4), ((12, 12), 1), ((5, 1), 1), ((12, 2), 1), ((6, 2), 3)])
def test_lengths(target, heads, s):  # noqa: F811
    func, attrs = cached(s, *heads, 16, causal=True)
    run = compiled(func, target)
    for t, lengths in ((40, (40, 3, 17)), (128, (0, 1, 128)), (700, (650, 64, 129)), (33, (-5, 99, 32))):
        arrays = normal((3, s, heads[0], 16), *[(3, t, heads[1], 16)] * 2)
        check_cached(run, arrays, lengths, attrs)


@pytest.mark.parametrize("d", [16, 80, 256])
def test_head_sizes_static(target, d):  # noqa: F811
    attrs = attributes(4, 2, d, causal=True)
    arrays = normal((2, 1, 4, d), *[(2, 77, 2, d)] * 2)
    check(compiled(function([x.shape for x in arrays], attrs), target), arrays, attrs)


@pytest.mark.parametrize("ones", [(1, 0, 0), (0, 1, 1)])
def test_bias(target, ones):  # noqa: F811
    attrs = attributes(2, 2, 16, has_bias=True)
    shape = (*(1 if one else dim for one, dim in zip(ones, ("b", 2, 3))), "t")
    run = compiled(function([("b", 3, 2, 16), *[("b", "t", 2, 16)] * 2, shape], attrs), target)
    for t in (1, 33, 100, 200):
        bias = tuple({"b": 3, "t": t}.get(x, x) for x in shape)
        check(run, normal((3, 3, 2, 16), *[(3, t, 2, 16)] * 2, bias), attrs)


def test_all_features_at_once(target):  # noqa: F811
    attrs = attributes(4, 2, 32, causal=True, window=30, softcap=5.0, has_bias=True, has_lengths=True)
    shapes = [("b", 2, 4, 32), *[("b", "t", 2, 32)] * 2, (1, 4, 1, "t"), ("b",)]
    run = compiled(function(shapes, attrs, [*["float32"] * 4, "int32"]), target)
    for t in KEYS:
        arrays = normal((2, 2, 4, 32), *[(2, t, 2, 32)] * 2, (1, 4, 1, t))
        check(run, [*arrays, np.array([t, t // 2], "int32")], attrs)


def test_far_scores_do_not_overflow(target):  # noqa: F811
    attrs = {**attributes(1, 1, 16), "scale": 30.0}
    check(compiled(function([(1, 1, 1, 16), *[(1, 400, 1, 16)] * 2], attrs), target),
          normal((1, 1, 1, 16), *[(1, 400, 1, 16)] * 2), attrs, tolerance=2e-4)  # fmt: skip


def test_every_decision_on_an_odd_shape(target):  # noqa: F811
    func, attrs = cached(2, 6, 3, 48, causal=True)
    space = RULE.space(func, target)
    assert space[0] == RULE.default(func, target) and len(set(space)) == len(space) >= 6
    arrays = normal((2, 2, 6, 48), *[(2, 701, 3, 48)] * 2)
    for decision in covering(space):
        check_cached(compiled(func, target, decision), arrays, (701, 590), attrs)


def test_it_takes_few_queries_and_leaves_the_rest_to_flash_attention():
    target = TARGETS["avx512"]  # noqa: F811
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
        target = replace(TARGETS["avx512"], cores=cores)  # noqa: F811
        decision = replace(RULE.default(func, target), **fields)
        return RULE.estimate(func, target, decision, {b: 1, t: keys})

    times = [estimated(keys) for keys in (16, 128, 1024, 8192)]
    assert times == sorted(times) and times[-1] > 6 * times[-2]
    assert estimated(8192, splits=1) > 1.8 * estimated(8192), "one task leaves the other core idle"
    assert estimated(8192, cores=8) < 0.5 * estimated(8192)


# ---- the code ----


def inner_loops(assembly):
    """The instructions of every innermost loop: what lies between a label and a jump back to it."""
    lines = assembly.split("\n")
    places = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\.L\w+):", line))}
    for i, line in enumerate(lines):
        m = re.match(r"\s+j\w+\s+(\.L\w+)", line)
        if m and (start := places.get(m[1], i)) < i:
            body = [x.strip() for x in lines[start + 1 : i + 1]]
            if not any(x.startswith(".L") for x in body):
                yield [x for x in body if x and not x.startswith(("#", "."))]


def counts(body):
    """(instructions, fused multiply-adds, accesses of the stack by vectors)"""
    spills = [x for x in body if "(%rsp" in x and "mm" in x]
    return len(body), sum(x.startswith("vfmadd") for x in body), len(spills)


def test_no_call_into_the_mathematical_library(target):  # noqa: F811
    assembly = compiled(cached(1, 2, 2, 64, softcap=3.0)[0], target).mod.inspect_source("asm")
    assert not re.search(r"\b(exp2?f?|tanhf?|powf?|nearbyintf?|fmaxf?)(@PLT|\b)", assembly)
    assert "vfmadd" in assembly


def test_the_inner_loops_hold_everything_in_registers(target):  # noqa: F811
    """12 heads of 64: products of a tile of keys (all 64 in straight code), then the values, two keys a turn."""
    func, _ = cached(1, 12, 12, 64, causal=True)
    found = [counts(body) for body in inner_loops(compiled(func, target).mod.inspect_source("asm"))]
    scores = [c for c in found if c[1] == 64]
    assert scores and all(spills == 0 for *_, spills in scores)
    assert min(instructions for instructions, *_ in scores) <= 140, "64 FMAs, 15 sums of 2 shuffles each, loads"
    values = [c for c in found if c[0] < 1.9 * c[1]]
    assert values and all(spills == 0 for *_, spills in values), found
