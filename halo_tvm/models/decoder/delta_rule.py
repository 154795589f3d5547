"""The graph of linear attention by the gated delta rule.

References
    arXiv:2412.06464 (Gated DeltaNet); Qwen3-Next and Qwen 3.5 (their model cards)
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ...relay_ops.parts.activation import ACTIVATIONS
from ..builder import ModelBuilder
from .mixer_kinds import DeltaRule
from .state_spaces import convolved, parts, softplus

_LEAST = 1e-6  # added to the sum of squares that keys and queries are divided by the root of


def by_delta(
    m: ModelBuilder, hidden: int, mixer: DeltaRule, x: relax.Var, index: int, lengths: relax.Var | None
) -> relax.Var:
    """Keys and queries of unit length; the result is normalised by head, then gated and projected back."""
    name, heads = m.layer, mixer.heads
    batch, tokens, _ = x.ty.shape.values
    sizes = (mixer.channels, mixer.values, heads, heads)
    joined = m.op("linear", x, _projections(m, hidden, mixer), layout="nk", n=sum(sizes))
    mixed, gate, beta, steps = parts(m, joined, sizes)
    mixed = convolved(
        m, mixed, f"{name}.conv1d", mixer.channels, mixer.kernel, index, lengths, bias=False, activation="silu"
    )

    def shaped(y: relax.Expr, *dims: int) -> relax.Var:
        return m.emit(relax.op.reshape(y, (batch, tokens, *dims)))

    query, key, value = parts(m, mixed, (mixer.keys, mixer.keys, mixer.values))
    n = mixer.key_size
    # y / sqrt(sum y^2 + least) is a norm of mean squares with the weight 1 / sqrt(n); queries are divided by it again.
    query, key = (
        m.op("rms_norm", shaped(y, mixer.key_heads, n), _even(m, n, share), eps=_LEAST / n)
        for y, share in ((query, 1 / n), (key, 1 / math.sqrt(n)))
    )
    bias = m.weight(f"{name}.dt_bias", (heads,), scale=0.3)
    log = m.source(f"{name}.A_log", (heads,), scale=0.5, offset=0.5)
    rates = m.derived(f"{log}:falls", "falls", [log], (heads,))
    falls = m.emit(relax.op.multiply(softplus(m, m.emit(relax.op.add(steps, bias))), rates))
    given = [key, query, falls, m.emit(relax.op.sigmoid(beta))]
    value = shaped(value, heads, mixer.head_size)
    if lengths is None:
        y = m.op("gated_delta", value, *given)
    else:
        kept = m.op("gated_delta", value, m.inputs[f"state_{index}"], lengths, *given, has_state=True)
        y = m.emit(relax.TupleGetItem(kept, 0))
    weight = m.weight(f"{name}.norm.weight", (mixer.head_size,), scale=0.1, offset=1.0)
    y = shaped(m.op("rms_norm", y, weight, eps=mixer.norm_eps), mixer.values)
    y = m.emit(relax.op.multiply(y, m.emit(ACTIVATIONS["silu"].relax(gate))))
    return m.linear(y, f"{name}.out_proj", mixer.values, hidden, bias=False)


def _even(m: ModelBuilder, width: int, value: float) -> relax.Var:
    return m.table(f"even.{width}.{value:.6g}", np.full(width, value, np.float32))


def _projections(m: ModelBuilder, hidden: int, mixer: DeltaRule) -> relax.Var:
    """The weight of one linear: queries, keys and values, then gates, `beta` and steps."""
    name, scale = m.layer, 1 / math.sqrt(hidden)
    gates = (mixer.values, mixer.heads, mixer.heads)
    columns = mixer.channels + sum(gates)
    if not mixer.joined:
        stems = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        stored = [
            m.source(f"{name}.{stem}.weight", (width, hidden), scale=scale)
            for stem, width in zip(stems, (mixer.channels, *gates))
        ]
    else:
        stored = [
            _parted(m, f"{name}.{stem}.weight", mixer.key_heads, sizes, hidden)
            for stem, sizes in (("in_proj_qkvz", _sizes(mixer)), ("in_proj_ba", (mixer.heads // mixer.key_heads,) * 2))
        ]
    return m.derived("+".join(stored), "concat", stored, (columns, hidden), axis=0)


def _sizes(mixer: DeltaRule) -> tuple[int, ...]:
    values = mixer.values // mixer.key_heads
    return mixer.key_size, mixer.key_size, values, values


def _parted(m: ModelBuilder, stored: str, groups: int, sizes: tuple[int, ...], hidden: int) -> str:
    """The tensor in which every group has its parts one behind the other, as one in which every part is together."""
    whole = sum(sizes)
    m.source(stored, (groups * whole, hidden), scale=1 / math.sqrt(hidden))
    starts = np.cumsum((0, *sizes[:-1])).tolist()
    rows = tuple(
        group * whole + start + i for start, size in zip(starts, sizes) for group in range(groups) for i in range(size)
    )
    return m.recipe(f"{stored}:parts", "take", [stored], (groups * whole, hidden), indices=rows, axis=0)
