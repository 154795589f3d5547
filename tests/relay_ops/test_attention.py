"""halo.attention: meaning, type rule, cost and lifts."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from halo_tvm.passes.lift import apply_lift
from halo_tvm.relay_ops import OPERATORS

Attention = OPERATORS["attention"]
BASE = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25}


def module(types, attrs):
    arguments = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    bb = relax.BlockBuilder()
    with bb.function("main", arguments):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(Attention.call(*arguments, **attrs)))
        bb.emit_func_output(out)
    return bb.get()


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


@pytest.mark.parametrize("index", range(len(Attention.cases())))
@pytest.mark.sampled(10, 20)
def test_compute_agrees_with_reference(index):
    case = Attention.cases()[index]
    rng = np.random.default_rng(index)
    arrays = [x if isinstance(x, np.ndarray) else rng.standard_normal(x).astype("float32") for x in case["args"]]
    mod = relax.transform.LegalizeOps()(module([tensor(*x.shape, dtype=str(x.dtype)) for x in arrays], case["attrs"]))
    run = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())["main"]
    exact = Attention.reference(*[x.astype("float64") if x.dtype == "float32" else x for x in arrays], **case["attrs"])
    found = run(*[tvm.runtime.tensor(x) for x in arrays]).numpy()
    assert np.abs(found - exact).max() < 2e-6


def test_reference_is_plain_softmax():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 3, 1, 16)) for _ in range(3))
    attrs = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 16, "scale": 0.5}
    weights = np.exp(0.5 * q[0, :, 0] @ k[0, :, 0].T)
    expected = weights / weights.sum(-1, keepdims=True) @ v[0, :, 0]
    np.testing.assert_allclose(Attention.reference(q, k, v, **attrs)[0, :, 0], expected, rtol=1e-12)


def test_rows_without_a_visible_key_are_zero():
    ones = np.ones((1, 2, 1, 16), "float32")
    attrs = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 16, "scale": 1.0, "has_bias": True}
    for least in (-np.inf, np.finfo("float32").min):
        bias = np.array([[least, least], [0, least]], "float32")[None, None]
        out = Attention.reference(ones, ones, ones, bias, **attrs)
        assert (out[0, 0] == 0).all() and (out[0, 1] == 1).all()


def test_lengths_count_the_keys_of_a_cache():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, n, 2, 16)) for n in (3, 10, 10))
    attrs = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "causal": True}
    lengths = np.array([7, 10], "int32")
    found = Attention.reference(q, k, v, lengths, **attrs, has_lengths=True)
    for n, keys in enumerate(lengths):
        whole = Attention.reference(q[n : n + 1], k[n : n + 1, :keys], v[n : n + 1, :keys], **attrs)
        np.testing.assert_allclose(found[n : n + 1], whole, rtol=1e-12)


def test_flops_count_visible_pairs():
    shapes = [(2, 8, 4, 16), (2, 8, 2, 16), (2, 8, 2, 16)]
    assert Attention.flops(shapes, **BASE) == 4 * 2 * 4 * 16 * 64
    assert Attention.flops(shapes, **BASE, causal=True) == 4 * 2 * 4 * 16 * 36
    assert Attention.flops([(1, 4, 4, 16)] * 3, **BASE, causal=True, window=2) == 4 * 4 * 16 * 7


@pytest.mark.parametrize(
    ("types", "attrs", "message"),
    [
        ([tensor(1, 5, 4, 16)], {}, "3 arguments expected"),
        ([tensor(1, 5, 100)], {"packed": True}, r"qkv must have the shape \[\?, \?, 128\]"),
        ([tensor(1, 5, 4, 16), tensor(1, 5, 4, 16), tensor(1, 5, 2, 16)], {}, r"k must have the shape \[.*2, 16\]"),
        ([tensor(1, 5, 4, 16), tensor(1, 6, 2, 16), tensor(1, 5, 2, 16)], {}, "v must have the shape"),
        (
            [tensor(1, 5, 128)],
            {"packed": True, "num_kv_heads": 3},
            "num_heads must be a multiple of num_kv_heads, got 4 and 3",
        ),
        ([tensor(1, 5, 128)], {"packed": True, "window": -1}, "window must be positive"),
        ([tensor(1, 5, 128)], {"packed": True, "windows": 1}, r"unknown \['windows'\]"),
        ([tensor(1, 5, 128), tensor(1, 4)], {"packed": True, "has_key_mask": True}, "key_mask must have the shape"),
        (
            [tensor(1, 5, 128), tensor(1, 5, dtype="int8")],
            {"packed": True, "has_key_mask": True},
            "key_mask must be one of bool",
        ),
        (
            [tensor(1, 5, 128), tensor(1, 3, 5, 5)],
            {"packed": True, "has_bias": True},
            "bias must be float32 of the shape",
        ),
        (
            [tensor(1, 5, 128), tensor(1, dtype="int32")],
            {"packed": True, "has_lengths": True},
            "lengths count the keys of a cache, and packed=True has none",
        ),
        (
            [tensor(1, 5, 4, 16), *[tensor(1, 9, 2, 16)] * 2, tensor(2, dtype="int32")],
            {"has_lengths": True},
            "lengths must have the shape",
        ),
        (
            [tensor(1, 5, 4, 16), *[tensor(1, 9, 2, 16)] * 2, tensor(1, dtype="int64")],
            {"has_lengths": True},
            "lengths must be int32, got int64: cast it",
        ),
        ([tensor(1, 5, 128, dtype="int32")], {"packed": True}, "must be a float tensor"),
    ],
)
def test_type_rule_messages(types, attrs, message):
    with pytest.raises(ValueError, match=message):
        module(types, {**BASE, **attrs})


def decomposed(scale_on="scores", bias=False, key_axes=(0, 1, 3, 2), softmax_axis=-1, permuted=True):
    """Attention as exporters spell it, over q, k, v [2, s, 3, 16]."""
    op = relax.op
    arguments = [relax.Var(n, tensor(2, t, 3, 16)) for n, t in (("q", 5), ("k", 7), ("v", 7))]
    mask = relax.Var("mask", tensor(2, 1, 1, 7))
    bb = relax.BlockBuilder()
    with bb.function("main", [*arguments, mask]):
        with bb.dataflow():
            q = arguments[0]
            if scale_on == "view":
                q = bb.emit(op.multiply(q, relax.const(0.25, "float32")))
            q = bb.emit(op.permute_dims(q, [0, 2, 1, 3]))
            v = bb.emit(op.permute_dims(arguments[2], [0, 2, 1, 3]))
            if key_axes == (0, 2, 3, 1):
                k = bb.emit(op.permute_dims(arguments[1], list(key_axes)))
            else:
                k = bb.emit(op.permute_dims(bb.emit(op.permute_dims(arguments[1], [0, 2, 1, 3])), list(key_axes)))
            if scale_on == "both":
                q = bb.emit(op.multiply(q, relax.const(0.5, "float32")))
                k = bb.emit(op.multiply(k, relax.const(0.5, "float32")))
            scores = bb.emit(op.matmul(q, k))
            if scale_on == "scores":
                scores = bb.emit(op.multiply(scores, relax.const(0.25, "float32")))
            if scale_on == "divisor":
                scores = bb.emit(op.divide(scores, relax.const(4.0, "float32")))
            if scale_on == "vector":
                scores = bb.emit(op.multiply(scores, relax.const(np.full(7, 0.25, "float32"))))
            if bias:
                scores = bb.emit(op.add(scores, mask))
            out = bb.emit(op.matmul(bb.emit(op.nn.softmax(scores, axis=softmax_axis)), v))
            if permuted:
                out = bb.emit(op.permute_dims(out, [0, 2, 1, 3]))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    return bb.get()


def lift(mod):
    """`mod` with the lifts applied, largest benefit first, and what they said."""
    rejected = []
    for one in sorted(Attention.lifts(), key=lambda x: -x.benefit):
        mod, _ = apply_lift(mod, one, rejected)
    return mod, [entry["reason"] for entry in rejected if entry["lift"] != "attention.mask"]


@pytest.mark.parametrize("scale_on", ["scores", "divisor", "both", "view"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("key_axes", [(0, 1, 3, 2), (0, 2, 3, 1)])
@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.sampled(4, 8)
def test_lift_keeps_the_meaning(scale_on, bias, key_axes, permuted):
    before = decomposed(scale_on, bias, key_axes, permuted=permuted)
    after, said = lift(before)
    text = after.script()
    assert not said and "halo.attention" in text and "softmax" not in text and "multiply" not in text
    check_same(before, after)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softmax_axis": 2}, "the softmax must run over the last axis, got axis 2"),
        ({"scale_on": "vector"}, "the scale must be a scalar"),
    ],
)
def test_lift_rejections(options, message):
    after, said = lift(decomposed(**options))
    assert "halo.attention" not in after.script()
    assert any(message in reason for reason in said)


def check_same(before, after):
    """Both modules give one result."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal([int(d) for d in x.ty.shape.values]).astype("float32") for x in before["main"].params]
    results = []
    for mod in (before, after):
        executable = relax.build(relax.transform.LegalizeOps()(mod), "llvm")
        results.append(relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy())
    np.testing.assert_allclose(results[1], results[0], atol=2e-6)


