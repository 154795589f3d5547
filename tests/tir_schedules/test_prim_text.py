"""Functions written as text: read as TVM's parser reads them, in a fraction of its time."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from attention_functions import attributes, function
from tvm import relax
from tvm.script import tirx as script_tirx

from halo_tvm import prim_text
from halo_tvm.prim_text import prim_func
from halo_tvm.relay_ops import append_heads, kv_append
from halo_tvm.targets import Target
from halo_tvm.targets.x86 import X86
from halo_tvm.tir_schedules import RULES
from halo_tvm.tir_schedules.attention import _function

LEVELS = {isa.name: Target(X86, isa, cores=2) for isa in X86.isas}

SHADOWED = """
@T.prim_func(s_tir=True, private=True)
def shadowed(p_x: T.handle):
    n = T.int64()
    x = T.match_buffer(p_x, (n,), "float32")
    with T.sblock("root"):
        T.reads()
        T.writes()
        sum = T.alloc_buffer((1,), "float32")
        for i in T.serial(n):
            if i < 4 and i != T.int64(2) or i >= 7:
                sum = T.alloc_buffer((1,), "float32")
                sum[0] = -x[i] * T.float32(2)
            else:
                at: T.let[T.int64] = i + 1
                sum[0] = x[at]
        x[0] = sum[0]
"""
LEFT = """
@T.prim_func(s_tir=True, private=True)
def left(x: T.Buffer((4,), "float32")):
    x[0] = x[1] if 1 > 0 else x[2]
"""


def parsed(text: str, imports: str = "") -> tvm.tirx.PrimFunc:
    return tvm.script.from_source(text, extra_vars={"T": script_tirx, "imports": imports})


def write_texts() -> None:
    """Attention of every kind, over caches of both widths; what appends to them."""
    q, kv = ("b", "s", 2, 16), [("b", "t", 1, 16)] * 2
    cached = attributes(2, 1, 16, has_lengths=True, causal=True)
    narrow = attributes(2, 1, 32, products="bfloat16", has_bias=True, softcap=2.0)
    wide = [("b", "s", 2, 32), *[("b", "t", 1, 32)] * 2, (1, 1, "s", "t")]
    for rule, level, shapes, dtypes, attrs in (
        ("flash_attention", "avx2", [q, *kv, ("b", "t")], ["float32"] * 3 + ["int64"], {"has_key_mask": True}),
        ("flash_attention", "avx512-bf16", wide, None, narrow),
        ("decode_attention", "avx2", [("b", 1, 2, 16), *kv, ("b",)], ["float32", *["float16"] * 2, "int32"], cached),
    ):
        func, target = function(shapes, {**attributes(2, 1, 16), **attrs}, dtypes), LEVELS[level]
        RULES[rule].apply(func, target, RULES[rule].default(func, target))
    row, lengths, tables = (3, 4, 6, 16), relax.TensorType([3], "int32"), [relax.TensorType([9, 8], "float32")] * 2
    for kept in ("float32", "float16"):
        cache = relax.TensorType([3, tvm.tirx.Var("t", "int64"), 2, 16], kept)
        append_heads._in_place([relax.TensorType(row, "float32"), cache, cache, lengths, *tables])
    kv_append._in_place(cache, relax.TensorType((3, 4, 2, 16), "float32"))


@pytest.mark.slow
def test_texts_are_read_as_the_parser_reads_them(monkeypatch) -> None:
    texts: dict[str, str] = {SHADOWED: ""}
    for module in (append_heads, kv_append, _function):

        def noted(text: str, imports: str = "") -> tvm.tirx.PrimFunc:
            texts[text] = imports
            return prim_func(text, imports)

        monkeypatch.setattr(module, "prim_func", noted)
    write_texts()
    wanted = {text: parsed(text, imports) for text, imports in texts.items()}
    assert len(wanted) >= 5 and any(texts.values())
    monkeypatch.setattr(tvm.script, "from_source", lambda *_: pytest.fail("a text of this package was left to TVM"))
    prim_func.cache_clear()
    for text, wished in wanted.items():
        assert tvm_ffi.structural_equal(prim_func(text, texts[text]), wished)
    assert prim_func(SHADOWED) is prim_func(SHADOWED)


def test_other_words_are_left_to_the_parser(monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(prim_text.tvm.script, "from_source", lambda text, **_: asked.append(text))
    prim_func(LEFT)
    assert asked == [LEFT]
