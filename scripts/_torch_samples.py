"""Samples of torch's operators: torch's own (OpInfo), and variants of them with special values, no elements or strides.

sample                       what the operator is called with, as torch's tests call it
special                      NaN, infinities and zeros of both signs among the elements
zeros                        nothing but zeros, so that integers are divided by zero
empty                        the first axis of every tensor has no element
strided                      every tensor lies in memory with gaps
grown                        dynamic sizes, run with every axis one longer than exported
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree

_MOST = 60  # samples of which the ones that are run are chosen

# What inference does not meet, or no two engines can agree on: prefix of the name -> why it is not in the table.
LEFT_OUT = {
    **dict.fromkeys(
        ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand", "uniform"),
        "draws random numbers",
    ),
    **dict.fromkeys(
        ("nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.feature_alpha_dropout"),
        "draws random numbers",
    ),
    **dict.fromkeys(("nn.functional.rrelu", "nn.functional.fractional_max_pool"), "draws random numbers"),
    **dict.fromkeys(("sparse", "to_sparse", "hash_tensor", "jiterator", "_segment_reduce"), "is no dense operator"),
    **dict.fromkeys(("torch._scaled", "torch.ops.aten._flash", "torch.ops.aten._efficient"), "is a GPU's"),
    **dict.fromkeys(("_softmax_backward", "max_pool2d_with_indices_backward", "native_dropout"), "is training's"),
    **dict.fromkeys(("_native_batch_norm_legit", "_batch_norm_with_update"), "is training's"),
    **dict.fromkeys(
        ("resize_", "zero_", "item", "broadcast_shapes", "empty_strided", "new_empty_strided"), "no values"
    ),
    "chalf": "is a complex number of 16-bit parts",
}
# Of inputs that are equal or NaN torch promises no order: indices are compared by the elements that they name.
PLACES = {"topk": 2, "sort": 1, "argsort": 1, "kthvalue": 2}  # OpInfo -> the position of its axis among the arguments
# An infinite weight meets 0 in another order of the same operations: special values are among the data alone.
WEIGHED = ("nn.functional.instance_norm", "nn.functional.batch_norm")
# Sequences that are searched are to be in order, numbers all of them: torch says nothing of others.
ORDERED = {"bucketize": 1, "searchsorted": 0}  # OpInfo -> the position of the sequence
# Elements are whatever lay there, or vectors of any sign in any basis of numbers that were drawn.
UNDEFINED = ("empty", "empty_like", "new_empty", "empty_permuted", "pca_lowrank", "svd_lowrank")
# LAPACK stops where it meets NaN or a matrix that has no inverse, and leaves what it has by then.
FACTORISED = (
    *("linalg.cholesky_ex", "linalg.householder_product", "linalg.inv_ex", "linalg.lu", "linalg.lu_factor_ex"),
    "linalg.qr",
)


@dataclass(frozen=True)
class Sample:
    """One call of an operator: a function of tensors, and the tensors."""

    name: str  # operator|dtype|kind and number
    function: Callable[..., object]
    tensors: tuple[torch.Tensor, ...]
    dynamic: bool = False  # exported with dynamic sizes
    grown: tuple[torch.Tensor, ...] | None = None  # the tensors of the run, where they are not those of the export

    def wanted(self) -> list[torch.Tensor]:
        """What torch computes, in eager mode."""
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the definition: its fast kernel loses NaN
            return outputs(self.function(*(self.grown or self.tensors)))


def outputs(result: object) -> list[torch.Tensor]:
    return [t for t in _pytree.tree_flatten(result)[0] if isinstance(t, torch.Tensor)]


def operators() -> dict[str, object]:
    """OpInfos by name and variant."""
    named = {f"{op.name}/{op.variant_test_name}".rstrip("/"): op for op in op_db}
    return {name: op for name, op in named.items() if not name.startswith(tuple(LEFT_OUT))}


def samples(op: object, name: str, dtype: str, count: int, variants: Collection[str]) -> Iterator[Sample]:
    """At most `count` samples, spread over those that torch has, and `variants`; the same ones every time."""
    own = getattr(torch, dtype)
    if own not in op.dtypes:
        return
    torch.manual_seed(0)
    found = list(itertools.islice(op.sample_inputs("cpu", own, requires_grad=False), _MOST))
    chosen = [found[i * len(found) // count] for i in range(count)] if len(found) > count else found
    calls = []
    for index, sample in enumerate(chosen):
        function, tensors = _call(op, sample)
        calls.append(Sample(f"{name}|{dtype}|{index}", function, tensors))
    yield from calls
    if not calls:
        return
    base = max(calls[:3], key=lambda c: sum(t.numel() for t in c.tensors[:2]))
    for kind in variants:
        if name in FACTORISED and kind in ("special", "grown"):  # what is grown repeats its rows
            continue
        torch.manual_seed(0)
        alone = kind == "special" and name.startswith(WEIGHED)
        changed = [t if i and alone else _VARIANTS[kind](t) for i, t in enumerate(base.tensors)]
        if (place := ORDERED.get(name)) is not None:
            changed[place] = base.tensors[place] if kind == "special" else changed[place].sort().values
        if any(a is not b for a, b in zip(changed, base.tensors)):
            dynamic = kind == "grown"
            yield Sample(
                f"{name}|{dtype}|{kind}",
                base.function,
                base.tensors if dynamic else tuple(changed),
                dynamic,
                tuple(changed) if dynamic else None,
            )


def _call(op: object, sample: object) -> tuple[Callable[..., object], tuple[torch.Tensor, ...]]:
    """The sample as a function of its tensors; whatever else it has is fixed."""
    flat, spec = _pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    places = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> object:
        given = dict(zip(places, tensors))
        args, kwargs = _pytree.tree_unflatten([given.get(i, value) for i, value in enumerate(flat)], spec)
        result = op.op(*args, **kwargs)
        if op.name not in PLACES:
            return _pytree.tree_map(_real, result)
        axis = kwargs.get("dim", args[PLACES[op.name]] if len(args) > PLACES[op.name] else -1)
        *values, indices = outputs(result)
        if not args[0].dim():
            return *values, indices
        indices = indices if indices.dim() == args[0].dim() else indices.unsqueeze(axis)
        return *values, args[0].gather(axis, indices)

    return function, tuple(flat[i].detach().resolve_conj() for i in places)


def _real(value: object) -> object:
    """Complex numbers as pairs, which programs return."""
    return torch.view_as_real(value) if isinstance(value, torch.Tensor) and value.is_complex() else value


def _special(x: torch.Tensor) -> torch.Tensor:
    if not x.dtype.is_floating_point or not x.numel():
        return x
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0]).to(x.dtype)
    flat = x.reshape(-1).clone()
    places = torch.randperm(flat.numel())[: max(flat.numel() // 2, 1)]
    flat[places] = values[torch.arange(len(places)) % len(values)]
    return flat.reshape(x.shape)


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


def _empty(x: torch.Tensor) -> torch.Tensor:
    return x[:0].clone() if x.dim() else x


def _strided(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, -1)[..., ::2] if x.dim() and x.dtype != torch.bool else x


def _grown(x: torch.Tensor) -> torch.Tensor:
    for axis, size in enumerate(x.shape):
        if size > 1:
            x = torch.cat([x, x.narrow(axis, 0, 1)], axis)
    return x


_VARIANTS = {"special": _special, "zeros": _zeros, "empty": _empty, "strided": _strided, "grown": _grown}
