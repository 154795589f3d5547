"""Every wrong input gives one sentence, and nothing wrong reaches a kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_tvm.artifact import FunctionSpec, TensorSpec
from halo_tvm.errors import InputError
from halo_tvm.runtime.inputs import bind_inputs, generate_inputs

SPEC = FunctionSpec(
    inputs=(
        TensorSpec("input_ids", ("batch", "sequence"), "int64", values=(0, 50256)),
        TensorSpec("attention_mask", ("batch", "sequence"), "int64", values=(0, 1), default="ones"),
        TensorSpec("bias", ("batch", 4), "float32", default="zeros"),
    ),
    outputs=(TensorSpec("y", ("batch",), "float32"),),
    ranges={"batch": (1, 8), "sequence": (1, 1024)},
)
IDS = np.arange(6).reshape(2, 3)


def test_defaults_and_silent_casts() -> None:
    ids, mask, bias = bind_inputs(SPEC, (IDS.astype(np.int32),), {})
    assert ids.dtype == np.int64 and (ids == IDS).all()
    assert mask.dtype == np.int64 and mask.shape == (2, 3) and (mask == 1).all()
    assert bias.dtype == np.float32 and bias.shape == (2, 4) and (bias == 0).all()
    _, mask, bias = bind_inputs(SPEC, (IDS, np.ones((2, 3), bool)), {"bias": np.ones((2, 4), np.float16)})
    assert mask.dtype == np.int64 and bias.dtype == np.float32
    (ids, *_) = bind_inputs(SPEC, ([[1, 2], [3, 4]],), {"bias": [[1, 2, 3, 4]] * 2})
    assert ids.dtype == np.int64 and (ids == [[1, 2], [3, 4]]).all()


@pytest.mark.parametrize(
    "ids",
    [
        IDS.T.copy().T,
        np.arange(24).reshape(2, 12)[:, ::4],
        IDS.astype(">i8"),
        np.broadcast_to(IDS[:1], (2, 3)),
        IDS[::-1],
    ],
    ids=["column-major", "strided", "big-endian", "broadcast", "reversed"],
)
def test_layouts_are_made_plain(ids: np.ndarray) -> None:
    before = ids.copy()
    (bound, *_) = bind_inputs(SPEC, (ids,), {})
    assert bound.flags.c_contiguous and bound.flags.writeable and bound.dtype.isnative
    np.testing.assert_array_equal(bound, before)


def at_offset(array: np.ndarray, offset: int) -> np.ndarray:
    """The values of `array` at an address of `offset` bytes past a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = (offset - memory.ctypes.data) % 64
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize("offset", [0, 2, 4, 16, 60])
@pytest.mark.parametrize("alignment", [1, 64])
def test_arrays_reach_kernels_as_they_lie_or_at_the_alignment_of_the_library(alignment: int, offset: int) -> None:
    bias = at_offset(np.arange(8, dtype=np.float32).reshape(2, 4), offset)
    bias.flags.writeable = False  # as arrays of JAX and of files are
    bound = bind_inputs(replace(SPEC, alignment=alignment), (IDS,), {"bias": bias})
    assert all(array.ctypes.data % alignment == 0 and array.flags.aligned for array in bound)
    np.testing.assert_array_equal(bound[2], bias)
    assert np.shares_memory(bound[2], bias) == (offset % max(alignment, 4) == 0)


def test_what_is_filled_in_is_aligned() -> None:
    kept = [bind_inputs(SPEC, (IDS,), {}) for _ in range(8)]  # kept alive: new addresses every time
    assert all(array.ctypes.data % 64 == 0 for bound in kept for array in bound)


def test_a_fitting_array_is_not_copied() -> None:
    ids = at_offset(IDS, 0)
    assert bind_inputs(SPEC, (ids,), {})[0] is ids


def test_torch_tensors_through_dlpack() -> None:
    torch = pytest.importorskip("torch")
    ids = torch.arange(6).reshape(2, 3)  # torch's own memory is aligned
    bound, _, bias = bind_inputs(SPEC, (ids,), {"bias": torch.ones(4, 2).T})
    assert np.shares_memory(bound, ids.numpy()) and bias.flags.c_contiguous
    with pytest.raises(
        InputError, match=r"input 'bias': expected a tensor in CPU memory, found Parameter.*pass .detach\(\)"
    ):
        bind_inputs(SPEC, (ids,), {"bias": torch.nn.Parameter(torch.ones(2, 4))})


