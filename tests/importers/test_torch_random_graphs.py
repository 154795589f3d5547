"""Random chains of element-wise operators, rows and moves in 16 and 32 bits: what fusion makes of them is compiled.

In 16 bits TVM lowers expressions otherwise than in float32, and operators by themselves find nothing of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F

import halo_tvm
from halo_tvm.importers.torch_export._call import to_array
from halo_tvm.in_process import compile_in_process

Tensor = torch.Tensor

OF_ONE: list[Callable[[Tensor], Tensor]] = [
    *(torch.abs, torch.neg, torch.tanh, torch.sigmoid, torch.relu, torch.erf, torch.floor, torch.sign, torch.round),
    *(torch.ceil, torch.sin, torch.nan_to_num, F.gelu, F.silu, F.hardtanh, F.softplus, F.hardswish, F.elu, F.mish),
    lambda x: torch.exp(x.clamp(-4, 4)),
    lambda x: torch.sqrt(x.abs() + 0.1),
    lambda x: torch.log1p(x.abs()),
    lambda x: x * 0.5 + 1,
    lambda x: x.float().mul(1.5).to(x.dtype),
    lambda x: (x > 0).to(x.dtype),
    lambda x: x.to(torch.int32).to(x.dtype),
    lambda x: x.clamp_min(0.1).rsqrt(),
    lambda x: x.masked_fill(x > 0.5, 0.25),
    lambda x: x**2,
    lambda x: x.clamp_min(0) ** 1.5,
]
OF_TWO: list[Callable[[Tensor, Tensor], Tensor]] = [
    *(torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2),
    lambda a, b: a / (b.abs() + 1),
    lambda a, b: torch.where(a < b, a, b),
    lambda a, b: torch.where((a > b) == (a > 0), a, b),
    lambda a, b: torch.where((a > 0) & ~(b > 0), a, -b),
    lambda a, b: torch.clamp(a, -b.abs(), b.abs()),
    lambda a, b: ((a > b) != (b > 0)).to(a.dtype) - a,
    lambda a, b: a * torch.sigmoid(b),
]
ALONG: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.sum(-1, keepdim=True) * 0.1,
    lambda x: x.mean(-1, keepdim=True),
    lambda x: x.amax(-1, keepdim=True),
    lambda x: x.amin(0, keepdim=True),
    lambda x: torch.softmax(x, -1),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: F.normalize(x, dim=-1),
    lambda x: x.cumsum(-1) * 0.1,
    lambda x: torch.cat([x[:, 3:], x[:, :3]], 1),
    lambda x: x.flip(-1),
    lambda x: F.pad(x, (1, 0))[:, :-1],
    lambda x: x.sort(-1)[0],
]
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}


class Graph(torch.nn.Module):
    """Three to twelve operators, each of one or two of the values that came last."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        kinds = draw.choices((OF_ONE, OF_TWO, ALONG), (0.5, 0.35, 0.15), k=draw.randint(3, 12))
        self.steps = [(kind is ALONG, draw.choice(kind), draw.random(), draw.random()) for kind in kinds]

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        values = [a, b, c]
        for is_along, function, first, second in self.steps:
            x, y = values[-1 - int(first * 2)], values[int(second * len(values))]
            if is_along and (x.shape[-1] < 4 or x.shape[0] < 2):
                continue
            values.append(function(x, y) if function in OF_TWO else function(x))
        return values[-1]


@pytest.mark.parametrize("seed", [*range(60)])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.sampled(3, 6)
def test_graphs_compute_what_torch_computes(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = ((3, 40), (16, 33), (8, 64), (2, 5))[seed % 4]
    shapes = ((rows, columns), (rows, columns), (1 if seed % 3 else rows, columns))
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    net = Graph(seed).eval()
    program = compile_in_process(halo_tvm.import_torch(net, tuple(given)), threads=1)
    named = dict(zip("abc", map(to_array, given)))
    (found,) = program(**{spec.name: named[spec.name] for spec in program.input_specs}).values()
    found = np.asarray(found).astype("float64")
    wanted, exact = (net(*xs).double().numpy() for xs in (given, [x.double() for x in given]))
    assert found.shape == wanted.shape and np.array_equal(np.isnan(found), np.isnan(wanted))
    # Rounding in between is torch's: a result is right where it is as near as torch to either.
    apart = np.minimum(abs(found - wanted), abs(found - exact))
    allowed = 2 * np.nanmax(abs(wanted - exact), initial=0) + TOLERANCES[dtype] * np.nanmax(abs(wanted), initial=0)
    assert np.nanmax(apart, initial=0) <= allowed
