"""Multiplication with a weight parameter, and an optional bias.

Shapes
    x [..., k]   weight, by `layout`:
        "kn"      [k, n]
        "nk"      [n, k], also in float16 or bfloat16 under x of float32 (params.pack_nk)
        "packed"  [k/kc, ceil(n/nr), kc, nr], the last column block zero padded (params.pack_weight), also in float16
                  under x of float32 (params.pack_fp16), or
                  [k/kc, ceil(n/nr), kc/2, nr, 2] bfloat16 under x of float32, pairs along k (params.pack_bf16)
    bias [n] (optional)   ->   y [..., n]
Computation
    y[..., j] = sum_k x[..., k] * weight(k, j) + bias[j]
Lifts
    matmul(x, weight)                  =>   halo.linear(x, weight, layout="kn")
    matmul(x, permute_dims(weight))    =>   halo.linear(x, weight, layout="nk")
    add(halo.linear(x, weight), bias)  =>   halo.linear(x, weight, bias)
Rejects
    weight that is no function parameter; weight of another rank than 2; bias that is no vector of n; dtypes other
    than float32, float16 and bfloat16, or an out_dtype unlike them; a product that is used without its bias, too
Numerics
    accumulates in float32; a weight of bfloat16 is widened first, so that only its own rounding is lost. Under
    a weight of float16 a target with half arithmetic rounds x, too, and sums 128 products in float16; a GPU's tensor
    cores take x in the type of the weight, rounded, at float16 with a scale for each row, and sum in float32
References
    none: the definition
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te
from tvm.relax.dpl import is_op, wildcard

from ..errors import NoMatch, Rejected
from .operator import Lift, Operator, attrs_of, f32, require_float
from .parts.packed_weight import packed_at, unpacked


class Linear(Operator):
    """x @ weight + bias, the weight being a parameter."""

    name = "linear"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        x, weight = call.args[0].ty, call.args[1].ty
        attrs = attrs_of(call)
        ranks = (4, 5) if attrs["layout"] == "packed" else (2,)
        if weight.ndim not in ranks:
            rank = " or ".join(map(str, ranks))
            raise ValueError(f"halo.linear: weight in layout {attrs['layout']} has rank {rank}, got {weight}")
        if weight.ndim == 5 and (str(weight.dtype), str(x.dtype)) != ("bfloat16", "float32"):
            raise ValueError(f"halo.linear: expected pairs of bfloat16 under float32, got {weight} under {x}")
        if not isinstance(x.shape, relax.ShapeExpr):
            raise ValueError(f"halo.linear: expected rows of known shape, got {x}")
        return relax.TensorType([*x.shape.values[:-1], attrs["n"]], x.dtype)

    @staticmethod
    def compute(x: te.Tensor, weight: te.Tensor, *bias: te.Tensor, layout: str, n: int) -> te.Tensor:
        depth = x.shape[-1]
        k = te.reduce_axis((0, depth), "k")
        nr = int(weight.shape[3]) if layout == "packed" else 0

        def at(j, k):
            if layout == "packed":
                return packed_at(weight, k, j // nr, j % nr)
            return weight[k, j] if layout == "kn" else weight[j, k]

        # The padding columns of the last block are computed too: the reduction then has no bounds check,
        # only the stage behind it does.
        width = int(weight.shape[1]) * nr if layout == "packed" else n
        shape = [*x.shape[:-1], n]
        out = te.compute(
            [*x.shape[:-1], width],
            lambda *i: te.sum(f32(x[(*i[:-1], k)]) * f32(at(i[-1], k)), axis=k),
            name="linear",
            attrs={"halo.op": "linear"},
        )
        if bias:
            total = out
            out = te.compute(shape, lambda *i: total[i] + f32(bias[0][i[-1]]), name="bias")
        elif width != n:
            total = out
            out = te.compute(shape, lambda *i: total[i], name="crop")
        return out if x.dtype == "float32" else out.astype(x.dtype)

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, *bias: np.ndarray, layout: str, n: int) -> np.ndarray:
        weight = (unpacked(weight, n) if layout == "packed" else weight).astype(x.dtype)
        y = x @ (weight.T if layout == "nk" else weight)
        return y + bias[0] if bias else y

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], layout: str, n: int) -> int:
        return 2 * int(np.prod(shapes[0])) * n

    @staticmethod
    def cases():
        import ml_dtypes  # a dependency of TVM

        pairs = np.random.default_rng(0).standard_normal((2, 3, 16, 48, 2)).astype(ml_dtypes.bfloat16)
        return (
            {"args": [(5, 24), (24, 10)], "attrs": {"layout": "kn", "n": 10}},
            {"args": [(2, 3, 24), (10, 24), (10,)], "attrs": {"layout": "nk", "n": 10}},
            {"args": [(9, 32), (1, 2, 32, 48), (96,)], "attrs": {"layout": "packed", "n": 96}},
            {"args": [(13, 64), (2, 3, 32, 48), (131,)], "attrs": {"layout": "packed", "n": 131}},
            {"args": [(1, 64), (2, 3, 32, 48)], "attrs": {"layout": "packed", "n": 131}},
            {"args": [(13, 64), pairs, (131,)], "attrs": {"layout": "packed", "n": 131}},
        )

    @staticmethod
    def lifts():
        x, weight, bias = wildcard(), wildcard(), wildcard()
        plain = is_op("relax.matmul")(x, weight)
        turned = is_op("relax.permute_dims")(weight)
        transposed = is_op("relax.matmul")(x, turned)
        bare = is_op("relax.halo.linear")(x, weight)
        with_bias = is_op("relax.add")(bare, bias) | is_op("relax.add")(bias, bare)

        def weight_of(match, product):
            require_float(match[x], match[weight], out_dtype=match[product].attrs.out_dtype)
            if not match.is_param(match[weight]):
                raise Rejected("the weight is no parameter of the function")
            if match[weight].ty.ndim != 2:
                raise Rejected(f"the weight must have rank 2, found {match[weight].ty}")
            return match[weight]

        def build_plain(match):
            w = weight_of(match, plain)
            return Linear.call(match[x], w, layout="kn", n=int(w.ty.shape.values[1]))

        def build_transposed(match):
            w = weight_of(match, transposed)
            axes = match[turned].attrs.axes
            if axes is not None and [int(a) % 2 for a in axes] != [1, 0]:
                raise Rejected(f"the weight's transpose must swap its two axes, found {axes}")
            return Linear.call(match[x], w, layout="nk", n=int(w.ty.shape.values[0]))

        def build_bias(match):
            vector, attrs = match[bias], attrs_of(match[bare])
            n = attrs["n"]
            if not match.is_param(vector):
                raise NoMatch("an addition of something else than a weight")
            match.require_private("the product", bare)
            if vector.ty.ndim != 1 or int(vector.ty.shape.values[0]) != n:
                raise Rejected(f"the bias must be a parameter, a vector of {n}, found {vector.ty}")
            return Linear.call(match[x], match[weight], vector, **attrs)

        return (
            Lift("linear.transposed", transposed, build_transposed, benefit=31),
            Lift("linear.plain", plain, build_plain, benefit=30),
            Lift("linear.bias", with_bias, build_bias, benefit=29),
        )
