"""The GEMM rule in AMX's registers: right for every tail under emulation, and the instructions that are meant."""

from __future__ import annotations

import pytest
import test_gemm_bf16 as pairs
import test_gemm_groups as groups
import test_gemm_w8a8 as octets
from assembly import inner_loops
from linear_functions import build, x86
from tile_registers import build_emulated

from halo_tvm.tir_schedules.blocks import EXACT_BUFFERS

AMX = x86("avx512-amx")


@pytest.mark.parametrize("rows", [5, 16, 17, 31, 33, 65])
@pytest.mark.parametrize(("k", "n"), [(292, 131), (256, 16), (272, 96)])
@pytest.mark.sampled(4, 9)
def test_octets(rows: int, k: int, n: int, tmp_path) -> None:
    """The very integers; k in whole registers, in parts of one, in both; the last panel cropped."""
    case = octets.Case(k=k, n=n, nr=16 if n == 16 else 48, epilogue="none", m=rows)
    kernel = build_emulated(octets.scheduled(case, AMX), tmp_path)
    octets.check(kernel, case, rows)
    octets.check(kernel, case, rows, extreme=True)


@pytest.mark.parametrize(("k", "chunks"), [(96, 1), (96, 3), (70, 1)])
def test_pairs_of_every_height(k: int, chunks: int, tmp_path) -> None:
    case = pairs.Case(k=k, n=131, kc=k // chunks, nr=48)
    kernel = build_emulated(pairs.scheduled(case, AMX), tmp_path)
    for rows in range(1, 66):
        pairs.check(kernel, case, rows, "avx512-amx")


@pytest.mark.parametrize(
    ("bits", "group", "least", "k"), [(8, 32, False, 96), (8, 64, False, 192), (4, 32, True, 128), (4, 128, False, 384)]
)
@pytest.mark.parametrize("rows", [13, 33, 48, 130])
@pytest.mark.sampled(4, 8)
def test_groups(rows: int, bits: int, group: int, least: bool, k: int, tmp_path) -> None:
    """Groups of half a register, of one and of two; pairs of groups and one behind them; the last panel cropped."""
    case = groups.Case(k=k, n=131, nr=48, bits=bits, group=group, least=least, m=rows)
    kernel = build_emulated(groups.scheduled(case, AMX), tmp_path)
    groups.check(kernel, case, rows)
    groups.check(kernel, case, rows, extreme=True)


def test_few_rows_in_groups_are_multiplied_in_vectors() -> None:
    case = groups.Case(k=768, n=96, nr=48, bits=8, m=12)
    text = build(groups.scheduled(case, AMX), AMX).mod.inspect_source("asm")
    assert "vpdpbusd" in text and "tdpbssd" not in text


def test_assembly_of_groups() -> None:
    """16 x 48 sums of two groups: three products each, and nothing is spilled between scaling their rows."""
    case = groups.Case(k=768, n=768, nr=48, bits=8, m=128)
    text = build(groups.scheduled(case, AMX), AMX).mod.inspect_source("asm")
    loops = [[line.split()[0] for line in loop] for loop in inner_loops(text) if any("vcvtdq2ps" in x for x in loop)]
    assert loops and all(not any("tile" in name for name in loop) for loop in loops)
    assert all((loop.count("vcvtdq2ps"), loop.count("vmulps")) == (6, 6) for loop in loops)
    assert text.count("tdpbssd") == 12 and "vpdpbusd" not in text


def test_beside_functions_whose_buffers_shrink(tmp_path) -> None:
    """Of the only panel 40 columns are read, and all 48 are written."""
    case = octets.Case(k=256, n=40, nr=48, epilogue="bias", m=32)
    kernel = build_emulated(octets.scheduled(case, AMX).without_attr(EXACT_BUFFERS), tmp_path)
    octets.check(kernel, case, 32)


@pytest.mark.slow
def test_blocks_and_tiles_of_other_heights(tmp_path) -> None:
    case = pairs.Case(k=64, n=96, kc=64, nr=48)
    for i, (mr, block_rows, balance) in enumerate([(16, 32, True), (32, 0, False), (7, 64, False)]):
        folder = tmp_path / str(i)
        folder.mkdir()
        func = pairs.scheduled(case, AMX, mr=mr, block_rows=block_rows, balance=balance)
        kernel = build_emulated(func, folder)
        for rows in (1, 16, 40, 97):
            pairs.check(kernel, case, rows, "avx512-amx")


def test_assembly_of_the_main_loop() -> None:
    """Six products of 16 x 16 sums share five loads of the weight and two of the rows; no spill."""
    case = octets.Case(k=768, n=768, nr=48, m=128)
    text = build(octets.scheduled(case, AMX), AMX).mod.inspect_source("asm")
    (loop,) = (loop for loop in inner_loops(text) if any("tdpbusd" in line for line in loop))
    names = [line.split()[0] for line in loop]
    assert (names.count("tdpbusd"), names.count("tileloadd")) == (6, 7)
    assert not any("rsp" in line and not line.startswith("tile") for line in loop)
    assert "vpdpbusd" not in text and text.count("tilerelease") >= 1


def test_short_sums_are_multiplied_in_vectors() -> None:
    case = octets.Case(k=252, n=96, nr=48, m=64)
    text = build(octets.scheduled(case, AMX), AMX).mod.inspect_source("asm")
    assert "vpdpbusd" in text and "tdpbusd" not in text


def test_few_rows_of_octets_are_multiplied_in_vectors() -> None:
    case = octets.Case(k=768, n=768, nr=48, m=4)
    text = build(octets.scheduled(case, AMX), AMX).mod.inspect_source("asm")
    assert "vpdpbusd" in text and "tdpbusd" not in text
