"""The rule for convolutions: right for every shape and decision, without a matrix of windows, sums in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import tvm
from assembly import k_loops
from linear_functions import skip_unless_runs
from tile_registers import build_emulated
from window_functions import Case, build_all, check, check_decisions, fused

from halo_tvm.errors import Declined
from halo_tvm.params import sums_int8
from halo_tvm.relay_ops.convolution import Convolution
from halo_tvm.relay_ops.convolution_integer import ConvolutionInteger
from halo_tvm.targets import Target, resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.windows.convolution import match
from halo_tvm.weight_windows import pack_convolution, pack_convolution_bf16, pack_convolution_int8

RULE = RULES["convolution"]
TARGET = resolve("cpu", cores=2)
WIDE = resolve("x86:avx512", cores=2)  # whose 32 registers hold tiles of three vectors


def conv(
    shape,
    m,
    kernel,
    strides,
    dilations,
    pads,
    groups=1,
    joined=1,
    abreast=1,
    vectors=2,
    target=TARGET,
    pairs=False,
    **fields,
) -> tuple[Case, np.ndarray]:
    """The case, and its packed weight, with `pairs` in bfloat16."""
    inner = shape[-1] // groups
    weight = np.random.default_rng(0).standard_normal((m, inner, *kernel), dtype=np.float32)
    weight /= np.float32(np.sqrt(weight[0].size))
    pack = pack_convolution_bf16 if pairs else pack_convolution
    nr = vectors * target.lanes_f32
    packed = np.ascontiguousarray(pack(weight, groups=groups, joined=joined, abreast=abreast, nr=nr))
    attrs = {"layout": "packed", "strides": strides, "dilations": dilations, "pads": pads, "groups": groups // joined}
    attrs |= {"abreast": abreast} if abreast > 1 else {}
    case = Case(Convolution, shape, {**attrs, "kernel": kernel, "n": m}, (packed,), **fields)
    return case, packed


ONE, AROUND = (1, 1), (1, 1, 1, 1)
CASES = [
    conv((1, 14, 14, 32), 64, (3, 3), ONE, ONE, AROUND, epilogue="bias+silu+residual"),
    conv(
        (2, 9, 11, 18), 50, (3, 2), (2, 1), (1, 3), (2, 0, 1, 3), symbolic=True, further=((1, 2, 5, 18), (0, 4, 4, 18))
    ),
    conv((1, 20, 20, 3), 40, (7, 7), (2, 2), ONE, (3, 3, 3, 3), epilogue="bias"),  # a copy with padding
    conv((1, 11, 12, 3), 7, (3, 3), ONE, ONE, (0, 0, 0, 0), symbolic=True, further=((2, 3, 3, 3),)),  # runs of 9
    conv((2, 40, 24), 12, (5,), (2,), (2,), (4, 3), groups=4, epilogue="residual"),  # groups, one dimension
    conv((1, 8, 8, 24), 48, (3, 3), ONE, ONE, AROUND, groups=12, joined=4, epilogue="silu"),  # groups joined
    conv((1, 2, 2, 16), 16, (5, 5), ONE, ONE, (2, 2, 2, 2), vectors=1),  # a kernel larger than the image
    conv((1, 4, 5, 6, 16), 20, (2, 3, 2), (1, 2, 1), (1, 1, 1), (1, 1, 0, 0, 1, 1), epilogue="bias"),
    conv((1, 9, 7, 20), 33, (3, 3), ONE, ONE, AROUND, dtype="float16", symbolic=True, epilogue="silu"),
    conv((1, 9, 9, 1024), 40, (3, 3), ONE, ONE, AROUND, vectors=3),  # the window in pieces
    conv((2, 7, 9, 40), 20, (3, 3), ONE, (6, 5), (6, 5, 6, 5), symbolic=True, epilogue="bias"),  # most of it outside
]


def _check_all(cases: Sequence[Case], target: Target) -> None:
    functions = {f"f{i}": fused(case) for i, case in enumerate(cases)}
    built = {name: RULE.apply(func, target, RULE.default(func, target)) for name, func in functions.items()}
    executable = build_all(built, target)
    for i, case in enumerate(cases):
        check(executable, f"f{i}", case)


@pytest.mark.slow
def test_every_kind_of_convolution():
    _check_all([case for case, _ in CASES], TARGET)


def _along_rows(make: Callable[..., Case], lanes: int, **how: object) -> list[Case]:
    """Tiles along rows: groups that fill vectors, and groups abreast, of which the last panel may repeat some."""
    half, few = lanes // 2, lanes // 4
    return [
        make((2, 9, 17, 24), 6 * lanes, (3, 3), ONE, ONE, AROUND, groups=3, **how),
        make((1, 9, 17, 16), 16, (3, 3), ONE, ONE, AROUND, groups=4, abreast=lanes // 4, **how),
        make((1, 9, 14, 5 * half), 5 * half, (3, 3), (2, 2), ONE, AROUND, groups=5, abreast=2, **how),
        make((2, 7, 12, 8 * few), 4 * few, (3, 5), (1, 2), (1, 3), (1, 4, 1, 6), groups=4, abreast=4, **how),
        make((2, 30, 5 * half), 5 * half, (3,), (1,), (1,), (0, 0), groups=5, abreast=2, **how),
    ]


@pytest.mark.parametrize("isa", ["x86:avx512-bf16", "x86-64-v3"])
def test_groups_along_rows(isa: str) -> None:
    """Of floats, of pairs and of bytes: a step of the sum is one channel, two, four."""
    target = resolve(isa, cores=2)
    skip_unless_runs(target)
    lanes, fields = target.lanes_f32, {"epilogue": "bias+residual", "vectors": 1}

    def floats(*args: object, **how: object) -> Case:
        return conv(*args, target=target, **fields, **how)[0]

    cases = _along_rows(floats, lanes)
    if target.isa.bf16_dot:
        cases += _along_rows(floats, lanes, pairs=True)
        cases += _along_rows(partial(_of_bytes, lanes=lanes), lanes)
    assert all(match(fused(case), target.isa).along_rows(target.isa) for case in cases)
    _check_all(cases, target)


def test_groups_abreast_need_rows_of_a_known_length() -> None:
    groups = {"groups": 4, "abreast": TARGET.lanes_f32 // 4, "vectors": 1}
    case, _ = conv((1, 9, 17, 16), 16, (3, 3), ONE, ONE, AROUND, symbolic=True, **groups)
    with pytest.raises(Declined, match="groups abreast need a known number of windows in a row"):
        RULE.default(fused(case), TARGET)


def _of_bytes(
    shape, m, kernel, strides, dilations, pads, lanes, zero=3, narrow=False, groups=1, joined=1, abreast=1, **fields
) -> Case:
    weight = np.random.default_rng(0).integers(-128, 128, (m, shape[-1] // groups, *kernel)).astype("int8")
    attrs = {"layout": "packed", "strides": strides, "dilations": dilations, "pads": pads, "kernel": kernel, "m": m}
    attrs |= {"groups": groups // joined, **({"narrow": True} if narrow else {})}
    attrs |= {"abreast": abreast} if abreast > 1 else {}
    packed = pack_convolution_int8(weight, groups=groups, joined=joined, abreast=abreast, nr=lanes)
    weights = (np.array(zero, "uint8"), packed, sums_int8(weight.reshape(m, -1).T))
    return Case(ConvolutionInteger, shape, attrs, weights, dtype="uint8", **fields)


def _cases_of_bytes(lanes: int, **fields: object) -> list[Case]:
    of_bytes = partial(_of_bytes, **fields)
    return [
        of_bytes((1, 14, 15, 8), 40, (3, 3), ONE, ONE, AROUND, 2 * lanes, symbolic=True, further=((2, 1, 2, 8),)),
        of_bytes((1, 12, 11, 3), 7, (3, 2), (2, 1), (1, 3), (2, 0, 1, 3), 2 * lanes, zero=255, symbolic=True),
        of_bytes((2, 9, 20), 16, (5,), (2,), ONE[:1], (0, 0), lanes),  # no copy: x has no padding
        of_bytes((1, 5, 6, 2048), 8, (3, 3), ONE, ONE, AROUND, lanes),  # the window in pieces
        of_bytes((1, 14, 15, 24), 48, (3, 3), ONE, ONE, AROUND, 2 * lanes, groups=6, joined=2, symbolic=True),
        of_bytes((1, 12, 11, 32), 12, (3, 2), (2, 1), (1, 3), (0, 0, 0, 0), lanes, groups=2),
        *_long_cases_of_bytes(lanes, **fields),
    ]


def _long_cases_of_bytes(lanes: int, **fields: object) -> list[Case]:
    """Sums of 256 products and more."""
    of_bytes = partial(_of_bytes, **fields)
    return [
        of_bytes((1, 14, 15, 32), 40, (3, 3), ONE, ONE, AROUND, 2 * lanes, symbolic=True, further=((2, 1, 2, 32),)),
        of_bytes((1, 12, 11, 46), 7, (3, 2), (2, 1), (1, 3), (2, 0, 1, 3), 2 * lanes, zero=255, symbolic=True),
        of_bytes((2, 9, 100), 16, (5,), (2,), ONE[:1], (0, 0), lanes),
        of_bytes((1, 7, 9, 264), 100, (1, 1), ONE, ONE, (0, 0, 0, 0), 2 * lanes),  # windows are rows of a matrix
        of_bytes((1, 5, 6, 512), 60, (3, 3), ONE, ONE, AROUND, 3 * lanes),
    ]


@pytest.mark.slow
def test_bytes_in_registers_of_two_dimensions(tmp_path) -> None:
    """The same sums on a processor that has none, under emulation."""
    amx = resolve("x86:avx512-amx", cores=2)
    for i, case in enumerate(_long_cases_of_bytes(amx.lanes_f32)):
        folder = tmp_path / str(i)
        folder.mkdir()
        func = fused(case)
        check(build_emulated(RULE.apply(func, amx, RULE.default(func, amx)), folder), "main", case)


@pytest.mark.parametrize(
    ("isa", "narrow"), [("cpu", False), ("x86:avx512-amx", False), ("x86-64-v3", False), ("x86-64-v3", True)]
)
@pytest.mark.sampled(1, 2)
def test_bytes_are_added_up_exactly(isa: str, narrow: bool) -> None:
    """With `narrow` as well, of weights most of whose pairs do not fit 16 bits."""
    target = resolve(isa, cores=2)
    skip_unless_runs(target)
    _check_all(_cases_of_bytes(target.lanes_f32, narrow=narrow), target)


PAIRS = resolve("x86:avx512-bf16", cores=2)
in_pairs = partial(conv, target=PAIRS, pairs=True)
CASES_IN_PAIRS = [
    in_pairs((1, 14, 14, 32), 64, (3, 3), ONE, ONE, AROUND, epilogue="bias+silu+residual"),
    in_pairs(
        (2, 9, 11, 18), 50, (3, 2), (2, 1), (1, 3), (2, 0, 1, 3), symbolic=True, further=((1, 2, 5, 18), (0, 4, 4, 18))
    ),
    in_pairs((2, 40, 64), 24, (5,), (2,), (2,), (4, 3), groups=4, joined=2, epilogue="residual"),
    in_pairs((1, 15, 15, 34), 20, (1, 1), (2, 2), ONE, (0, 0, 0, 0), symbolic=True, further=((3, 1, 2, 34),)),
    in_pairs((1, 2, 2, 16), 16, (5, 5), ONE, ONE, (2, 2, 2, 2), vectors=1),  # a kernel larger than the image
    in_pairs((1, 4, 5, 6, 16), 20, (2, 3, 2), (1, 2, 1), (1, 1, 1), (1, 1, 0, 0, 1, 1), epilogue="bias"),
    in_pairs((1, 9, 9, 1024), 40, (3, 3), ONE, ONE, AROUND, vectors=3),  # the window in pieces
]


def test_pairs_of_bfloat16():
    skip_unless_runs(PAIRS)
    _check_all([case for case, _ in CASES_IN_PAIRS], PAIRS)


def test_pairs_are_declined_where_nothing_multiplies_them():
    case, _ = in_pairs((1, 14, 14, 32), 64, (3, 3), ONE, ONE, AROUND)
    with pytest.raises(Declined, match="pairs of bfloat16 where the target multiplies them in vectors"):
        RULE.default(fused(case), WIDE)


def test_every_decision_is_right():
    case, _ = conv((1, 13, 17, 16), 24, (3, 3), (2, 1), ONE, AROUND, epilogue="bias+residual")
    check_decisions(RULE, case, TARGET)


@pytest.mark.parametrize(("make", "target", "product"), [(conv, TARGET, "vfmadd"), (in_pairs, PAIRS, "vdpbf16ps")])
def test_sums_stay_in_registers(make, target, product):
    case, _ = make((1, 56, 56, 64), 64, (3, 3), ONE, ONE, AROUND)
    func = fused(case)
    decision = RULE.default(func, target)
    loop = k_loops(build_all({"main": RULE.apply(func, target, decision)}, target), product)[0]
    steps = loop[product] // (2 * decision.mr)
    assert loop[product] == steps * 2 * decision.mr and loop["vector"] == 0
    assert loop["broadcast"] <= steps * decision.mr and loop["load"] <= steps * 2


def test_elements_that_no_window_of_a_tile_has_are_not_multiplied():
    case, packed = conv((1, 6, 6, 32), 32, (3, 3), ONE, (12, 12), (12, 12, 12, 12))
    weight = packed.copy()
    weight[0, :, :32] = np.inf  # of the first element, which lies outside of every window
    x = np.ones((1, 6, 6, 32), np.float32)
    func = fused(case)
    executable = build_all({"main": RULE.apply(func, TARGET, RULE.default(func, TARGET))}, TARGET)
    out = tvm.runtime.tensor(np.zeros((1, 6, 6, 32), np.float32))
    executable["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(weight), out)
    assert np.isfinite(out.numpy()).all()


def test_small_images_fill_tiles():
    for side, rows in ((7, 7), (14, 7), (56, 8)):
        case, _ = conv((1, side, side, 16), 48, (3, 3), ONE, ONE, AROUND, vectors=3, target=WIDE)
        assert RULE.default(fused(case), WIDE).mr == rows, f"{side} x {side}"


def test_declines_a_weight_that_is_not_packed():
    attrs = {"layout": "last", "strides": ONE, "dilations": ONE, "pads": (0, 0, 0, 0), "groups": 1}
    case = Case(Convolution, (1, 5, 5, 4), attrs, (np.ones((3, 3, 4, 4), np.float32),))
    with pytest.raises(Declined, match="not packed"):
        RULE.default(fused(case), TARGET)
    # [3, 1, 48, 16] is also what three groups of 16 channels are in one panel each: how it is read tells
    attrs |= {"pads": (1, 0, 1, 0)}
    case = Case(Convolution, (1, 1, 1, 48), attrs, (np.ones((3, 1, 48, 16), np.float32),))
    with pytest.raises(Declined, match="not packed"):
        RULE.default(fused(case), TARGET)
