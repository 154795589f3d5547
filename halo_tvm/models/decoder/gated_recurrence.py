"""The graph of a gated linear recurrence by channel, the RG-LRU of Griffin and RecurrentGemma (arXiv:2402.19427).

Computation
    u = convolution(x W_x)   r, i = sigmoid(u W_r), sigmoid(u W_i), block by block
    s = 8 softplus(p) r   h_t = exp(-s) h_{t-1} + g i u   g = sqrt(1 - exp(-2 s)), 1 at the first token of a text
    out = (h * act(x W_y)) W_out
    The recurrence is a selective scan of one state a channel: with steps s, falls of -1 and both vectors 1 it adds
    s times its value, which is therefore g i u / s.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax

from ...relay_ops.parts.activation import ACTIVATIONS
from ..builder import ModelBuilder
from .head_matrices import each_head
from .mixer_kinds import GatedRecurrence
from .state_spaces import convolved, scanned, softplus

_SHARPNESS = 8.0
_LEAST_STEP = 1e-30  # a step of 0 adds nothing and is no divisor


def by_gates(
    m: ModelBuilder, hidden: int, mixer: GatedRecurrence, x: relax.Var, index: int, lengths: relax.Var | None
) -> relax.Var:
    """What the layer makes of x [batch, tokens, hidden]; `lengths` is None for whole sequences without a state."""
    name, width = m.layer, mixer.channels
    batch, tokens, _ = x.ty.shape.values
    gate = m.emit(ACTIVATIONS[mixer.activation].relax(m.linear(x, f"{name}.linear_y", hidden, width)))
    value = m.linear(x, f"{name}.linear_x", hidden, width)
    value = convolved(m, value, f"{name}.conv_1d", width, mixer.kernel, index, lengths, bias=True)
    read, opened = _gates(m, mixer, value)
    rate = softplus(m, m.weight(f"{name}.rg_lru.recurrent_param", (width,), scale=0.5))
    rate = m.emit(relax.op.multiply(rate, _number(_SHARPNESS)))
    steps = m.emit(relax.op.maximum(m.emit(relax.op.multiply(opened, rate)), _number(_LEAST_STEP)))
    falls = m.emit(relax.op.exp(m.emit(relax.op.multiply(steps, _number(-2.0)))))
    share = m.emit(relax.op.sqrt(m.emit(relax.op.subtract(_number(1.0), falls))))
    share = m.emit(relax.op.where(_first(m, tokens, lengths), _number(1.0), share))
    added = m.emit(relax.op.multiply(m.emit(relax.op.multiply(value, read)), share))
    added = m.emit(relax.op.divide(added, steps))

    def constant(number: float, *shape: int) -> relax.Var:
        return m.table(f"recurrence.{number:g}.{'x'.join(map(str, shape))}", np.full(shape, number, np.float32))

    def shaped(y: relax.Expr) -> relax.Var:
        return m.emit(relax.op.reshape(y, (batch, tokens, 1, width)))

    one = m.emit(relax.op.broadcast_to(constant(1.0, 1, 1, 1, 1), (batch, tokens, 1, 1)))
    given = [shaped(added), shaped(steps), constant(-1.0, 1, 1, width), one, one, constant(0.0, 1, width)]
    found = m.emit(relax.op.reshape(scanned(m, given, index, lengths), (batch, tokens, width)))
    return m.linear(m.emit(relax.op.multiply(found, gate)), f"{name}.linear_out", width, hidden)


def _gates(m: ModelBuilder, mixer: GatedRecurrence, value: relax.Var) -> tuple[relax.Var, relax.Var]:
    """The gates of inputs and of steps, each [batch, tokens, channels], by one product a block."""
    batch, tokens, width = value.ty.shape.values
    heads, size = mixer.heads, mixer.head_size
    stems = [f"{m.layer}.rg_lru.{kind}_gate" for kind in ("input", "recurrent")]
    scale = 1 / math.sqrt(size)
    stored = [m.source(f"{stem}_weight", (heads, size, size), scale=scale) for stem in stems]
    joined = m.recipe("+".join(stored), "concat", stored, (heads, size, 2 * size), axis=2)
    weight = m.derived(f"{joined}:turned", "permute_dims", [joined], (heads, 2 * size, size), axes=[0, 2, 1])
    biases = [m.source(f"{stem}_bias", (heads, size), scale=0.1) for stem in stems]
    bias = m.derived("+".join(biases), "concat", biases, (heads, 2 * size), axis=1)
    each = m.emit(relax.op.reshape(value, (batch, tokens, heads, size)))
    found = m.emit(relax.op.sigmoid(each_head(m, each, weight, 2 * size, bias)))

    def part(begin: int) -> relax.Var:
        cut = m.emit(relax.op.strided_slice(found, axes=[3], begin=[begin], end=[begin + size]))
        return m.emit(relax.op.reshape(cut, (batch, tokens, width)))

    return part(0), part(size)


def _first(m: ModelBuilder, tokens: tvm.ir.Expr | int, lengths: relax.Var | None) -> relax.Var:
    """Which tokens begin a text, [batch or 1, tokens, 1]."""
    at = m.emit(relax.op.expand_dims(m.emit(relax.op.arange(0, tokens, 1, "int32")), 0))
    if lengths is not None:
        at = m.emit(relax.op.add(m.emit(relax.op.expand_dims(lengths, 1)), at))
    return m.emit(relax.op.expand_dims(m.emit(relax.op.equal(at, relax.const(0, "int32"))), 2))


def _number(value: float) -> relax.Expr:
    return relax.const(value, "float32")
