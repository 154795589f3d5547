"""halo.kv_append: in place through the whole pipeline, decode steps against full attention, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from executables import executable_of
from graphs import context_of, small_model
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from halo_tvm.build import planned_bytes
from halo_tvm.errors import UnsupportedModel
from halo_tvm.imported import InputSpec
from halo_tvm.in_process import compile_in_process
from halo_tvm.passes import pipeline
from halo_tvm.passes.check_caches import CheckCaches
from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.passes.weights import param_names
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.runtime.tensors import aligned_empty
from halo_tvm.targets import resolve

pytestmark = pytest.mark.covering

Append = OPERATORS["kv_append"]
H, H_KV, D, CAPACITY = 4, 2, 32, 24
WIDTH = (H + 2 * H_KV) * D
ATTRS = {"num_heads": H, "num_kv_heads": H_KV, "head_dim": D, "scale": D**-0.5, "causal": True}


def optimised(model, level=3):
    context = context_of(model)
    steps = pipeline.Pipeline.of(level)
    mod, _ = steps.run(pipeline.LIFT, model.mod, context)
    return steps.run(pipeline.OPTIMISE, mod, context)


class Compiled:
    """A model through every phase; `calls` keep tensors of the VM, so that a cache written in place stays."""

    def __init__(self, model, level=3, plan=True):
        target = resolve("cpu")
        self.mod, self.reports = schedule_functions(optimised(model, level)[0], target)
        executable = executable_of(self.mod, target, plan)
        weights = [tvm.runtime.tensor(model.params.materialise(name)) for name in param_names(self.mod["main"])]
        main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        self.call = lambda *inputs: main(*inputs, *weights)


def step_model(s, b="b"):
    """One attention layer with caches as inputs and results: x [b, s, 64] -> y [b, s, h, d]."""
    cache = (b, CAPACITY, H_KV, D)
    inputs = [
        InputSpec("x", (b, s, 64), "float32"),
        InputSpec("keys", cache, "float32"),
        InputSpec("values", cache, "float32"),
        InputSpec("before", (b,), "int32"),
        InputSpec("after", (b,), "int32"),
    ]

    def body(m):
        rows, length = m.inputs["x"].ty.shape.values[:2]
        qkv = m.linear(m.inputs["x"], "qkv", 64, WIDTH, gain=1.5)
        q, k, v = m.emit(relax.op.split(qkv, [H * D, (H + H_KV) * D], axis=-1)), None, None
        q, k, v = (m.emit(q[i]) for i in range(3))
        q = m.emit(relax.op.reshape(q, (rows, length, H, D)))
        k, v = (m.emit(relax.op.reshape(x, (rows, length, H_KV, D))) for x in (k, v))
        keys = m.op("kv_append", m.inputs["keys"], k, m.inputs["before"])
        values = m.op("kv_append", m.inputs["values"], v, m.inputs["before"])
        y = m.op("attention", q, keys, values, m.inputs["after"], has_lengths=True, **ATTRS)
        return {"y": y, "new_keys": keys, "new_values": values}

    return small_model(inputs, body, b=(1, 4), s=(1, 24))


def whole(model, x):
    """Attention over all of `x` at once, in float64."""
    weight, bias = (model.params.materialise(f"qkv.{n}").astype("float64") for n in ("weight", "bias"))
    qkv = x.astype("float64") @ weight.T + bias
    return OPERATORS["attention"].reference(qkv, **ATTRS, packed=True)


@pytest.mark.slow
def test_prefill_and_decode_steps_equal_attention_over_everything():
    prefill, decode = step_model("s"), step_model(1)
    runs = {"prefill": Compiled(prefill), "decode": Compiled(decode)}
    rng = np.random.default_rng(0)
    lengths = np.array([7, 7], "int32")
    x = rng.standard_normal((2, 7 + 5, 64)).astype("float32")
    expected = whole(prefill, x)
    keys, values = (tvm.runtime.tensor(np.full((2, CAPACITY, H_KV, D), np.nan, "float32")) for _ in range(2))
    tensor = tvm.runtime.tensor
    y, keys_out, _ = runs["prefill"].call(tensor(x[:, :7]), keys, values, tensor(0 * lengths), tensor(lengths))
    assert np.abs(y.numpy() - expected[:, :7]).max() < 1e-5
    assert np.from_dlpack(keys_out).ctypes.data == np.from_dlpack(keys).ctypes.data, (
        "the result is the cache itself, not a copy"
    )
    for i in range(5):
        before, after = tensor(lengths + i), tensor(lengths + i + 1)
        y, keys, values = runs["decode"].call(tensor(x[:, 7 + i : 8 + i]), keys, values, before, after)
        assert np.abs(y.numpy() - expected[:, 7 + i : 8 + i]).max() < 1e-5, f"step {i}"


def test_batch_rows_of_different_lengths():
    model = step_model(1)
    run, tensor = Compiled(model), tvm.runtime.tensor
    rng = np.random.default_rng(1)
    lengths = [5, 0, 12]
    xs = [rng.standard_normal((1, n + 1, 64)).astype("float32") for n in lengths]
    keys, values = (tensor(np.full((3, CAPACITY, H_KV, D), np.nan, "float32")) for _ in range(2))
    for i in range(13):  # a row that is not there yet repeats its last token at its last place
        at = np.minimum(i, lengths).astype("int32")
        x = np.stack([row[0, j : j + 1] for row, j in zip(xs, at)])
        y, keys, values = run.call(tensor(x), keys, values, tensor(at), tensor(at + 1))
    for n, row in enumerate(xs):
        assert np.abs(y.numpy()[n] - whole(model, row)[0, -1:]).max() < 1e-5


def test_rows_outside_of_the_capacity_are_left_out():
    """Behind the last row of one batch row the next one's cache begins, or somebody else's memory."""
    inputs = [
        InputSpec("cache", ("b", 4, 1, 8), "float32"),
        InputSpec("new", ("b", "s", 1, 8), "float32"),
        InputSpec("lengths", ("b",), "int32"),
    ]
    model = small_model(inputs, lambda m: {"y": m.op("kv_append", *m.inputs.values())}, b=(1, 4), s=(1, 4))
    cache = np.zeros((4, 4, 1, 8), "float32")
    cache[:, :, 0] = np.arange(16).reshape(4, 4, 1)
    new = np.full((4, 2, 1, 8), -1, "float32")
    lengths = np.array([4, 3, -1, 2], "int32")
    expected = cache.copy()
    expected[1, 3], expected[2, 0], expected[3, 2:] = -1, -1, -1
    np.testing.assert_array_equal(Append.reference(cache.copy(), new, lengths), expected)
    found = Compiled(model).call(*map(tvm.runtime.tensor, (cache, new, lengths)))
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("plan", [False, True])
def test_a_computed_cache_is_written_in_place(level, plan):
    """The appended cache is an activation: its memory must not be given to anybody before its last use."""
    cache, new = (2, 6, 1, 8), (2, 1, 1, 8)
    specs = [InputSpec("cache", cache, "float32"), InputSpec("new", new, "float32"), InputSpec("at", (2,), "int32")]

    def body(m):
        doubled = m.emit(relax.op.add(m.inputs["cache"], m.inputs["cache"]))
        appended = m.op("kv_append", doubled, m.inputs["new"], m.inputs["at"])
        other = m.emit(relax.op.sum(m.inputs["cache"], axis=[1], keepdims=True))  # wants memory in between
        other = m.emit(relax.op.multiply(m.emit(relax.op.exp(other)), m.inputs["new"]))
        return {"y": m.emit(relax.op.add(m.emit(relax.op.sin(appended)), other))}

    model = small_model(specs, body)
    run = Compiled(model, level, plan)
    rng = np.random.default_rng(2)
    a, b, at = rng.standard_normal(cache), rng.standard_normal(new), np.array([3, 5], "int32")
    given = [tvm.runtime.tensor(x.astype("float32")) for x in (a, b)]
    found = run.call(*given, tvm.runtime.tensor(at)).numpy()
    exact = np.sin(Append.reference(2 * a, b, at)) + np.exp(a.sum(1, keepdims=True)) * b
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(given[0].numpy(), a.astype("float32"), "an input that is not appended to stays")


def test_no_copy_of_a_cache_is_planned():
    model = step_model(1, b=1)
    mod, reports = optimised(model)
    assert reports["check_caches"] == {"appends": 2}
    assert "R.call_tir_inplace(" in mod.script()
    assert planned_bytes(mod, False, model.ranges, model.typical) < 4 * CAPACITY * H_KV * D


def model_of(body, s=1):
    cache = (1, 6, 1, 8)
    specs = [InputSpec("cache", cache, "float32"), InputSpec("new", (1, s, 1, 8), "float32")]
    return small_model([*specs, InputSpec("at", (1,), "int32")], body)


def append(m, cache=None):
    return m.op("kv_append", cache if cache is not None else m.inputs["cache"], m.inputs["new"], m.inputs["at"])


def test_a_callers_cache_is_never_written():
    program = compile_in_process(model_of(lambda m: {"y": append(m)}), threads=1, level=1)
    assert program.spec.written == ("cache",)
    cache = aligned_empty((1, 6, 1, 8), np.dtype("float32"))  # where kernels could write it without a copy
    cache[...] = 1
    found = program(cache, np.full((1, 1, 1, 8), 2, "float32"), np.array([3], "int32"))["y"]
    assert (cache == 1).all()
    assert found[0, :, 0, 0].tolist() == [1, 1, 1, 2, 1, 1]


def read_later(m):
    new = append(m)
    return {"y": m.emit(relax.op.add(m.emit(relax.op.exp(new)), m.emit(relax.op.exp(m.inputs["cache"]))))}


def appended_twice(m):
    return {
        "y": m.emit(
            relax.op.add(
                append(m),
                m.op(
                    "kv_append",
                    m.inputs["cache"],
                    m.inputs["new"],
                    m.emit(relax.op.add(m.inputs["at"], relax.const(1, "int32"))),
                ),
            )
        )
    }


def returned(m):
    return {"new": append(m), "old": m.inputs["cache"]}


def viewed(m):
    flat = m.emit(relax.op.reshape(m.inputs["cache"], (6, 8)))
    return {"new": append(m), "y": m.emit(relax.op.exp(flat))}


@pytest.mark.parametrize("body", [read_later, appended_twice, returned, viewed])
@pytest.mark.parametrize("level", [0, 3])
def test_a_later_use_of_the_old_value_is_refused(body, level):
    with pytest.raises(UnsupportedModel, match="behind halo.kv_append to take its result .*overwritten in place"):
        optimised(model_of(body), level)


def test_a_weight_is_not_appended_to():
    with pytest.raises(UnsupportedModel, match="found a constant or a weight, which it would overwrite"):
        optimised(model_of(lambda m: {"y": append(m, m.weight("w", (1, 6, 1, 8)))}))


CACHE = 'R.Tensor((1, 6, 1, 8), "float32")'
JOINED = """
@I.ir_module
class Module:
    @R.function
    def main(
        cache: {cache}, other: {cache}, new: R.Tensor((1, 1, 1, 8), "float32"), at: R.Tensor((1,), "int32"),
        cond: R.Tensor((), "bool"), weight: {cache}
    ) -> R.Tuple({cache}, {cache}):
        R.func_attr({{"num_input": 5}})
{chosen}
        appended: {cache} = R.halo.kv_append(chosen, new, at)
        y: {cache} = R.exp(cache)
        return (appended, y)
    @R.function
    def pick(x: {cache}, y: {cache}) -> {cache}:
        return y