def spelled(q, k, v, *, dtype="float32", more=lambda emit, **values: None, scale=0.25):
    """softmax(q k^T * scale) v over heads-first operands; `more` makes a second output of what is computed."""
    arguments = [relax.Var(n, tensor(*shape, dtype=dtype)) for n, shape in zip("qkv", (q, k, v))]
    bb = relax.BlockBuilder()
    with bb.function("main", arguments):
        with bb.dataflow():
            axes = [*range(len(k) - 2), len(k) - 1, len(k) - 2]
            dots = bb.emit(relax.op.matmul(arguments[0], bb.emit(relax.op.permute_dims(arguments[1], axes))))
            weights = bb.emit(relax.op.nn.softmax(bb.emit(relax.op.multiply(dots, relax.const(scale, dtype)))))
            out = bb.emit_output(relax.op.matmul(weights, arguments[2]))
            second = more(bb.emit_output, dots=dots, weights=weights)
        bb.emit_func_output(out if second is None else [out, second])
    return bb.get()


@pytest.mark.parametrize(
    ("q", "keys", "wanted"),
    [
        ((2, 4, 5, 16), (2, 1, 7, 16), "num_kv_heads=1"),
        ((2, 3, 4, 5, 16), (2, 3, 4, 7, 16), "num_heads=4"),
        ((2, 1, 3, 4, 5, 16), (2, 1, 3, 4, 7, 16), "num_heads=4"),
    ],
)
def test_shared_heads_and_groups_of_windows_are_of_the_operator(q, keys, wanted):
    before = spelled(q, keys, keys)
    after, said = lift(before)
    assert not said and wanted in after.script() and "softmax" not in after.script()
    check_same(before, after)


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((2, 4, 5, 16), (1, 4, 7, 16), (1, 4, 7, 16)), {}, "q, k and v must have one batch size"),
        (((2, 5, 16), (1, 7, 16), (1, 7, 16)), {}, "q, k and v must have one batch size"),
        (((tirx.Var("b", "int64"), 5, 16), (1, 7, 16), (1, 7, 16)), {}, "q, k and v must have one batch size, got b"),
        (((2, 4, 5, 16), (2, 4, 7, 16), (2, 1, 7, 16)), {}, "k and v must have the 4 heads of q or one, got 4 and 1"),
        (((2, 1, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16)), {}, "k and v must have the 1 heads of q or one"),
        (((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 32)), {}, "one head size, got 16 and 32"),
        (((2, 3, 4, 5, 16), (2, 1, 4, 7, 16), (2, 1, 4, 7, 16)), {}, "of rank 5 must have the leading sizes 2, 3, 4"),
        (((2, 4, 5, 16),) * 3, {"dtype": "float64"}, "accumulates in float32"),
        (((2, 4, 5, 16),) * 3, {"more": lambda emit, weights, **_: emit(weights)}, "is used elsewhere too"),
        (((2, 4, 5, 16),) * 3, {"more": lambda emit, dots, **_: emit(relax.op.exp(dots))}, "is used elsewhere too"),
    ],
)
def test_what_the_operator_cannot_express_is_rejected(shapes, options, message):
    after, said = lift(spelled(*shapes, **options))
    assert "halo.attention" not in after.script()
    assert any(message in reason for reason in said), said


