"""Code for functions that TVM's own passes go wrong on."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.script import tirx as T

from halo_tvm.code_generation import compiled
from halo_tvm.targets import resolve


@T.prim_func(s_tir=True)
def mirrored(x: T.Buffer((T.int64(24), T.int64(24)), "float32"), y: T.Buffer((T.int64(26), T.int64(26)), "float32")):
    T.func_attr({"tirx.noalias": True})
    held = T.sblock_alloc_buffer((T.int64(24), T.int64(24)))
    for i in T.parallel(T.int64(576)):
        with T.sblock("twice"):
            v = T.axis.spatial(T.int64(24), i // T.int64(24))
            w = T.axis.spatial(T.int64(24), i % T.int64(24))
            held[v, w] = x[v, w] * T.float32(2)
    for i in T.parallel(T.int64(676)):
        with T.sblock("border"):
            v = T.axis.spatial(T.int64(26), i // T.int64(26))
            w = T.axis.spatial(T.int64(26), i % T.int64(26))
            y[v, w] = held[
                T.min((v + T.int64(45)) % T.int64(46), T.int64(46) - (v + T.int64(45)) % T.int64(46)),
                T.min((w + T.int64(45)) % T.int64(46), T.int64(46) - (w + T.int64(45)) % T.int64(46)),
            ]


def test_a_buffer_that_is_read_at_a_mirrored_border_keeps_its_size() -> None:
    """TVM would shrink it to what the variable of a later loop says."""
    x = np.random.default_rng(0).standard_normal((24, 24)).astype("float32")
    y = tvm.runtime.empty((26, 26), "float32")
    mod = tvm.IRModule({"main": mirrored.with_attr("global_symbol", "main")})
    compiled(mod, resolve("cpu")).jit()["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), np.pad(2 * x, 1, mode="reflect"))
