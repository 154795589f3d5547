"""What additive masks mean: each spelling, over symbolic sizes, and what must stay a bias."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from halo_tvm.passes.lift import apply_lift
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.relay_ops.operator import attrs_of

op = relax.op
LEAST = float(np.finfo("float32").min)
B, S, T = (tirx.Var(name, "int64") for name in "bst")


def number(value: float, dtype: str = "float32") -> relax.Expr:
    return relax.const(value, dtype)


class Graph:
    """The mask's surroundings: emit, the positions of queries [s, 1] and keys [1, t], and a padding mask [b, t]."""

    def __init__(self, builder: relax.BlockBuilder, padding: relax.Var, s: object, t: object) -> None:
        self.emit, self.padding, self.s, self.t = builder.emit, padding, s, t

    def queries(self, shift: object = 0) -> relax.Expr:
        return self.emit(op.reshape(self.emit(op.arange(shift, self.s + shift, 1, "int64")), [self.s, 1]))

    def keys(self) -> relax.Expr:
        return self.emit(op.reshape(self.emit(op.arange(0, self.t, 1, "int64")), [1, self.t]))

    def visible(self) -> relax.Expr:
        """The padding mask as a condition [b, 1, 1, t]."""
        held = self.emit(op.not_equal(self.padding, number(0, "int64")))
        return self.emit(op.reshape(held, [self.padding.ty.shape.values[0], 1, 1, self.t]))

    def by_key(self, mask: relax.Expr) -> relax.Expr:
        """A tensor [b, t] as [b, 1, 1, t]."""
        return self.emit(op.reshape(mask, [mask.ty.shape.values[0], 1, 1, self.t]))

    def by_query(self, mask: relax.Expr) -> relax.Expr:
        """A tensor [b, t] as [b, 1, t, 1]."""
        return self.emit(op.reshape(mask, [mask.ty.shape.values[0], 1, self.t, 1]))

    def opposite(self, mask: relax.Expr) -> relax.Expr:
        """1 - mask in float32, [b, 1, 1, t]."""
        return self.emit(op.subtract(number(1.0), self.emit(op.astype(self.by_key(mask), "float32"))))

    def hide_unless(self, condition: relax.Expr) -> relax.Expr:
        """0 where the condition holds, else the lowest number, [.., s, t]."""
        return self.emit(op.where(condition, number(0.0), number(LEAST)))

    def whole(self, mask: relax.Expr) -> relax.Expr:
        return self.emit(op.reshape(mask, [1, 1, self.s, self.t])) if mask.ty.ndim == 2 else mask


def lifted(
    mask: Callable[[Graph], relax.Expr], s: object = S, t: object = S, batch: object = B
) -> tuple[tvm.IRModule, tvm.IRModule, list[str]]:
    """An attention whose bias is the mask, the same after the lift, and what the lift refused."""
    q, k = (relax.Var(n, relax.TensorType([B, size, 2, 8], "float32")) for n, size in (("q", s), ("k", t)))
    padding = relax.Var("padding", relax.TensorType([batch, t], "int64"))
    extra = relax.Var("extra", relax.TensorType([1, 2, s, t], "float32"))
    flag, share = (relax.Var(n, relax.TensorType([batch, t], d)) for n, d in (("flag", "bool"), ("share", "float32")))
    params = [q, k, padding, extra, flag, share]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            graph = Graph(builder, padding, s, t)
            graph.extra, graph.flag, graph.share = extra, flag, share
            bias = graph.whole(mask(graph))
            base = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "scale": 1.0, "has_bias": True}
            out = builder.emit_output(OPERATORS["attention"].call(q, k, k, bias, **base))
        builder.emit_func_output(out)
    before = builder.get()
    before["main"] = before["main"].with_attr("num_input", len(params))
    rejected: list[dict[str, str]] = []
    lift = next(x for x in OPERATORS["attention"].lifts() if x.name == "attention.mask")
    after, _ = apply_lift(before, lift, rejected)
    return before, after, [r["reason"] for r in rejected]


