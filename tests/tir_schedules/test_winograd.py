"""The rule for convolutions by minimal filtering: right for every shape and decision, products in registers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
from assembly import k_loops
from linear_functions import skip_unless_runs
from window_functions import Case, build_all, check, check_decisions, fused

from halo_tvm.errors import Declined
from halo_tvm.relay_ops.convolution_integer_winograd import MOST_PRODUCTS, ConvolutionIntegerWinograd
from halo_tvm.relay_ops.convolution_winograd import ConvolutionWinograd
from halo_tvm.targets import resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.weight_windows import pack_winograd, pack_winograd_integers

RULE = RULES["convolution_winograd"]
TARGET = resolve("cpu", cores=2)


def windows(shape, front, **more) -> tuple[int, dict[str, object]]:
    """How many axes are in tiles, and attributes; `front`: the kernel's axes in front, their strides and dilations."""
    axes = len(shape) - 2 - len(front)
    kernel, strides, dilations = ((*(f[i] for f in front), *[last] * axes) for i, last in enumerate((3, 1, 1)))
    return axes, {"strides": strides, "dilations": dilations, "kernel": kernel, **more}


def conv(shape, m, pads=(1, 1, 1, 1), front=(), vectors=2, target=TARGET, **fields) -> Case:
    axes, attrs = windows(shape, front, pads=pads, n=m)
    weight = np.random.default_rng(0).standard_normal((m, shape[-1], *attrs["kernel"]), dtype=np.float32)
    weight /= np.float32(np.sqrt(weight[0].size))
    packed = pack_winograd(weight, axes=axes, nr=vectors * target.lanes_f32)
    return Case(ConvolutionWinograd, shape, attrs, (packed,), **fields)


def of_bytes(shape, m, pads=(1, 1, 1, 1), front=(), vectors=2, zero=7, target=TARGET, weight=None, **fields) -> Case:
    """The same of bytes; `weight` of random ones unless it is given."""
    axes, attrs = windows(shape, front, pads=pads, m=m)
    if weight is None:
        weight = np.random.default_rng(0).integers(-128, 128, (m, shape[-1], *attrs["kernel"])).astype("int8")
    packed = pack_winograd_integers(weight, axes=axes, nr=vectors * target.lanes_f32)
    weights = (np.array(zero, "uint8"), packed, weight.reshape(m, -1).sum(1, dtype="int32"))
    return Case(ConvolutionIntegerWinograd, shape, attrs, weights, dtype="uint8", **fields)


SIZES = tuple((n, h, w, 18) for n, (h, w) in product((1, 3), ((1, 1), (2, 5), (4, 4), (7, 3), (9, 10))))
CASES = [
    conv((1, 14, 14, 32), 64, epilogue="bias+silu+residual"),
    conv((2, 9, 11, 18), 50, (2, 0, 1, 3), symbolic=True, further=((0, 4, 4, 18), *SIZES)),
    conv((1, 6, 6, 16), 16, (0, 0, 0, 0), vectors=1, epilogue="bias"),  # one tile, nothing outside
    conv((1, 3, 3, 20), 17, (0, 0, 0, 0), vectors=1),  # one result, channels that fill no vectors
    conv((5, 16, 12, 24), 48, vectors=3, epilogue="residual"),
    conv((1, 7, 7, 200), 130, epilogue="silu"),  # fewer blocks than cores: panels are shared
    conv((1, 5, 8, 9, 16), 20, (1, 1, 1, 0, 1, 1), front=((3, 2, 1),), epilogue="bias"),
    conv((2, 4, 6, 7, 16), 16, (2, 1, 1, 2, 1, 1), front=((2, 1, 3),), symbolic=True, further=((1, 3, 4, 4, 16),)),
    conv((1, 8, 300, 16), 32, (0, 1, 0, 1)),  # many tiles
    conv((2, 37, 24), 40, (1, 1), epilogue="bias+silu"),  # along one axis
    conv((1, 30, 18), 20, (2, 0), symbolic=True, further=((3, 1, 18), (2, 2, 18), (1, 200, 18))),
    conv((1, 9, 30, 16), 33, (2, 1, 2, 1), front=((5, 2, 1),), epilogue="residual"),
]


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["cpu", "x86-64-v3"])
@pytest.mark.sampled(1)
def test_every_kind(isa: str):
    target = resolve(isa, cores=2)
    skip_unless_runs(target)
    functions = {f"f{i}": fused(case) for i, case in enumerate(CASES)}
    built = {name: RULE.apply(func, target, RULE.default(func, target)) for name, func in functions.items()}
    executable = build_all(built, target)
    for i, case in enumerate(CASES):
        check(executable, f"f{i}", case)


@pytest.mark.parametrize("isa", ["x86-64-v3", "x86:avx512"])
@pytest.mark.sampled(1)
def test_bytes_are_added_up_exactly(isa: str):
    target = resolve(isa, cores=2)
    skip_unless_runs(target)
    sizes = tuple((n, h, w, 38) for n, h, w, _ in SIZES)
    cases = [
        of_bytes((1, 14, 15, 32), 40, target=target),
        of_bytes(
            (2, 9, 11, 38), 50, (2, 0, 1, 3), zero=255, symbolic=True, further=((0, 4, 4, 38), *sizes), target=target
        ),
        of_bytes((1, 6, 6, 32), 16, (0, 0, 0, 0), vectors=1, target=target),  # nothing outside
        of_bytes((1, 5, 5, 32), 17, (0, 0, 0, 0), vectors=1, target=target),  # the last tiles reach beyond the image
        of_bytes((1, 5, 4, 9, 32), 20, (1, 1, 1, 0, 1, 1), front=((3, 2, 1),), target=target),
        of_bytes((2, 37, 34), 40, (1, 1), symbolic=True, further=((1, 1, 34), (3, 200, 34)), target=target),
    ]
    built = {f"f{i}": RULE.apply(f, target, RULE.default(f, target)) for i, f in enumerate(map(fused, cases))}
    executable = build_all(built, target)
    for i, case in enumerate(cases):
        check(executable, f"f{i}", case)


