"""T5 whole: a text is read once, then the answer is said token by token, behind caches.

Shapes, for every decoder layer i
    main      input_ids, attention_mask [batch, source], decoder_input_ids [batch, tokens] int64
              ->   logits [batch, tokens, vocabulary]
    encode    input_ids, attention_mask [batch, sequence]   ->   last_hidden_state [batch, sequence, hidden]
    cross     last_hidden_state   ->   cross_key_i, cross_value_i [batch, source, heads, head_dim]
    decode    input_ids [1, 1] int64, lengths [1] int32, cross_key_i, cross_value_i [1, source, heads, head_dim], and
              key_i, value_i [1, capacity, heads, head_dim], written in place   ->   logits [1, vocabulary]
    attention_mask defaults to ones; `lengths` says how many positions of the caches are filled before the call
References
    arXiv:1910.10683; arXiv:2002.05202 (the gated feed-forward of T5 1.1)
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from ..imported import InputSpec
from ..relay_ops.parts.kept_rows import kept_columns
from . import _t5, t5, t5_cross, t5_decoder
from ._definition import Entry, Family, Interface
from ._t5 import T5Config
from .builder import ModelBuilder, rows_of

_ANSWER = 2048  # tokens that the caches have room for at most; positions have no end in T5


def interface(c: T5Config) -> Interface:
    ids = (0, c.vocabulary - 1)
    inputs = (
        InputSpec("input_ids", ("batch", "source"), "int64", values=ids),
        InputSpec("attention_mask", ("batch", "source"), "int64", values=(0, 1), default="ones"),
        InputSpec("decoder_input_ids", ("batch", "tokens"), "int64", values=ids),
    )
    ranges = {"batch": (1, 16), "source": (1, _t5.LONGEST), "tokens": (1, _t5.LONGEST)}
    return Interface(inputs, ranges, {"batch": 1, "source": 128, "tokens": 32})


def define(c: T5Config, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    states = t5.encode(c, m)
    cross = t5_cross.cross(c, m, states)
    ids = m.inputs["decoder_input_ids"]
    tokens = rows_of(ids)[1]

    def attended(x: relax.Var, normed: relax.Var, i: int, name: str, bias: relax.Var) -> relax.Var:
        args = [*(_t5.project(c, m, normed, f"{name}.{part}") for part in "qkv"), bias]
        return _t5.attend(c, m, x, name, args, causal=True, has_bias=True)

    positions = _t5.positions(m, 0, tokens, axis=1)
    mask = m.inputs["attention_mask"]
    return {"logits": t5_decoder.decode(c, m, ids, positions, tokens, attended, cross, mask)}


def entries(c: T5Config) -> Mapping[str, Entry[T5Config]]:
    """`encode` and `cross`, once per text, and `decode`, whose caches are state in place."""
    return {
        "encode": Entry(lambda config, _: t5.interface(config), t5.define),
        "cross": Entry(lambda config, _: t5_cross.interface(config), t5_cross.define),
        "decode": Entry(_decode_interface, _define_decode),
    }


def _decode_interface(c: T5Config, dtype: str) -> Interface:
    row = (1, "capacity", c.heads, kept_columns(c.head_dim, dtype))
    caches = [InputSpec(f"{kind}_{i}", row, dtype) for i in range(c.decoder_layers) for kind in ("key", "value")]
    inputs = (
        InputSpec("input_ids", (1, 1), "int64", values=(0, c.vocabulary - 1)),
        InputSpec("lengths", (1,), "int32", values=(0, _ANSWER - 1), room=(1, "capacity")),
        *t5_decoder.cross_inputs(c, 1),
        *caches,
    )
    ranges = {"source": (1, _t5.LONGEST), "capacity": (1, _ANSWER)}
    return Interface(inputs, ranges, {"source": 128, "capacity": 512}, state=tuple(spec.name for spec in caches))


def _define_decode(c: T5Config, m: ModelBuilder) -> Mapping[str, relax.Expr]:
    lengths = m.inputs["lengths"]
    filled = m.emit(relax.op.add(lengths, relax.const(1, "int32")))

    def attended(x: relax.Var, normed: relax.Var, i: int, name: str, bias: relax.Var) -> relax.Var:
        heads = _t5.project_joined(c, m, normed, name)
        found = m.op("append_heads", heads, m.inputs[f"key_{i}"], m.inputs[f"value_{i}"], lengths)
        args = [*(m.emit(relax.TupleGetItem(found, place)) for place in range(3)), bias, filled]
        return _t5.attend(c, m, x, name, args, causal=True, has_bias=True, has_lengths=True)

    position = m.emit(relax.op.astype(m.emit(relax.op.expand_dims(lengths, 1)), "int64"))
    logits = t5_decoder.decode(c, m, m.inputs["input_ids"], position, m.dim("capacity"), attended, m.inputs, mask=None)
    return {"logits": m.emit(relax.op.reshape(logits, (1, c.vocabulary)))}


T5_SEQ2SEQ = Family(
    name="t5-seq2seq",
    presets={},
    interface=interface,
    define=define,
    entries=entries,
    huggingface_types=_t5.HUGGINGFACE_TYPES,
    heads=("ForConditionalGeneration", "WithLMHeadModel"),
    from_huggingface=_t5.from_huggingface,
)
