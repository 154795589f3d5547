"""Attention PrimFuncs as the compiler makes them, built by one rule and compared with float64."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx

from halo_tvm import code_generation
from halo_tvm.relay_ops import OPERATORS
from halo_tvm.targets import Target
from halo_tvm.targets.x86 import X86

Attention = OPERATORS["attention"]
TARGETS = {isa.name: Target(X86, isa, cores=2) for isa in X86.isas[:2]}
SEEN = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 20},
    "softcap": {"softcap": 2.0},
}


def function(shapes, attrs, dtypes=None):
    """The PrimFunc of one call; a string in a shape is a symbolic dimension."""
    dims: dict[str, tirx.Var] = {}
    arguments = []
    for i, shape in enumerate(shapes):
        shape = [dims.setdefault(x, tirx.Var(x, "int64")) if isinstance(x, str) else x for x in shape]
        arguments.append(relax.Var(f"x{i}", relax.TensorType(shape, dtypes[i] if dtypes else "float32")))
    bb = relax.BlockBuilder()
    with bb.function("main", arguments):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(Attention.call(*arguments, **attrs)))
        bb.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(bb.get())
    return next(f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))


def compiled(rule, func, target, decision=None):
    """`func` as `rule` schedules it, built; `decision` is its default unless given."""
    func = rule.apply(func, target, decision or rule.default(func, target))
    assert func.attrs["tirx.is_scheduled"]
    return code_generation.compiled(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)


def check(executable, arrays, attrs, tolerance=2e-6):
    """Compare with float64; the output starts as NaN so that unwritten elements show."""
    exact = Attention.reference(*[x.astype("float64") if x.dtype == "float32" else x for x in arrays], **attrs)
    out = tvm.runtime.tensor(np.full(exact.shape, np.nan, "float32"))
    executable["main"](*map(tvm.runtime.tensor, arrays), out)
    assert np.abs(out.numpy() - exact).max() < tolerance, [x.shape for x in arrays]


def check_nan_stays(executable, arrays, attrs):
    """One NaN in q, in k or in v, or an infinite query: the result is NaN where it is in float64, and nowhere else."""
    infinite = [] if attrs.get("softcap") else [(0, np.inf)]  # which tanh makes finite
    for which, value in ((0, np.nan), (1, np.nan), (2, np.nan), *infinite):
        given = [x.copy() for x in arrays]
        given[which][0, -1, 0, 3] = value
        with np.errstate(invalid="ignore"):
            exact = Attention.reference(*[x.astype("float64") for x in given], **attrs)
        assert np.isnan(exact).any() and not np.isnan(exact).all()
        out = tvm.runtime.tensor(np.zeros(exact.shape, "float32"))
        executable["main"](*map(tvm.runtime.tensor, given), out)
        np.testing.assert_allclose(out.numpy(), exact, rtol=0, atol=2e-6)


def normal(*shapes):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def of_a_cache(arrays, lengths):
    """q, keys and values whose rows behind the valid ones are NaN, of which nothing may come, and the lengths."""
    for x in arrays[1:]:
        for n, length in enumerate(lengths):
            x[n, max(0, length) :] = -1 if x.dtype == np.int8 else np.nan  # bytes of a scale of NaN
    return [*arrays, np.array(lengths, "int32")]


def attributes(h, h_kv, d, **more):
    return {"num_heads": h, "num_kv_heads": h_kv, "head_dim": d, "scale": d**-0.5, **more}


def rounded_to_bfloat16(x):
    """float32 values with 8 bits of significand, rounded to nearest even, as float64."""
    bits = np.ascontiguousarray(x, "float32").view("uint32")
    half = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return ((bits + half) & np.uint32(0xFFFF0000)).view("float32").astype("float64")
