"""Operators in words of others, where torch has no such words of its own or makes them of its primitives."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

_aten = torch.ops.aten


def _fmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _without_nan(x, y, torch.maximum(x, y))


def _fmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _without_nan(x, y, torch.minimum(x, y))


def _without_nan(x: torch.Tensor, y: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
    """`both`, but of a number and NaN the number."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, both)) if both.is_floating_point() else both


def _copysign(x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    size = x.abs()
    if not isinstance(y, torch.Tensor):
        return -size if math.copysign(1, y) < 0 else size + 0
    return torch.where(y.signbit(), -size, size)


def _ndtri(x: torch.Tensor) -> torch.Tensor:
    """The quantile of a normal distribution."""
    return torch.erfinv(2 * x - 1) * math.sqrt(2)


def _sgn(x: torch.Tensor) -> torch.Tensor:
    if not x.is_complex():
        return x.sign()
    size = x.abs()
    return torch.where(size == 0, 0, x / torch.where(size == 0, 1, size))


def _bilinear(
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """out[n, k] = x[n, i] weight[k, i, j] y[n, j]: nothing but `torch.bilinear` makes the operator."""
    if (expand1, expand2, expand3, sumdim) != ([1, 3], [0], [1, 2], [2, 3]):
        return NotImplemented
    k, i, j = weight.shape
    turned = x @ weight.permute(1, 0, 2).reshape(i, k * j)
    return (turned.view(-1, k, j) * y.unsqueeze(1)).sum(-1)


def _variance_and_mean(
    x: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    axes = list(range(x.dim())) if not dim else dim
    return torch.var(x, axes, correction=1 if correction is None else correction, keepdim=keepdim), x.mean(
        axes, keepdim=keepdim
    )


def _sum_of_products(
    total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Factors of integers are integers."""
    if not x.is_floating_point():
        alpha, beta = int(alpha), int(beta)
    product = torch.bmm(x, y).sum(0)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else (total if beta == 1 else total * beta) + product


def _distances(x: torch.Tensor, y: torch.Tensor, p: float, _mode: int | None) -> torch.Tensor:
    """[.., m, k] and [.., n, k] -> [.., m, n]."""
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _distances_within(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """[n, k] -> [n (n - 1) / 2]: of each row to all behind it."""
    rows, columns = torch.triu_indices(len(x), len(x), 1).unbind()
    return torch.linalg.vector_norm(x[rows] - x[columns], p, -1)


# Order statistics.


def _median(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower one of two in the middle; NaN where there is one."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, places = torch.sort(x, dim=dim, stable=True)
    found, end = ([t.select(dim, at) for t in (values, places)] for at in ((x.shape[dim] - 1) // 2, -1))
    if x.is_floating_point():  # NaN comes last
        found = [torch.where(end[0].isnan(), e, m) for e, m in zip(end, found)]
    return _kept(found, dim, keepdim)


def _median_of_all(x: torch.Tensor) -> torch.Tensor:
    return _median(x.flatten(), 0)[0]


def _median_of_numbers(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Of what is no NaN; NaN of nothing else."""
    if x.dim() == 0 or not x.is_floating_point():
        return _median(x, dim, keepdim)
    values, places = torch.sort(x, dim=dim, stable=True)
    count = x.isnan().logical_not().sum(dim, keepdim=True)
    middle = ((count - 1) // 2).clamp(min=0)
    return _kept([t.gather(dim, middle).squeeze(dim) for t in (values, places)], dim, keepdim)


def _median_of_all_numbers(x: torch.Tensor) -> torch.Tensor:
    return _median_of_numbers(x.flatten(), 0)[0]


def _smallest(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    return _kept([t.select(dim, k - 1) for t in torch.sort(x, dim=dim, stable=True)], dim, keepdim)


def _kept(found: list[torch.Tensor], dim: int, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = (t.unsqueeze(dim) if keepdim else t for t in found)
    return values, places


def _mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The most frequent element, the smallest one of several, and the last place where it is."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, places = (t.movedim(dim, -1) for t in torch.sort(x, dim=dim, stable=True))
    begins = _run_begins(values)
    steps = torch.arange(values.shape[-1])
    length = steps - torch.where(begins, steps, 0).cummax(-1).values
    end = length.argmax(-1, keepdim=True)
    return _kept([t.gather(-1, end).squeeze(-1) for t in (values, places)], dim, keepdim)


def _run_begins(values: torch.Tensor) -> torch.Tensor:
    """Where along the last axis an element differs from the one in front."""
    return torch.cat([torch.ones_like(values[..., :1], dtype=torch.bool), values[..., 1:] != values[..., :-1]], -1)


def _unique(
    x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values, order = torch.sort(x.flatten(), stable=True)
    begins = _run_begins(values)
    found, number, counts = _runs(values, begins, return_inverse, return_counts)
    if return_inverse:
        number = torch.empty_like(number).scatter(0, order, number).view_as(x)
    return found, number, counts


def _unique_consecutive(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> object:
    """Of all elements; along an axis torch keeps its operator."""
    if dim is not None:
        return NotImplemented
    values = x.flatten()
    found, number, counts = _runs(values, _run_begins(values), return_inverse, return_counts)
    return found, number.view_as(x) if return_inverse else number, counts


def _runs(
    values: torch.Tensor, begins: torch.Tensor, numbered: bool, counted: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first of each run of equal elements, the number of the run of each element, and how long runs are."""
    none = values.new_empty(0, dtype=torch.int64)
    places = begins.nonzero().squeeze(-1)
    ends = torch.cat([places, places.new_full((1,), values.shape[0])])[1:]
    return values[places], begins.cumsum(0) - 1 if numbered else none, ends - places if counted else none


# Elements at places.


def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    if x.dim() == 0:
        return _index_reduce(x[None], 0, index, source.reshape(-1), reduce, include_self=include_self)[0]
    shape = [1] * x.dim()
    shape[dim] = -1
    return x.scatter_reduce(dim, index.view(shape).expand_as(source), source, reduce, include_self=include_self)


def _put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    return x.flatten().index_put((index.flatten(),), source.flatten(), accumulate).view_as(x)


def _diagonal_scatter(
    x: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """The diagonal is the last axis of `src`: each row of the matrices has at most one element of it."""
    matrices = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(size) for size in matrices.shape[-2:])
    first = max(-offset, 0)  # row of the diagonal's first element
    if src.shape[-1] == 0:
        return x.clone()
    of_rows = src.index_select(-1, (rows - first).clamp(0, src.shape[-1] - 1)).unsqueeze(-1)
    on_diagonal = columns - rows.unsqueeze(-1) == offset
    return torch.where(on_diagonal, of_rows, matrices).movedim((-2, -1), (dim1, dim2))


DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
    _aten.copysign.Tensor: _copysign,
    _aten.copysign.Scalar: _copysign,
    _aten.special_ndtri.default: _ndtri,
    _aten.var_mean.correction: _variance_and_mean,
    _aten.addbmm.default: _sum_of_products,
    _aten._cdist_forward.default: _distances,
    _aten._pdist_forward.default: _distances_within,
    _aten.median.dim: _median,
    _aten.median.default: _median_of_all,
    _aten.nanmedian.dim: _median_of_numbers,
    _aten.nanmedian.default: _median_of_all_numbers,
    _aten.kthvalue.default: _smallest,
    _aten.mode.default: _mode,
    _aten._unique2.default: _unique,
    _aten.unique_consecutive.default: _unique_consecutive,
    _aten.index_reduce.default: _index_reduce,
    _aten.put.default: _put,
    _aten.diagonal_scatter.default: _diagonal_scatter,
    _aten.sgn.default: _sgn,
    _aten._trilinear.default: _bilinear,
}
