"""Code for the timed sizes only: right there, marked, and never made unless it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from linear_functions import Case, build, check, fused, skip_unless_runs, x86
from tvm import tirx

from halo_tvm.targets import read_host
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.code.timed import is_only_timed, timed_values, with_timed

GEMM = RULES["gemm"]
TIMED = (1, 8, 32, 128)
ISA = next(isa for isa in ("avx512", "avx2") if isa == "avx2" or x86(isa).isa.requires <= read_host().flags)
CASE = Case(k=32, n=100, kc=16, nr={"avx512": 48, "avx2": 16}[ISA], epilogue="bias+residual")


def symbolic(values=TIMED) -> tirx.PrimFunc:
    func = fused(CASE)
    (rows,) = {d for p in func.params for d in p.ty.shape if not isinstance(d, tirx.IntImm)}
    return with_timed(func, {str(rows.name): values}) if values else func


@pytest.mark.parametrize("changes", [{}, {"mr": 3}, {"mr": 5, "balance": False}, {"block_rows": 8}])
def test_right_where_it_is_timed(changes) -> None:
    skip_unless_runs(ISA)
    target = x86(ISA)
    decision = replace(GEMM.default(symbolic(), target), **changes)
    made, full = (GEMM.apply(f, target, decision) for f in (symbolic(), symbolic(())))
    assert is_only_timed(made) == (len(str(made.body)) < len(str(full.body)))
    assert not is_only_timed(full)
    executable = build(made, target)
    for rows in TIMED:
        check(executable, CASE, rows)


def test_wrong_elsewhere() -> None:
    """Why a racing form must never ship: nothing else would show it."""
    target = x86(ISA)
    skip_unless_runs(target)
    made = GEMM.apply(symbolic(), target, replace(GEMM.default(symbolic(), target), mr=8))
    assert is_only_timed(made)
    with pytest.raises(AssertionError):
        for rows in (7, 37):
            check(build(made, target), CASE, rows)


def test_all_heights_are_no_special_form() -> None:
    target = x86(ISA)
    decision = replace(GEMM.default(symbolic(), target), mr=2, balance=False)
    assert not is_only_timed(GEMM.apply(symbolic((1, 2)), target, decision))


def test_values_belong_to_a_dimension() -> None:
    func = symbolic()
    (rows,) = {d for p in func.params for d in p.ty.shape if not isinstance(d, tirx.IntImm)}
    assert timed_values(func, rows) == TIMED
    assert timed_values(func, tirx.Var("other", "int64")) == ()
    assert timed_values(func, tirx.IntImm("int64", 8)) == ()
    assert timed_values(symbolic(()), rows) == ()
