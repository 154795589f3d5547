"""Products of bytes on ARM by sdot and usdot: the code that is made for them, and the very same integers.

No test runs ARM's code: the sums are those of the host, to which each instruction is written out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import test_convolution as convolutions
import test_gemm_groups as groups
import test_gemm_w8a8 as products
import window_functions
from assembly import inner_loops
from linear_functions import build
from tvm import ir, tirx

from halo_tvm.targets import TARGETS, Target, resolve
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.products.gemm import lane_dots

pytestmark = pytest.mark.covering

INSTRUCTIONS = {"neon-dotprod": "sdot", "neon-i8mm": "sudot"}  # by a lane usdot is called so, its operands exchanged
AROUND, ONE = (1, 1, 1, 1), (1, 1)


def on_host(monkeypatch: pytest.MonkeyPatch, byte_dot: str) -> Target:
    """The host as a processor with 32 registers of 128 bits, and each instruction as what it does."""

    def call(name: str, total: ir.Expr, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        def word(value: int) -> ir.Expr:
            return tirx.Broadcast(tirx.const(value, "int32"), 4)

        a, b = (tirx.reinterpret("int32x4", v) for v in (a, b))
        for byte in range(4):
            left, right = word(24 - 8 * byte), word(24)
            unsigned, signed = (a >> word(8 * byte)) & word(0xFF), (a << left) >> right
            total = total + (unsigned if "usdot" in name else signed) * ((b << left) >> right)
        return total

    monkeypatch.setattr(lane_dots, "_call", call)
    spec = TARGETS["x86"]
    return Target(spec, replace(spec.isas[0], vector_bits=128, vector_registers=32, byte_dot=byte_dot), 2)


@pytest.fixture(params=["sdot", "usdot"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    products.skip_unless_runs("avx2")
    return on_host(monkeypatch, request.param)


def loops_of(text: str, instruction: str) -> list[Counter[str]]:
    """For each inner loop that multiplies bytes: all instructions, products, accesses of the stack; the busiest first.

    "by a lane": products that read a register of a row, of which no instruction makes four equal lanes before.
    """
    found = []
    for loop in inner_loops(text):
        counts: Counter[str] = Counter(all=len(loop))
        for line in loop:
            name = line.split()[0]
            is_product = name == instruction
            counts["products"] += is_product
            counts["by a lane"] += is_product and re.search(r"\.4b\[\d\]$", line) is not None
            counts["stack"] += re.search(r"[qdv]\d+.*\[(sp|x29)", line) is not None
        found.append(counts)
    return sorted((c for c in found if c["products"]), key=lambda c: -c["products"])


@pytest.mark.parametrize(("level", "mr"), [("neon-dotprod", 6), ("neon-i8mm", 7)])
def test_code_of_a_linear_layer(level: str, mr: int) -> None:
    """A step of the full tile: one product a vector of sums, and a load of a row in four steps; no height spills."""
    arm, case = resolve(f"arm:{level}", cores=2), products.Case(k=768, n=768, nr=12)
    assert products.GEMM.default(products.fused(case), arm).mr == mr
    loops = loops_of(build(products.scheduled(case, arm), arm).mod.inspect_source("asm"), INSTRUCTIONS[level])
    assert loops[0]["products"] == loops[0]["by a lane"] == 4 * mr * 3
    assert loops[0]["all"] <= 1.4 * loops[0]["products"]
    assert len(loops) >= mr and not any(loop["stack"] for loop in loops)


@pytest.mark.parametrize("level", INSTRUCTIONS)
def test_code_of_a_convolution(level: str) -> None:
    arm = resolve(f"arm:{level}", cores=2)
    case = convolutions._of_bytes((1, 28, 28, 64), 96, (3, 3), ONE, ONE, AROUND, 3 * arm.lanes_f32)
    func = window_functions.fused(case)
    made = RULES["convolution"].apply(func, arm, RULES["convolution"].default(func, arm))
    text = window_functions.build_all({"main": made}, arm).mod.inspect_source("asm")
    loop = loops_of(text, INSTRUCTIONS[level])[0]
    assert loop["by a lane"] == loop["products"] and loop["all"] <= 1.4 * loop["products"] and not loop["stack"]


@pytest.mark.parametrize(("k", "n", "nr"), [(96, 35, 12), (100, 24, 12), (72, 5, 8), (4, 3, 4)])
def test_every_number_of_rows(target: Target, k: int, n: int, nr: int) -> None:
    """Symbolic, in blocks of tiles that count their columns beside the products, and of those that begin with them."""
    case = products.Case(k=k, n=n, nr=nr, epilogue="none")
    executable = build(products.scheduled(case, target, block_rows=16), target)
    for rows in (*range(1, 20), 65):
        products.check(executable, case, rows)
    products.check(executable, case, 7, extreme=True)


@pytest.mark.parametrize("rows", [3, 9])
def test_static_rows(target: Target, rows: int) -> None:
    case = products.Case(k=64, n=16, nr=8, epilogue="bias+gelu", m=rows)
    products.check(build(products.scheduled(case, target), target), case, rows)


@pytest.mark.parametrize(("bits", "group", "least"), [(8, 32, False), (4, 64, False), (4, 32, True), (8, 32, True)])
def test_integers_in_groups(target: Target, bits: int, group: int, least: bool) -> None:
    case = groups.Case(k=192, n=35, nr=12, bits=bits, group=group, least=least)
    executable = build(groups.scheduled(case, target), target)
    for rows in (1, 2, 4, 7, 13):
        groups.check(executable, case, rows)
    groups.check(executable, case, 3, extreme=True)


@pytest.mark.slow
def test_convolutions(target: Target) -> None:
    """Windows that lie anywhere, along rows, and of groups abreast."""
    of_bytes = partial(convolutions._of_bytes, lanes=target.lanes_f32)
    along = [
        of_bytes((2, 9, 17, 24), 24, (3, 3), ONE, ONE, AROUND, groups=3),
        of_bytes((1, 9, 17, 20), 10, (3, 3), ONE, ONE, AROUND, groups=5, abreast=2),
        of_bytes((1, 9, 14, 40), 10, (3, 3), (2, 2), ONE, AROUND, groups=5, abreast=2, zero=200),
        of_bytes((2, 7, 12, 16), 4, (3, 5), (1, 2), (1, 3), (1, 4, 1, 6), groups=4, abreast=4),
    ]
    functions = [window_functions.fused(case) for case in along]
    assert all(convolutions.match(func, target.isa).along_rows(target.isa) for func in functions)
    convolutions._check_all([*convolutions._cases_of_bytes(target.lanes_f32), *along], target)