WRONG = [
    ((), {}, "input 'input_ids': expected int64 \\[batch, sequence\\], found nothing; pass input_ids"),
    ((IDS,), {"inputs_ids": IDS}, "unknown input 'inputs_ids': known are .*did you mean 'input_ids'"),
    ((IDS,), {"input_ids": IDS}, "expected once, found by position and by name"),
    ((IDS, IDS, IDS, IDS), {}, "expected at most 3 inputs .*, found 4"),
    ((IDS.astype(np.float32),), {}, "input 'input_ids': expected int64, found float32"),
    ((IDS,), {"bias": np.zeros((2, 4))}, "input 'bias': expected float32, found float64"),
    ((IDS.astype(np.uint64),), {}, "expected int64, found uint64"),
    ((IDS[0],), {}, r"expected rank 2 \(\[batch, sequence\]\), found rank 1 \(\[3\]\); reshape"),
    ((IDS,), {"bias": np.zeros((2, 5), np.float32)}, "expected size 4 in axis 1 .*found 5"),
    (
        (IDS,),
        {"bias": np.zeros((3, 4), np.float32)},
        "dimension 'batch': expected 2 in 'bias' as in 'input_ids', found 3",
    ),
    (
        (IDS, np.ones((2, 4), int)),
        {},
        "dimension 'sequence': expected 3 in 'attention_mask' as in 'input_ids', found 4",
    ),
    ((np.zeros((9, 3), int),), {}, "expected 1 to 8 for dimension 'batch', found 9"),
    ((np.zeros((1, 1025), int),), {}, "expected 1 to 1024 for dimension 'sequence', found 1025"),
    ((np.zeros((0, 3), int),), {}, "expected 1 to 8 for dimension 'batch', found 0"),
    ((IDS + 50252,), {}, "input 'input_ids': expected values from 0 to 50256, found 50257"),
    ((IDS - 1,), {}, "expected values from 0 to 50256, found -1"),
    ((IDS, IDS), {}, "input 'attention_mask': expected values from 0 to 1, found 5"),
    (([[1, 2], [3]],), {}, "input 'input_ids': expected an array of int64, found list"),
    (("text",), {}, "expected an array of int64, found str"),
    (([[0.5, 1.5]],), {}, "expected an array of int64, found list"),
    (([[2**70]],), {}, "expected an array of int64, found list"),
    ((None,), {}, "expected an array of int64, found NoneType"),
    ((np.array([[None]]),), {}, "expected int64, found object"),
    ((np.array([["a"]]),), {}, "expected int64, found <U1"),
]


@pytest.mark.parametrize(("args", "kwargs", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_each_mistake_has_its_sentence(args: tuple[object, ...], kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        bind_inputs(SPEC, args, kwargs)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_an_omitted_input_whose_size_nobody_gives() -> None:
    spec = FunctionSpec(
        inputs=(TensorSpec("x", ("n",), "float32"), TensorSpec("mask", ("m",), "float32", default="ones")), outputs=()
    )
    with pytest.raises(InputError, match=r"input 'mask': expected float32 \[m\], found nothing"):
        bind_inputs(spec, (np.zeros(3, np.float32),), {})


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 1024), st.integers(0, 9))
def test_generated_inputs_always_fit(batch: int, sequence: int, seed: int) -> None:
    made = generate_inputs(SPEC, sizes={"batch": batch, "sequence": sequence}, seed=seed)
    assert made["input_ids"].shape == (batch, sequence)
    bind_inputs(SPEC, (), made)
    again = generate_inputs(SPEC, sizes={"batch": batch, "sequence": sequence}, seed=seed)
    assert all((made[k] == again[k]).all() for k in made)


def test_generated_sizes_follow_the_ranges() -> None:
    assert generate_inputs(SPEC)["input_ids"].shape == (1, 128)
    short = FunctionSpec(inputs=SPEC.inputs, outputs=(), ranges={"batch": (2, 8), "sequence": (1, 64)})
    assert generate_inputs(short)["input_ids"].shape == (2, 64)


class Series:
    """As pandas and xarray have them: an array by __array__ alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self.array if dtype is None else self.array.astype(dtype)


LARGE = (1 << 40) + 5
NOT_FITTING = [
    ("int32", Series(np.array([LARGE, 1])), "expected int32, found int64"),
    ("int32", [np.int64(LARGE), 1], "expected int32, found int64"),
    ("int32", [np.array(LARGE), np.array(1)], "expected int32, found int64"),
    ("uint8", Series(np.array([300, 1], np.uint16)), "expected uint8, found uint16"),
    ("float32", [np.float64(1e300), 1.0], "expected float32, found float64"),
    ("int32", [LARGE, 1], "expected an array of int32, found list"),
    ("float16", [1e6, 1.0], "found list .a number too large for float16"),
    ("bfloat16", (1e300, 1.0), "found tuple .a number too large for bfloat16"),
]


@pytest.mark.parametrize(("dtype", "value", "message"), NOT_FITTING, ids=[str(i) for i in range(len(NOT_FITTING))])
def test_no_value_changes_silently(dtype: str, value: object, message: str) -> None:
    spec = replace(SPEC, inputs=(TensorSpec("x", (2,), dtype),), written=())
    with pytest.raises(InputError, match=message):
        bind_inputs(spec, (value,), {})


def test_numbers_without_a_dtype_take_that_of_the_input() -> None:
    for dtype, value in [
        ("int32", [5, 1]),
        ("float16", [1.5, 2]),
        ("float32", (float("inf"), 0.1)),
        ("bool", [True, False]),
    ]:
        spec = replace(SPEC, inputs=(TensorSpec("x", (2,), dtype),), written=())
        (found,) = bind_inputs(spec, (value,), {})
        np.testing.assert_array_equal(found, np.array(value, dtype))
    spec = replace(SPEC, inputs=(TensorSpec("x", (2,), "int64"),), written=())
    np.testing.assert_array_equal(bind_inputs(spec, (Series(np.array([3, 4], np.int32)),), {})[0], [3, 4])
