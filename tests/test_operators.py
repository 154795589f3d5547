"""Conformance: every registered operator, every case, against its own reference; and its documentation."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from executables import executable_of
from guarded import guarded
from tolerances import assert_close
from tvm import relax

from halo_tvm.passes.schedule import schedule_functions
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.runtime.tensors import to_tensor
from halo_tvm.targets import TARGETS, Target, resolve

CASES = [(name, i) for name, op in sorted(OPERATORS.items()) for i in range(len(op.cases()))]


def arguments(case: dict[str, object]) -> list[np.ndarray]:
    """Arrays as they are, shapes as seeded normal numbers."""
    rng = np.random.default_rng(0)
    return [a if isinstance(a, np.ndarray) else rng.standard_normal(a).astype("float32") for a in case["args"]]


def as_float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def compiled(name: str, case: dict[str, object], symbolic: bool, target: Target) -> np.ndarray | list[np.ndarray]:
    """The case through legalisation, schedule and code generation, a list for several results.

    No argument may be read outside of where it is. `symbolic` makes the first dimension a variable.
    """
    arrays = arguments(case)
    rows = tvm.tirx.Var("rows", "int64")
    first = arrays[0].shape[0]
    params = []
    for i, a in enumerate(arrays):
        shape = [
            rows if symbolic and d == 0 and n == first and (i == 0 or _shares_rows(name, i)) else n
            for d, n in enumerate(a.shape)
        ]
        params.append(relax.Var(f"arg{i}", relax.TensorType(shape, str(a.dtype))))
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit(OPERATORS[name].call(*params, **case["attrs"]))
            if OPERATORS[name].semantic:
                out = bb.emit(OPERATORS[name].expand(bb, bb.lookup_binding(out)))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    mod = relax.transform.DeadCodeElimination()(bb.get())
    mod = relax.transform.LegalizeOps()(mod)
    mod, _ = schedule_functions(mod, target)
    executable = executable_of(mod, target, plan_memory=False)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    for at_end in (True, False):
        result = main(*(to_tensor(guarded(a, at_end)) for a in arrays))
    return result.numpy() if isinstance(result, tvm.runtime.Tensor) else [part.numpy() for part in result]


def _shares_rows(name: str, position: int) -> bool:
    """Whether an argument behind the first has the same leading dimension by meaning, not by chance."""
    return name in ("attention", "matmul") or (name in ("rotary", "linear_w8a8", "experts") and position == 1)


@pytest.mark.parametrize(("name", "index"), CASES)
@pytest.mark.sampled(40, 90)
def test_compiled_operator_equals_its_reference(name: str, index: int) -> None:
    case = OPERATORS[name].cases()[index]
    reference = OPERATORS[name].reference(*map(as_float64, arguments(case)), **case["attrs"])
    result = compiled(name, case, False, resolve("cpu"))
    pairs = [(result, reference)] if isinstance(result, np.ndarray) else zip(result, reference, strict=True)
    for part, expected in pairs:
        assert_close(part, expected)


@pytest.mark.parametrize(
    "name", ["linear", "layer_norm", "rms_norm", "embedding", "quantize", "linear_w8a8", "experts", "route"]
)
@pytest.mark.sampled(2, 4)
def test_symbolic_rows_equal_the_reference(name: str) -> None:
    for case in OPERATORS[name].cases():
        residual = name.endswith("norm") and len(case["args"]) > (3 if name == "layer_norm" else 2)
        if residual:  # the residual shares the symbolic dimension: tested with the operator
            continue
        reference = OPERATORS[name].reference(*map(as_float64, arguments(case)), **case["attrs"])
        result = compiled(name, case, True, resolve("cpu"))
        pairs = [(result, reference)] if isinstance(result, np.ndarray) else zip(result, reference, strict=True)
        for part, expected in pairs:
            assert_close(part, expected)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operations_are_counted(name: str) -> None:
    for case in OPERATORS[name].cases():
        shapes = [a.shape for a in arguments(case)]
        assert OPERATORS[name].flops(shapes, **case["attrs"]) >= 0


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operator_is_documented_and_named_like_its_file(name: str) -> None:
    module = sys.modules[OPERATORS[name].__module__]
    assert module.__name__.rsplit(".", 1)[1] == name
    for section in ("Shapes", "Computation", "Numerics"):
        assert f"\n{section}\n" in module.__doc__, f"{name} lacks the section {section}"


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_printed_call_parses_back(name: str) -> None:
    case = OPERATORS[name].cases()[0]
    arrays = arguments(case)
    bb = relax.BlockBuilder()
    params = [relax.Var(f"arg{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(OPERATORS[name].call(*params, **case["attrs"])))
        bb.emit_func_output(out)
    mod = bb.get()
    assert f"R.halo.{name}(" in mod.script()
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def test_every_cpu_target_lists_rules_that_exist() -> None:
    from halo_tvm.tir_schedules import RULES

    for spec in TARGETS.values():
        assert set(spec.rules) <= set(RULES)