def gathered(heads: str, rank: int, extra: str):
    """Attention of 4 query heads over 2 of keys and values [2, 2, 7, 16], as exporters repeat and mask them."""
    op = relax.op
    arguments = [
        relax.Var(n, tensor(*s)) for n, s in (("q", (2, 4, 5, 16)), ("k", (2, 2, 7, 16)), ("v", (2, 2, 7, 16)))
    ]
    mask = relax.Var("mask", tensor(2, 1, 1, 7, dtype="bool"))
    bb = relax.BlockBuilder()

    def repeated(x):
        if heads == "repeat":
            return bb.emit(op.repeat(x, 2, 1))
        wide = bb.emit(op.broadcast_to(bb.emit(op.expand_dims(x, 2)), [2, 2, 2, 7, 16]))
        return bb.emit(op.reshape(wide, [2, 4, 7, 16]))

    with bb.function("main", [*arguments, mask]):
        with bb.dataflow():
            q, k, v = arguments[0], repeated(arguments[1]), repeated(arguments[2])
            if rank == 3:
                q, k, v = (bb.emit(op.reshape(x, [8, *x.ty.shape.values[2:]])) for x in (q, k, v))
            axes = [0, 1, 3, 2] if rank == 4 else [0, 2, 1]
            scores = bb.emit(op.multiply(bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, axes)))), relax.const(0.25)))
            if rank == 3:
                scores = bb.emit(op.reshape(scores, [2, 4, 5, 7]))
            if extra == "softcap":
                capped = bb.emit(op.tanh(bb.emit(op.divide(scores, relax.const(20.0)))))
                scores = bb.emit(op.multiply(capped, relax.const(20.0)))
            if extra in ("where", "guard"):
                scores = bb.emit(op.where(mask, scores, relax.const(float("-inf") if extra == "guard" else -3e38)))
            weights = bb.emit(op.nn.softmax(scores))
            if extra == "guard":
                weights = bb.emit(op.where(bb.emit(op.isnan(weights)), relax.const(0.0), weights))
            if rank == 3:
                weights = bb.emit(op.reshape(weights, [8, 5, 7]))
            out = bb.emit_output(op.matmul(weights, v))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize(
    ("heads", "rank", "extra", "wanted"),
    [
        ("expand", 4, "where", ["has_key_mask=True"]),
        ("repeat", 4, "guard", ["has_key_mask=True"]),
        ("expand", 3, "", []),
        ("repeat", 3, "where", ["has_key_mask=True"]),
        ("expand", 4, "softcap", ["softcap=20.0"]),
    ],
)
@pytest.mark.sampled(3)
def test_heads_masks_and_ranks_of_exporters(heads, rank, extra, wanted):
    before = gathered(heads, rank, extra)
    after, said = lift(before)
    text = after.script()
    assert not said and "softmax" not in text and all(w in text for w in ["num_kv_heads=2", *wanted])
    assert "R.repeat" not in text and "has_bias" not in text
    rng = np.random.default_rng(5)
    arrays = [
        rng.standard_normal([int(d) for d in x.ty.shape.values]).astype("float32") for x in before["main"].params[:3]
    ]
    mask = np.ones((2, 1, 1, 7), bool)
    mask[1, ..., 4:] = False
    results = []
    for mod in (before, after):
        executable = relax.build(relax.transform.LegalizeOps()(mod), "llvm")
        main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        results.append(main(*map(tvm.runtime.tensor, (*arrays, mask))).numpy())
    np.testing.assert_allclose(results[1], results[0], atol=2e-6)