"""
BRANCH = """
        if cond:
            chosen: {cache} = {first}
        else:
            chosen: {cache} = {second}
"""
CALL = """
        cls = Module
        chosen: {cache} = cls.pick(other, cache)
"""
READ = "found cache in y, which is the cache before it"


@pytest.mark.parametrize(
    ("chosen", "names", "message"),
    [
        (BRANCH, ("cache", "other"), READ),
        (BRANCH, ("other", "R.reshape(cache, R.shape([1, 6, 1, 8]))"), READ),
        (BRANCH, ("other", "weight"), "found a constant or a weight"),
        (BRANCH, ("other", "R.const(0.0)"), "found a constant or a weight"),
        (CALL, ("", ""), READ),
        (BRANCH, ("other", "R.exp(cache)"), None),
    ],
)
def test_a_cache_out_of_a_branch_or_a_function_is_the_cache(chosen, names, message):
    chosen = chosen.format(cache=CACHE, first=names[0], second=names[1]).replace(
        "R.const(0.0)", 'R.const(np.zeros((1, 6, 1, 8), "float32"))'
    )
    mod = tvm.script.from_source(JOINED.format(cache=CACHE, chosen=chosen), {"np": np, "R": R, "I": I})
    if message is None:
        assert CheckCaches()(mod, None)[1] == {"appends": 1}
    else:
        with pytest.raises(UnsupportedModel, match=message):
            CheckCaches()(mod, None)


def test_a_read_in_front_of_the_append_is_fine():
    def body(m):
        before = m.emit(relax.op.exp(m.inputs["cache"]))
        return {"y": m.emit(relax.op.add(append(m), before))}

    run = Compiled(model_of(body))
    a, b = np.random.default_rng(3).standard_normal((2, 1, 6, 1, 8)).astype("float32")
    b, at = b[:, :1], np.array([2], "int32")
    found = run.call(*map(tvm.runtime.tensor, (a, b, at))).numpy()
    np.testing.assert_allclose(found, Append.reference(a, b, at) + np.exp(a), rtol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        ([(1, 6, 8), (1, 1, 1, 8), (1,)], ["float32", "float32", "int32"], "cache must be a tensor of rank 4"),
        ([(1, 6, 2, 8), (1, 1, 1, 8), (1,)], ["float32", "float32", "int32"], r"new must be float32 of the shape"),
        ([(1, 6, 1, 8), (1, 1, 1, 8), (1,)], ["float32", "float16", "int32"], "new must be float32"),
        ([(1, 6, 1, 8), (1, 1, 1, 8), (1,)], ["float32", "float32", "int64"], "lengths must be int32"),
        ([(2, 6, 1, 8), (2, 1, 1, 8), (1,)], ["float32", "float32", "int32"], "one number per batch row"),
        ([(1, 6, 1, 8), (1, 1, 1, 8)], ["float32", "float32"], "3 arguments and no attributes expected, got 2"),
    ],
)
def test_type_rule_messages(shapes, dtypes, message):
    arguments = [relax.Var(f"x{i}", relax.TensorType(s, t)) for i, (s, t) in enumerate(zip(shapes, dtypes))]
    bb = relax.BlockBuilder()
    with pytest.raises(ValueError, match=message):
        with bb.function("main", arguments):
            bb.emit_func_output(bb.emit(Append.call(*arguments)))
