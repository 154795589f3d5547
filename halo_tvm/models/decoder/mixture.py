"""The feed-forward of a mixture of experts: a router, gated experts of the chosen ones, an expert for all.

Every row reads the weights of its own experts alone (`halo.experts`). They are stacked, [experts, columns, k], gate
and up of an expert one behind the other; a checkpoint of single tensors is stacked by recipes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax

from ...relay_ops.parts.activation import ACTIVATIONS
from ..builder import ModelBuilder
from . import weights
from .config import DecoderConfig, ExpertNames, Mixture


def mixed(
    c: DecoderConfig, mixture: Mixture, m: ModelBuilder, x: relax.Var, layer: str, routed_by: relax.Var | None = None
) -> relax.Var:
    """What the experts of `layer` make of x [batch, tokens, hidden], chosen by x or by `routed_by` of its shape."""
    names = names_of(m, mixture, layer)
    batch, tokens, _ = x.ty.shape.values
    count = tvm.sym.Analyzer().simplify(batch * tokens)
    rows = m.emit(relax.op.reshape(x, (count, c.hidden)))
    asked = rows if routed_by is None else m.emit(relax.op.reshape(routed_by, (count, c.hidden)))
    if names.router_scale:
        asked = m.op("rms_norm", asked, _router_scale(c, m, f"{layer}.{names.router_scale}"), eps=c.eps)
    logits = m.linear(asked, f"{layer}.{names.router}", c.hidden, mixture.experts, bias=mixture.bias)
    correction = [_correction(m, f"{layer}.{names.correction}", mixture)] if mixture.correction else []
    routed = m.op(
        "route",
        logits,
        *correction,
        top=mixture.top,
        scores=mixture.scores,
        normalised=mixture.normalised,
        scale=mixture.scale,
        tolerance=mixture.tolerance,
        groups=mixture.groups,
        top_groups=mixture.top_groups,
        best=mixture.best,
    )
    ids, share = (m.emit(relax.TupleGetItem(routed, i)) for i in range(2))
    if names.expert_scale:
        scales = m.weight(f"{layer}.{names.expert_scale}", (mixture.experts,), scale=0.1, offset=1.0)
        share = m.emit(relax.op.multiply(share, m.emit(relax.op.take(scales, ids, axis=0, mode="clip"))))
    width, hidden_size = mixture.width, mixture.latent or c.hidden
    if mixture.latent:
        rows = m.linear(rows, f"{layer}.{names.to_latent}", c.hidden, mixture.latent, bias=False)
    biases = _biases(m, layer, mixture, names, c.hidden) if mixture.bias else [[], []]
    if mixture.gated:
        gate_up = _gate_up(m, layer, mixture, names, hidden_size)
        hidden = m.op("experts", rows, ids, gate_up, *biases[0], layout="nk", n=2 * width, experts=mixture.experts)
        gate, up = (
            m.emit(relax.op.strided_slice(hidden, axes=[2], begin=[begin], end=[begin + width])) for begin in (0, width)
        )
        hidden = _gated(m, c.activation, mixture.clamped, gate, up)
    else:
        stacked = _stacked(m, layer, mixture, names.stacked_up, (names.up,), width, hidden_size)
        hidden = m.op("experts", rows, ids, stacked, layout="nk", n=width, experts=mixture.experts)
        hidden = m.emit(ACTIVATIONS[c.activation].relax(hidden))
    down = _stacked(m, layer, mixture, names.stacked_down, (names.down,), hidden_size, width)
    each = m.op("experts", hidden, ids, down, *biases[1], layout="nk", n=hidden_size, experts=mixture.experts)
    weighted = m.emit(relax.op.multiply(each, m.emit(relax.op.expand_dims(share, 2))))
    out = m.emit(relax.op.sum(weighted, axis=[1]))
    if mixture.latent:
        out = m.linear(out, f"{layer}.{names.from_latent}", mixture.latent, c.hidden, bias=False)
    out = m.emit(relax.op.reshape(out, x.ty.shape))
    return m.emit(relax.op.add(out, _shared(c, mixture, names, m, x, layer))) if mixture.shared else out


def _router_scale(c: DecoderConfig, m: ModelBuilder, name: str) -> relax.Var:
    """What every channel that the router reads is multiplied by, over the root of their number."""
    m.source(name, (c.hidden,), scale=0.1, offset=1.0)
    return m.derived(f"{name}:scaled", "scaled", [name], (c.hidden,), by=c.hidden**-0.5)


def _gated(
    m: ModelBuilder, activation: str, clamped: tuple[float, float] | None, gate: relax.Var, up: relax.Var
) -> relax.Var:
    """act(gate) * up; clamped: g * sigmoid(alpha * g) * (u + 1) of g = min(gate, limit), u within the limit."""
    if clamped is None:
        return m.emit(relax.op.multiply(m.emit(ACTIVATIONS[activation].relax(gate)), up))
    alpha, most, least, one = (relax.const(value, "float32") for value in (clamped[0], clamped[1], -clamped[1], 1.0))
    gate, up = (m.emit(relax.op.minimum(x, most)) for x in (gate, up))
    up = m.emit(relax.op.add(m.emit(relax.op.maximum(up, least)), one))
    switch = m.emit(relax.op.sigmoid(m.emit(relax.op.multiply(gate, alpha))))
    return m.emit(relax.op.multiply(m.emit(relax.op.multiply(gate, switch)), up))


def _by_turns(width: int) -> tuple[int, ...]:
    """Where the columns of gates, then those of projections up, stand where they take turns."""
    return (*range(0, 2 * width, 2), *range(1, 2 * width, 2))


def _biases(m: ModelBuilder, layer: str, mixture: Mixture, names: ExpertNames, hidden: int) -> list[list[relax.Var]]:
    """Those of gates and projections up, [experts, 2 width], and those down, [experts, hidden]."""
    if names.stacked_gate:
        gate, up, down = (
            m.source(f"{layer}.{name.removesuffix('.weight')}.bias", (mixture.experts, width), scale=0.1)
            for name, width in (
                (names.stacked_gate, mixture.width),
                (names.stacked_up, mixture.width),
                (names.stacked_down, hidden),
            )
        )
        both = m.derived(f"{gate}+{up}", "concat", [gate, up], (mixture.experts, 2 * mixture.width), axis=1)
        return [[both], [m.stored(down)]]
    stored = f"{layer}.{names.stacked_gate_up}_bias"
    shape = (mixture.experts, 2 * mixture.width)
    m.source(stored, shape, scale=0.1)
    gate_up = m.derived(f"{stored}:parted", "take", [stored], shape, indices=_by_turns(mixture.width), axis=1)
    return [[gate_up], [m.weight(f"{layer}.{names.stacked_down}_bias", (mixture.experts, hidden), scale=0.1)]]


def _turned(m: ModelBuilder, mixture: Mixture, name: str, columns: int, k: int, *, by_turns: bool) -> relax.Var:
    """The weight [experts, columns, k] of one that is stored as [experts, k, columns]."""
    shape, scale = (mixture.experts, columns, k), 1 / math.sqrt(k)
    whole = (mixture.experts, k, columns)
    stored = _flat(m, name, whole, scale) if mixture.flat else m.source(name, whole, scale=scale)
    if not by_turns:
        return m.derived(f"{stored}:turned", "permute_dims", [stored], shape, axes=[0, 2, 1])
    turned = m.recipe(f"{stored}:turned", "permute_dims", [stored], shape, axes=[0, 2, 1])
    return m.derived(f"{stored}:parted", "take", [turned], shape, indices=_by_turns(mixture.width), axis=1)


def names_of(m: ModelBuilder, mixture: Mixture, layer: str) -> ExpertNames:
    """How the checkpoint calls the tensors; the first way where it has none of them."""

    def are_there(names: ExpertNames) -> bool:
        known = [f"{names.router}.weight", *([names.correction] if mixture.correction else [])]
        return all(m.weights.has(f"{layer}.{name}") for name in known)

    return next(filter(are_there, mixture.names), mixture.names[0])


def _correction(m: ModelBuilder, name: str, mixture: Mixture) -> relax.Var:
    """What is added to the scores where experts are chosen, [experts], in some checkpoints [1, experts]."""
    if not mixture.correction_of_groups:
        return m.weight(name, (mixture.experts,), scale=0.1)
    stored = m.source(name, (1, mixture.experts), scale=0.1)
    return m.derived(f"{name}:row", "group_part", [stored], (mixture.experts,), index=0)


def _gate_up(m: ModelBuilder, layer: str, mixture: Mixture, names: ExpertNames, hidden: int) -> relax.Var:
    """The weight [experts, 2 width, hidden] of gates and projections up."""
    if not names.stacked_gate:
        return _stacked(m, layer, mixture, names.stacked_gate_up, (names.gate, names.up), mixture.width, hidden)
    shape, scale = (mixture.experts, mixture.width, hidden), 1 / math.sqrt(hidden)
    pair = [
        _flat(m, f"{layer}.{name}", shape, scale) if mixture.flat else m.source(f"{layer}.{name}", shape, scale=scale)
        for name in (names.stacked_gate, names.stacked_up)
    ]
    return m.derived("+".join(pair), "concat", pair, (mixture.experts, 2 * mixture.width, hidden), axis=1)


def _stacked(
    m: ModelBuilder, layer: str, mixture: Mixture, whole: str, parts: Sequence[str], columns: int, k: int
) -> relax.Var:
    """The weight [experts, parts * columns, k]: one tensor of the checkpoint, or made of those of every expert."""
    shape, scale = (mixture.experts, len(parts) * columns, k), 1 / math.sqrt(k)
    if mixture.turned or mixture.flat:
        return _turned(m, mixture, f"{layer}.{whole}", len(parts) * columns, k, by_turns=len(parts) > 1)
    if whole and m.weights.has(f"{layer}.{whole}"):
        return m.weight(f"{layer}.{whole}", shape, scale=scale)
    singles = [
        m.source(f"{layer}.{part.format(expert)}.weight", (columns, k), scale=scale)
        for expert in range(mixture.experts)
        for part in parts
    ]
    stem = f"{layer}.{'+'.join(part.format('*') for part in parts)}"
    return m.derived(f"{stem}:stacked", "stack", singles, shape, joined=len(parts))


def _flat(m: ModelBuilder, name: str, shape: tuple[int, int, int], scale: float) -> str:
    """The name of a tensor of this shape that is stored with its experts one behind the other."""
    m.source(name, (shape[0] * shape[1], shape[2]), scale=scale)
    return m.reshaped(f"{name}:experts", name, shape)


def _shared(
    c: DecoderConfig, mixture: Mixture, names: ExpertNames, m: ModelBuilder, x: relax.Var, layer: str
) -> relax.Var:
    """The expert that every row is sent to."""
    if names.shared_gate_up:
        args = weights.halves(m, f"{layer}.{names.shared_gate_up}", c.hidden, mixture.shared, "nk", False)
    else:
        stems = [f"{layer}.{stem}" for stem in ([names.shared_gate] if mixture.gated else []) + [names.shared_up]]
        args = [w for stem in stems for w in m.linear_weights(stem, c.hidden, mixture.shared, bias=False)]
    args += m.linear_weights(f"{layer}.{names.shared_down}", mixture.shared, c.hidden, bias=False)
    out = m.op("ffn", x, *args, activation=c.activation, gated=mixture.gated, bias=False, layout="nk")
    if not mixture.shared_switch:
        return out
    switch = m.linear(x, f"{layer}.{names.shared_switch}", c.hidden, 1, bias=False)
    return m.emit(relax.op.multiply(m.emit(relax.op.sigmoid(switch)), out))
