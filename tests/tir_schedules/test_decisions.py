"""Whatever a rule accepts computes the function: decisions drawn from its domains, at odd sizes, against no schedule.

A log may be anybody's, and its decisions need not be of a rule's space.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tvm
from attention_functions import attributes
from attention_functions import function as attention
from fused_functions import functions, fused, here, x86
from linear_functions import Case as Linear
from linear_functions import fused as linear
from tvm import relax, tirx
from window_functions import Case as Window
from window_functions import fused as window

from halo_tvm.code_generation import compiled
from halo_tvm.errors import Declined
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.rule import Numbers
from halo_tvm.weight_windows import pack_convolution

pytestmark = [pytest.mark.covering, pytest.mark.skipif(not here("avx2"), reason="this CPU lacks avx2")]
_DECISIONS, _TRIES = {"flash_attention": 1, "decode_attention": 1}, 200  # so many of a rule, else four
op = relax.op


def of_graph(graph: Callable[..., relax.Expr], *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    (func,) = functions(fused(graph, shapes))
    return func


def convolution() -> tirx.PrimFunc:
    weight = np.zeros((7, 5, 3, 3), np.float32)
    packed = np.ascontiguousarray(pack_convolution(weight, groups=1, joined=1, nr=16))
    attrs = {"layout": "packed", "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    case = Window(OPERATORS["convolution"], (2, 9, 11, 5), {**attrs, "kernel": (3, 3), "n": 7}, (packed,), "bias")
    return window(case)


def pooling() -> tirx.PrimFunc:
    sizes = {"kernel": (3, 2), "strides": (2, 1), "dilations": (1, 1), "pads": (1, 1, 1, 0)}
    attrs = {"layout": "last", "kind": "average", "ceil": True, "include_pad": False, "p": 2, **sizes}
    return window(Window(OPERATORS["pooling"], (2, 9, 11, 21), attrs))


FUNCTIONS = {
    "elementwise": lambda: of_graph(lambda emit, x, y: emit(op.add(emit(op.exp(x)), y)), (7, 29), (29,)),
    "elementwise, turned": lambda: of_graph(lambda emit, x: emit(op.permute_dims(x)), (37, 43)),
    "row_reduction": lambda: of_graph(lambda emit, x: emit(op.nn.softmax(x)), (5, 91)),
    "search": lambda: of_graph(lambda emit, x: emit(op.sum(x, [0, 2])), (13, 23, 91)),
    "gemm": lambda: linear(Linear(k=48, n=37, kc=16, nr=16, epilogue="bias+relu+residual", m=13)),
    "batched_matmul": lambda: of_graph(
        lambda emit, x, y: emit(OPERATORS["matmul"].call(x, y, transpose_a=False, transpose_b=False)),
        (3, 13, 19),
        (3, 19, 21),
    ),
    "convolution": convolution,
    "channelwise": pooling,
    "flash_attention": lambda: attention([(1, 19, 2, 32), (1, 37, 2, 32), (1, 37, 2, 32)], attributes(2, 2, 32)),
    "decode_attention": lambda: attention([(2, 1, 4, 32), (2, 37, 2, 32), (2, 37, 2, 32)], attributes(4, 2, 32)),
}


def drawn(rule: str, default: object, rng: random.Random) -> object:
    """A decision of the rule's domains; fields without one are those of the default."""

    def number(domain: Numbers | tuple[object, ...]) -> object:
        if isinstance(domain, tuple):
            return rng.choice(domain)
        high = min(domain.most, 1 << rng.randrange(1, domain.most.bit_length() + 1))
        return rng.choice([n for n in range(domain.least, min(high, 4096) + 1) if n in domain] or [domain.least])

    values = {
        name: tuple(number(domain) for _ in value)
        if isinstance(value := getattr(default, name), tuple)
        else number(domain)
        for name, domain in RULES[rule].domains.items()
    }
    return dataclasses.replace(default, **values)


def accepted(rule: str, func: tirx.PrimFunc, target: object, seed: int) -> Iterator[tuple[object, tirx.PrimFunc]]:
    rng = random.Random(seed)
    default = RULES[rule].default(func, target)
    for _ in range(_TRIES):
        decision = drawn(rule, default, rng)
        try:
            yield decision, RULES[rule].apply(func, target, decision)
        except Declined:
            continue


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", FUNCTIONS)
@pytest.mark.sampled(3, 6)
def test_what_a_rule_accepts_computes_the_function(case: str, seed: int) -> None:
    rule, func, target = case.split(",")[0], FUNCTIONS[case](), x86("avx2")
    kernels = {"plain": RULES["fallback"].apply(func, target, RULES["fallback"].default(func, target))}
    decisions = {}
    for decision, kernel in accepted(rule, func, target, seed):
        decisions[f"d{len(decisions)}"] = decision
        kernels[f"d{len(decisions) - 1}"] = kernel
        if len(decisions) == _DECISIONS.get(rule, 4):
            break
    assert decisions, "no decision of the domains was accepted"
    mod = tvm.IRModule({name: kernel.with_attr("global_symbol", name) for name, kernel in kernels.items()})
    library = compiled(mod, target)
    rng = np.random.default_rng(seed)
    *inputs, output = [(tuple(map(int, b.shape)), str(b.dtype)) for b in func.params]
    arrays = [tvm.runtime.tensor(rng.standard_normal(shape).astype(dtype)) for shape, dtype in inputs]

    def run(name: str) -> np.ndarray:
        out = tvm.runtime.tensor(np.full(output[0], np.nan, output[1]))
        library[name](*arrays, out)
        return out.numpy()

    wanted = run("plain")
    assert np.isfinite(wanted).all()
    for name, decision in decisions.items():
        np.testing.assert_allclose(run(name), wanted, rtol=1e-4, atol=1e-4, err_msg=str(decision))