def meaning(
    mask: Callable[[Graph], relax.Expr], s: object = S, t: object = S, batch: object = B
) -> tuple[dict, list[str]]:
    """The attributes of an attention whose bias is the mask, after the lift, and what the lift refused."""
    _, mod, refused = lifted(mask, s, t, batch)
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    attention = next(c for c in calls if isinstance(c, relax.Call) and c.op.name == "relax.halo.attention")
    kept = {
        key: value
        for key, value in attrs_of(attention).items()
        if key in ("causal", "window", "has_key_mask", "has_bias") and value
    }
    return kept, refused


UNOPTIMISED = tvm.target.Target({"kind": "llvm", "opt-level": 0})  # what is compared is built for one call


def results(mask: Callable[[Graph], relax.Expr], **given: np.ndarray) -> list[np.ndarray]:
    """What the attention gives before and after the lift, on 3 batches of 5 positions; the first key is visible."""
    rng = np.random.default_rng(0)
    first = np.eye(1, 5, dtype=bool)
    arrays = {
        **{name: rng.standard_normal([3, 5, 2, 8]).astype("float32") for name in "qk"},
        "padding": (rng.random([3, 5]) < 0.5) | first,
        "extra": rng.standard_normal([1, 2, 5, 5]).astype("float32"),
        "flag": (rng.random([3, 5]) < 0.5) & ~first,
        "share": np.where(first, 1.0, rng.choice([0.0, 0.5, 1.0, 2.0], [3, 5])).astype("float32"),
        **given,
    }
    arrays["padding"] = arrays["padding"].astype("int64")
    out = []
    for mod in lifted(mask)[:2]:
        machine = relax.VirtualMachine(relax.build(relax.transform.LegalizeOps()(mod), UNOPTIMISED), tvm.cpu())
        out.append(machine["main"](*map(tvm.runtime.tensor, arrays.values())).numpy())
    return out


def causal(g: Graph) -> relax.Expr:
    return g.emit(op.less_equal(g.keys(), g.queries()))


def in_window(g: Graph) -> relax.Expr:
    return g.emit(op.greater(g.keys(), g.emit(op.subtract(g.queries(), number(4, "int64")))))