def test_the_largest_sums_of_bytes():
    """Four times a result is just below 2**31: what is added up on the way overflows."""
    channels = MOST_PRODUCTS // 9 // 2 * 2
    weight = np.full((16, channels, 3, 3), -128, np.int8)
    weight[1::2] = np.where(np.arange(9).reshape(3, 3) % 2, 127, -128)
    target = resolve("x86-64-v3", cores=2)
    case = of_bytes((1, 4, 4, channels), 16, zero=0, weight=weight, target=target)
    func = fused(case)
    executable = build_all({"main": RULE.apply(func, target, RULE.default(func, target))}, target)
    out = tvm.runtime.tensor(np.zeros((1, 4, 4, 16), np.int32))
    x = np.full(case.shape, 255, np.uint8)
    executable["main"](*map(tvm.runtime.tensor, (x, *case.weights)), out)
    np.testing.assert_array_equal(out.numpy(), ConvolutionIntegerWinograd.reference(x, *case.weights, **case.attrs))


@pytest.mark.slow
def test_every_decision_is_right():
    case = conv((1, 22, 27, 16), 40, epilogue="bias+residual")
    check_decisions(RULE, case, TARGET)


def test_sums_stay_in_registers():
    func = fused(conv((1, 56, 56, 64), 64))
    decision = RULE.default(func, TARGET)
    loops = k_loops(build_all({"main": RULE.apply(func, TARGET, decision)}, TARGET), "vfmadd")
    loop = max(loops, key=lambda each: each["vfmadd"] / each["all"])  # of the products: others transform
    steps = loop["vfmadd"] // (2 * decision.mr)
    assert loop["vfmadd"] == steps * 2 * decision.mr and loop["vector"] == 0
    assert loop["broadcast"] <= steps * decision.mr and loop["load"] <= steps * 2


def test_sums_of_words_stay_in_registers():
    target = resolve("x86-64-v3", cores=2)
    func = fused(of_bytes((1, 56, 56, 64), 64, target=target))
    decision = RULE.default(func, target)
    loop = k_loops(build_all({"main": RULE.apply(func, target, decision)}, target), "vpmaddwd")[0]
    steps = loop["vpmaddwd"] // (2 * decision.mr)
    assert loop["vpmaddwd"] == steps * 2 * decision.mr and loop["vector"] == 0
    assert loop["broadcast"] <= steps * decision.mr and loop["load"] <= steps * 2


def test_what_lies_outside_of_the_image_is_not_read():
    """Also numbers that would spoil every sum, around the tensor and behind its last channel."""
    case = conv((1, 5, 6, 16), 16, vectors=1)
    func = fused(case)
    executable = build_all({"main": RULE.apply(func, TARGET, RULE.default(func, TARGET))}, TARGET)
    memory = np.full(3 * 5 * 6 * 16 + 64, np.nan, np.float32)
    start = next(i for i in range(5 * 6 * 16, len(memory)) if memory[i:].ctypes.data % 64 == 0)
    x = memory[start : start + 5 * 6 * 16].reshape(1, 5, 6, 16)
    x[:] = 1
    out = tvm.runtime.tensor(np.zeros((1, 5, 6, 16), np.float32))
    executable["main"](tvm.runtime.from_dlpack(x), tvm.runtime.tensor(case.weights[0]), out)
    assert np.isfinite(out.numpy()).all()


def test_error_of_a_sum_of_thousands():
    """Against float64, as a share of the largest result: a few times the error of the sum itself (3e-7)."""
    case = conv((1, 12, 12, 512), 32)
    func = fused(case)
    executable = build_all({"main": RULE.apply(func, TARGET, RULE.default(func, TARGET))}, TARGET)
    x = np.random.default_rng(1).standard_normal(case.shape, dtype=np.float32)
    out = tvm.runtime.tensor(np.zeros((1, 12, 12, 32), np.float32))
    executable["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(case.weights[0]), out)
    exact = ConvolutionWinograd.reference(x.astype("float64"), case.weights[0], **case.attrs)
    assert np.abs(out.numpy() - exact).max() < 5e-6 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (conv((1, 8, 8, 3), 16), "3 to 16 channels: at least"),
        (conv((1, 8, 8, 64), 5), "64 to 5 channels: at least"),
        (conv((1, 8, 8, 32), 32, dtype="float16"), "float16"),
    ],
)
def test_declines(case: Case, reason: str):
    with pytest.raises(Declined, match=reason):
        RULE.default(fused(case), TARGET)


def test_declines_bytes_where_four_are_multiplied_at_once():
    with pytest.raises(Declined, match="multiplies bytes as fast as words"):
        RULE.default(fused(of_bytes((1, 8, 8, 64), 32)), resolve("x86:avx512-vnni", cores=2))
