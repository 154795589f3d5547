"""What the host can run, decided from flags alone."""

from __future__ import annotations

import ctypes
import importlib.util
from types import SimpleNamespace

import pytest
import tvm_ffi

from halo_tvm.artifact import Variant
from halo_tvm.errors import EnvironmentProblem, UsageError
from halo_tvm.runtime import host
from halo_tvm.targets import read_host

AVX2 = Variant("avx2", ("avx2", "fma"), ("x86_64",), "t", "a.so")
AVX512 = Variant("avx512", ("avx2", "fma", "avx512f"), ("x86_64",), "t", "b.so")
NEON = Variant("neon", ("asimd",), ("aarch64",), "t", "c.so")


@pytest.mark.parametrize("order", [(AVX2, AVX512, NEON), (NEON, AVX512, AVX2)])
def test_the_largest_that_fits_wins(order: tuple[Variant, ...]) -> None:
    assert host.choose_variant(order, machine="x86_64", flags=frozenset({"avx2", "fma", "avx512f"})) is AVX512
    assert host.choose_variant(order, machine="x86_64", flags=frozenset({"avx2", "fma"})) is AVX2
    assert host.choose_variant(order, machine="aarch64", flags=frozenset({"asimd"})) is NEON


def test_a_refusal_names_what_each_variant_lacks() -> None:
    message = (
        r"this host \(x86_64\) can run, found none: "
        "avx2 needs fma; avx512 needs avx512f, fma; neon is for aarch64; compile"
    )
    with pytest.raises(EnvironmentProblem, match=message):
        host.choose_variant([AVX2, AVX512, NEON], machine="x86_64", flags=frozenset({"avx2"}))
    with pytest.raises(EnvironmentProblem, match="compile the model for this machine: --target cpu"):
        host.choose_variant([NEON], machine="x86_64", flags=frozenset({"avx2"}))


def test_flags_and_machine_default_to_this_host() -> None:
    found = read_host()
    here = Variant("here", tuple(sorted(found.flags)), (found.machine,), "t", "h.so")
    assert found.flags and host.choose_variant([here]) is here
    with pytest.raises(EnvironmentProblem, match="needs no_such_feature"):
        host.choose_variant([Variant("x", ("no_such_feature",), (), "t", "x.so")])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", "HALO_TVM_NUM_THREADS: expected an integer from 1 to 2.*found 3"),
        *(
            (text, f"HALO_TVM_NUM_THREADS must be a positive number of threads, but is '{text}'")
            for text in ("0", "-1", "1.5", "x", "²")
        ),
    ],
)
def test_threads_outside_the_mask(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.setenv("HALO_TVM_NUM_THREADS", value)
    with pytest.raises(UsageError, match=message):
        host.resolve_threads(None, (4, 7))


@pytest.mark.parametrize("threads", [0, 3, -1, 1.5, "x", True])
def test_a_number_of_threads_that_cannot_be_had(threads: object) -> None:
    with pytest.raises(UsageError, match="threads: expected an integer from 1 to 2, the CPUs this process may use"):
        host.resolve_threads(threads, (4, 7))  # type: ignore[arg-type]


def test_threads_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HALO_TVM_NUM_THREADS", raising=False)
    assert host.resolve_threads(None, (4, 7, 9)) == 3
    monkeypatch.setenv("HALO_TVM_NUM_THREADS", "2")
    assert host.resolve_threads(None, (4, 7, 9)) == 2
    assert host.resolve_threads(1, (4, 7, 9)) == 1


def test_no_runtime_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_ffi, "get_global_func", lambda name, allow_missing=False: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EnvironmentProblem, match="because the package tvm is not installed; run `pip install apache-tvm`"
    ):
        host.load_tvm_runtime()


@pytest.mark.parametrize(
    ("code", "driver", "said"),
    [
        (100, 13000, "the driver lists none: .*CUDA_VISIBLE_DEVICES"),
        (0, 13000, "the driver lists none"),
        (35, 12040, "for CUDA 12.4: update it to one for CUDA 13"),
        (35, 0, "no NVIDIA driver is loaded"),
        (999, 13000, r"'unknown error' \(error 999\)"),
    ],
)
def test_why_there_is_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch, code: int, driver: int, said: str) -> None:
    def version(out: object) -> int:
        ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = driver
        return 0

    def text(number: int) -> bytes:
        return b"unknown error"

    cudart = SimpleNamespace(cudaGetDeviceCount=lambda _: code, cudaDriverGetVersion=version, cudaGetErrorString=text)
    monkeypatch.setattr(host, "_nvidia_runtime", lambda: cudart)
    with pytest.raises(EnvironmentProblem, match=f"a GPU was expected, but .*{said}"):
        host.load_cuda_runtime.__wrapped__()
    # and load says it: no advice about instruction sets stands alone
    monkeypatch.setattr(host, "load_cuda_runtime", host.load_cuda_runtime.__wrapped__)
    gpu = Variant("sm_90", (host.GPU_FLAG,), (), "t", "g.so", None, "fatbin")
    with pytest.raises(EnvironmentProblem, match=f"sm_90 needs such a GPU.*{said}"):
        host.choose_variant([gpu])


def test_a_missing_runtime_library_is_said_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(host, "_nvidia_runtime", missing)
    with pytest.raises(EnvironmentProblem, match="libcudart.so.13: .*pip install nvidia-cuda-runtime"):
        host.load_cuda_runtime.__wrapped__()