CAUSAL, PADDED = {"causal": True}, {"has_key_mask": True}
SPELLINGS = {
    "comparison": (lambda g: g.hide_unless(causal(g)), CAUSAL),
    "comparison, sides exchanged": (lambda g: g.hide_unless(g.emit(op.greater_equal(g.queries(), g.keys()))), CAUSAL),
    "strictly above": (
        lambda g: g.emit(op.where(g.emit(op.greater(g.keys(), g.queries())), number(-np.inf), number(0.0))),
        CAUSAL,
    ),
    "triangle of ones": (
        lambda g: g.hide_unless(g.emit(op.astype(g.emit(op.tril(g.emit(op.ones([g.s, g.s], "float32")))), "bool"))),
        CAUSAL,
    ),
    "upper triangle of lowest numbers": (
        lambda g: g.emit(op.triu(g.emit(op.full([g.s, g.s], number(LEAST), "float32")), 1)),
        CAUSAL,
    ),
    "window": (
        lambda g: g.hide_unless(g.emit(op.logical_and(causal(g), in_window(g)))),
        {"causal": True, "window": 4},
    ),
    "padding, selected": (lambda g: g.hide_unless(g.visible()), PADDED),
    "padding, (1 - mask) * lowest": (
        lambda g: g.emit(
            op.multiply(
                g.emit(op.subtract(number(1.0), g.emit(op.astype(g.visible(), "float32")))),
                number(LEAST),
            )
        ),
        PADDED,
    ),
    "causal and padding": (lambda g: g.hide_unless(g.emit(op.logical_and(causal(g), g.visible()))), CAUSAL | PADDED),
    "sum of causal and padding": (
        lambda g: g.emit(op.add(g.whole(g.hide_unless(causal(g))), g.hide_unless(g.visible()))),
        CAUSAL | PADDED,
    ),
    "a condition of keys that is no input": (
        lambda g: g.hide_unless(
            g.emit(
                op.reshape(
                    g.emit(op.greater(g.emit(op.sin(g.emit(op.astype(g.padding, "float32")))), number(0.5))),
                    [B, 1, 1, g.t],
                )
            )
        ),
        PADDED,
    ),
    "causality beside a real bias": (
        lambda g: g.emit(op.add(g.extra, g.whole(g.hide_unless(causal(g))))),
        CAUSAL | {"has_bias": True},
    ),
    "padding, 1 - mask of integers": (
        lambda g: g.emit(
            op.multiply(
                g.emit(op.astype(g.emit(op.subtract(number(1, "int64"), g.by_key(g.padding))), "float32")),
                number(LEAST),
            )
        ),
        PADDED,
    ),
    "padding, filled where 1 - mask over 1 - mask": (
        lambda g: g.emit(
            op.where(g.emit(op.astype(g.opposite(g.padding), "bool")), number(LEAST), g.opposite(g.padding))
        ),
        PADDED,
    ),
    "a bool input that hides": (lambda g: g.emit(op.where(g.by_key(g.flag), number(-np.inf), number(0.0))), PADDED),
    "a bool input that hides, as a product": (
        lambda g: g.emit(op.multiply(g.emit(op.astype(g.by_key(g.flag), "float32")), number(LEAST))),
        PADDED,
    ),
    "causal and a bool input that hides": (
        lambda g: g.hide_unless(g.emit(op.logical_and(causal(g), g.emit(op.logical_not(g.by_key(g.flag)))))),
        CAUSAL | PADDED,
    ),
    "numbers compared with 0": (
        lambda g: g.hide_unless(g.emit(op.not_equal(g.by_key(g.share), number(0.0)))),
        PADDED,
    ),
    "numbers cast to bool": (lambda g: g.hide_unless(g.emit(op.astype(g.by_key(g.share), "bool"))), PADDED),
    "numbers cut to integers, compared with 0": (
        lambda g: g.hide_unless(
            g.emit(op.not_equal(g.emit(op.astype(g.by_key(g.share), "int64")), number(0, "int64")))
        ),
        PADDED,
    ),
    "nothing hidden": (lambda g: g.emit(op.full([g.s, g.t], number(0.0), "float32")), {}),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.sampled(6, 12)
def test_spellings(name: str) -> None:
    mask, expected = SPELLINGS[name]
    found, refused = meaning(mask)
    assert found == expected and not refused
    before, after = results(mask)
    np.testing.assert_allclose(after, before, atol=2e-6)


def test_causality_behind_a_cache() -> None:
    past = T - S
    found, refused = meaning(lambda g: g.hide_unless(g.emit(op.less_equal(g.keys(), g.queries(past)))), S, T)
    assert found == CAUSAL and not refused


STATIC = np.arange(12)
BANDS = {
    "causal": (STATIC[None] <= STATIC[:, None], CAUSAL),
    "window": ((STATIC[None] <= STATIC[:, None]) & (STATIC[None] > STATIC[:, None] - 4), {"causal": True, "window": 4}),
    "local": (STATIC[None] > STATIC[:, None] - 4, {"window": 4}),
}


@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("as_bool", [True, False])
def test_constants(name: str, as_bool: bool) -> None:
    visible, expected = BANDS[name]

    def mask(g: Graph) -> relax.Expr:
        if as_bool:
            return g.hide_unless(relax.const(visible))
        return g.emit(op.reshape(relax.const(np.where(visible, 0, LEAST).astype("float32")), [12, 12]))

    found, refused = meaning(mask, tirx.IntImm("int64", 12), tirx.IntImm("int64", 12))
    assert found == expected and not refused


def weak(g: Graph) -> relax.Expr:
    return g.emit(op.where(g.visible(), number(0.0), number(-10000.0)))


STAY = {
    "too weak to hide": (weak, "none is large and negative"),
    "one key too far": (
        lambda g: g.hide_unless(g.emit(op.less_equal(g.keys(), g.queries(1)))),
        "keys up to 1 behind the query, expected up to 0",
    ),
    "blocks of the diagonal": (
        lambda g: g.hide_unless(
            g.emit(
                op.equal(
                    g.emit(op.floor_divide(g.keys(), number(4, "int64"))),
                    g.emit(op.floor_divide(g.queries(), number(4, "int64"))),
                )
            )
        ),
        "data",
    ),
    "padding of keys and queries": (
        lambda g: g.hide_unless(g.emit(op.logical_and(g.visible(), g.emit(op.astype(g.by_query(g.padding), "bool"))))),
        "a tensor read at [b, i]",
    ),
    "padding of queries and keys": (
        lambda g: g.hide_unless(
            g.emit(op.astype(g.emit(op.multiply(g.by_query(g.padding), g.by_key(g.padding))), "bool"))
        ),
        "a tensor read at [b, i]",
    ),
    "1 - numbers": (
        lambda g: g.emit(op.multiply(g.opposite(g.share), number(LEAST))),
        "a tensor of float32 computed with as if it were 0 or 1",
    ),
    "1 - computed integers": (
        lambda g: g.emit(op.multiply(g.opposite(g.emit(op.abs(g.padding))), number(LEAST))),
        "a tensor of int64 computed with as if it were 0 or 1",
    ),
    "numbers as a factor": (
        lambda g: g.emit(op.multiply(g.by_key(g.share), number(LEAST))),
        "a tensor of float32 computed with as if it were 0 or 1",
    ),
    "1 - numbers cut to integers": (
        lambda g: g.emit(op.multiply(g.opposite(g.emit(op.astype(g.share, "int64"))), number(LEAST))),
        "a tensor of float32 cast to int64",
    ),
    "1 - numbers cut to fewer bits": (
        lambda g: g.emit(op.multiply(g.opposite(g.emit(op.astype(g.share, "float16"))), number(LEAST))),
        "a tensor of float32 cast to float16",
    ),
    "bits of integers inverted": (
        lambda g: g.emit(
            op.multiply(
                g.emit(op.astype(g.emit(op.bitwise_not(g.by_key(g.padding))), "float32")),
                number(LEAST),
            )
        ),
        "the bits of an integer inverted",
    ),
    "a real bias": (lambda g: g.extra, "neither 0 nor large and negative"),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays_a_bias(name: str) -> None:
    mask, reason = STAY[name]
    found, refused = meaning(mask)
    assert found == {"has_bias": True}
    assert len(refused) == 1 and "the mask stays a bias" in refused[0] and reason in refused[0], refused


def test_one_row_of_padding_serves_every_batch() -> None:
    def mask(g: Graph) -> relax.Expr:
        held = g.emit(op.not_equal(g.emit(op.strided_slice(g.padding, [0], [0], [1])), number(0, "int64")))
        return g.hide_unless(g.emit(op.reshape(held, [1, 1, 1, g.t])))

    found, refused = meaning(mask)
    assert found == PADDED and not refused


def test_a_row_hidden_by_finite_numbers_gives_zeros() -> None:
    hidden = np.ones([3, 5], dtype=bool)
    hidden[1] = False
    before, after = results(lambda g: g.emit(op.where(g.visible(), number(0.0), number(-1e9))), padding=hidden)
    np.testing.assert_allclose(after[[0, 2]], before[[0, 2]], atol=2e-6)
    assert before[1].any() and not after[1].any()
