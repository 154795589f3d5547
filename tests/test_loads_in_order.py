"""Vectors whose lanes lie apart: every element as before, out of loads that stay within the tensor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from guarded import guarded
from tvm import s_tir, te, tirx
from tvm.ir import Expr

from halo_tvm.code_generation import compiled
from halo_tvm.runtime.tensors import to_tensor
from halo_tvm.targets import resolve

LANES, VECTORS = 8, 3
OUT = LANES * VECTORS
# place(j): where element j of the result lies. In how many loads: of a vector of eight results.
PLACES: dict[str, tuple[Callable[[Expr], Expr], int]] = {
    "partners": (lambda j: j + 1 - j % 2 * 2, 1),
    "repeats": (lambda j: j // 4, 1),
    "one for all": (lambda j: j // 8, 1),
    "every second": (lambda j: 2 * j + 1, 2),
    "every third": (lambda j: 3 * j, 3),
    "backwards": (lambda j: OUT - 1 - j, 1),
    "twice backwards": (lambda j: 2 * (OUT - 1 - j), 2),
    "pairs of fours": (lambda j: j // 4 * 8 + j % 4, 2),
    "too far apart": (lambda j: 5 * j, 0),
    "across vectors": (lambda j: j % 6, 0),
}


def function(place: Callable[[Expr], Expr], size: int, dtype: str) -> tirx.PrimFunc:
    """y[j] = x[place(j)] in vectors."""
    x = te.placeholder((size,), dtype, "x")
    schedule = s_tir.Schedule(te.create_prim_func([x, te.compute((OUT,), lambda j: x[place(j)], "y")]))
    _, lane = schedule.split(schedule.get_loops("y")[0], [VECTORS, LANES])
    schedule.vectorize(lane)
    return schedule.mod["main"].with_attr("global_symbol", "f")


@tvm.ir.instrument.pass_instrument
class Loads:
    """How many vectors the pass leaves, at most, for a store."""

    def run_after_pass(self, mod: tvm.IRModule, info: object) -> None:
        if info.name == "halo.LoadsInOrder":
            self.shuffled: list[int] = []
            for _, func in mod.functions_items():
                tvm_ffi.structural_walk(func.body, (tirx.Shuffle, self._note))

    def _note(self, shuffle: tirx.Shuffle) -> None:
        self.shuffled.append(len({str(vector) for vector in shuffle.vectors}))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in PLACES), *(("every third", dtype) for dtype in ("float16", "uint8", "int64"))],
)
def test_elements_are_those_of_single_lanes(name: str, dtype: str) -> None:
    place, loads = PLACES[name]
    at = np.array([int(tvm.sym.Analyzer().simplify(place(tirx.IntImm("int64", j)))) for j in range(OUT)])
    x = np.arange(at.min(), at.max() + 1)
    look = Loads()
    shift = tirx.IntImm("int64", -int(at.min()))
    func = function(lambda j: place(j) + shift if at.min() else place(j), len(x), dtype)
    code = compiled(tvm.IRModule({"f": func}), resolve("cpu", cores=1), [look])
    assert max(look.shuffled, default=0) == (loads if name != "one for all" else 0)
    for at_end in (False, True):
        given = guarded((x % 100).astype(dtype), at_end)
        result = to_tensor(np.zeros(OUT, dtype))
        code["f"](to_tensor(given), result)
        np.testing.assert_array_equal(result.numpy(), given[at - at.min()])
