"""Workload keys: names never matter, everything else does, and another process finds the same key."""

import subprocess
import sys

import tvm
from tvm import te, tirx

from halo_tvm.records.workload import describe, family_of, workload_key
from halo_tvm.relay_ops.linear import Linear


def linear(
    names="abcd", dtype="float32", rows=None, k=64, n=96, nr=48, chunks=1, epilogue="max", constant=0.0, op="linear"
):
    m = tirx.Var(names[0] * 2, "int64") if rows is None else rows
    x = te.placeholder((m, k), dtype, name=names[0])
    w = te.placeholder((chunks, n // nr, k // chunks, nr), dtype, name=names[1])
    b = te.placeholder((n,), dtype, name=names[2])
    y = Linear.compute(x, w, b, layout="packed", n=n)
    if epilogue == "max":
        y = te.compute(y.shape, lambda i, j: te.max(y[i, j], tirx.const(constant, dtype)), name=names[3])
    elif epilogue == "exp":
        y = te.compute(y.shape, lambda i, j: te.exp(y[i, j]), name=names[3])
    return te.create_prim_func([x, w, b, y])


def test_names_do_not_matter():
    assert workload_key(linear("abcd")) == workload_key(linear("wxyz"))
    assert workload_key(linear()) == workload_key(linear().with_attr("global_symbol", "other"))


CHANGES = {
    "dtype": {"dtype": "float16"},
    "static rows": {"rows": 8},
    "depth": {"k": 128},
    "width": {"n": 192},
    "panel": {"nr": 32},
    "chunks": {"chunks": 2},
    "no epilogue": {"epilogue": ""},
    "other epilogue": {"epilogue": "exp"},
    "constant": {"constant": 1.0},
}


def test_everything_else_does():
    keys = {"base": workload_key(linear())} | {name: workload_key(linear(**c)) for name, c in CHANGES.items()}
    assert len(set(keys.values())) == len(keys), keys
    assert all(len(k) == 20 and int(k, 16) >= 0 for k in keys.values())


def _annotated(value):
    x = te.placeholder((4, 4), name="x")
    return te.create_prim_func([x, te.compute((4, 4), lambda i, j: x[i, j] * 2, attrs={"halo.op": value})])


def test_annotation_counts():
    assert workload_key(_annotated("a")) != workload_key(_annotated("b"))


def test_operand_use_counts():
    def subtract(swap):
        x, y = te.placeholder((4, 4), name="x"), te.placeholder((4, 4), name="y")
        z = te.compute((4, 4), lambda i, j: y[i, j] - x[i, j] if swap else x[i, j] - y[i, j])
        return te.create_prim_func([x, y, z])

    assert workload_key(subtract(False)) != workload_key(subtract(True))


def test_symbolic_dims_are_told_apart():
    def add(same):
        m, n = tirx.Var("m", "int64"), tirx.Var("n", "int64")
        x = te.placeholder((m, m if same else n), name="x")
        return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1)])

    assert workload_key(add(True)) != workload_key(add(False))


def test_operator_call_replaces_the_body():
    def call(**attrs):
        return linear().with_attr("halo.call", {"op": "attention", **attrs})

    base = workload_key(call(causal=True, scale=0.5))
    assert base == workload_key(
        linear("wxyz").with_attr("halo.call", {"scale": 0.5, "op": "attention", "causal": True})
    )
    assert base == workload_key(
        linear(epilogue="exp").with_attr("halo.call", {"op": "attention", "causal": True, "scale": 0.5})
    )
    assert base != workload_key(call(causal=False, scale=0.5))
    assert base != workload_key(call(causal=True, scale=0.25))
    assert base != workload_key(linear(k=128).with_attr("halo.call", {"op": "attention", "causal": True, "scale": 0.5}))
    assert describe(call(causal=True, scale=0.5)).startswith(
        "attention[aa,64]x[1,2,64,48]x[96] f32 (causal=True,scale=0.5"
    )


def test_same_key_after_json_and_in_a_fresh_process(tmp_path):
    func = linear()
    path = tmp_path / "func.json"
    path.write_text(tvm.ir.save_json(tvm.IRModule({"main": func})))
    code = (
        "import sys, tvm; from halo_tvm.records.workload import workload_key;"
        "print(workload_key(tvm.ir.load_json(open(sys.argv[1]).read())['main']))"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == workload_key(func)


def test_the_key_is_pinned():
    """A change of the canonical text loses every record in every log: raise it on purpose only."""
    assert workload_key(linear()) == PINNED


def test_describe():
    assert describe(linear("mwby")) == "linear[mm,64]x[1,2,64,48] f32 + bias + y"


PINNED = "a7b6d9b3d19e80c02b5b"


def test_a_family_is_what_sizes_have_in_common():
    base, extents = family_of(linear())
    assert family_of(linear("wxyz")) == (base, extents)
    for change in ("depth", "width", "panel"):
        other, numbers = family_of(linear(**CHANGES[change]))
        assert other == base and len(numbers) == len(extents) and numbers != extents, change
    assert family_of(linear(**CHANGES["constant"]))[0] != base  # zero stays: max(x, 0) is a function of its own
    for change in ("dtype", "static rows", "chunks", "no epilogue", "other epilogue"):
        assert family_of(linear(**CHANGES[change]))[0] != base, change


def test_a_family_of_operator_calls_ignores_their_numbers():
    def call(k=64, **attrs):
        return linear(k=k).with_attr("halo.call", {"op": "attention", **attrs})

    base = family_of(call(causal=True, scale=0.5, heads=12))[0]
    assert base == family_of(call(k=128, causal=True, scale=0.25, heads=16))[0]
    assert base != family_of(call(causal=False, scale=0.5, heads=12))[0]
