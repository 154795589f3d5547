"""The weights of a model: an ordered table of lazy tensors, and recipes for what passes do to them.

No pass ever touches weight data. A pass that changes a weight appends a `ParamRecipe`; the recipes
run once, tensor by tensor, while the artifact is written, so a build's peak memory stays near the
size of its largest tensors and never doubles the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class ParamSource:
    """A tensor that can be read when needed: `load()` returns a NumPy array of `shape` and `dtype`."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray] = field(compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ParamRecipe:
    """`output` = `op(*inputs, **attrs)`: one step a pass asks for, executed while params.bin is written."""

    output: str
    op: str  # a key of RECIPE_OPS
    inputs: tuple[str, ...]
    attrs: Mapping[str, object]
    shape: tuple[int, ...]
    dtype: str


class ParamTable:
    """Sources by name, in the model's order, plus the recipes that derive further tensors from them."""

    def __init__(self, sources: Mapping[str, ParamSource] | None = None) -> None:
        self.sources: dict[str, ParamSource] = dict(sources or {})
        self.recipes: dict[str, ParamRecipe] = {}

    def add_source(self, name: str, source: ParamSource) -> None:
        assert name not in self, f"parameter {name} is defined twice"
        self.sources[name] = source

    def add_recipe(self, recipe: ParamRecipe) -> str:
        """Record `recipe`; the same output asked for twice is stored once. Returns the output's name."""
        known = self.recipes.get(recipe.output)
        assert known is None or known == recipe, f"two different recipes for parameter {recipe.output}"
        assert recipe.output not in self.sources, f"recipe would replace the source {recipe.output}"
        self.recipes[recipe.output] = recipe
        return recipe.output

    def __contains__(self, name: str) -> bool:
        return name in self.sources or name in self.recipes

    def shape(self, name: str) -> tuple[int, ...]:
        return (self.sources.get(name) or self.recipes[name]).shape

    def dtype(self, name: str) -> str:
        return (self.sources.get(name) or self.recipes[name]).dtype

    def materialise(self, name: str) -> np.ndarray:
        """Read or compute one tensor; intermediate tensors are dropped as soon as they are used."""
        source = self.sources.get(name)
        if source is not None:
            return source.load()
        recipe = self.recipes[name]
        out = RECIPE_OPS[recipe.op](*(self.materialise(i) for i in recipe.inputs), **recipe.attrs)
        assert out.shape == recipe.shape, f"recipe for {name} gave {out.shape}, promised {recipe.shape}"
        return np.ascontiguousarray(out, dtype=recipe.dtype)

    def stream(self, names: list[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Materialise `names` one after another."""
        for name in names:
            yield name, self.materialise(name)

    def origin(self, name: str) -> tuple[str, ...]:
        """Source names that `name` is made of, in order."""
        if name in self.sources:
            return (name,)
        return tuple(s for i in self.recipes[name].inputs for s in self.origin(i))


def _concat(*xs: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(xs, axis=axis)


def _take(x: np.ndarray, indices: tuple[int, ...], axis: int) -> np.ndarray:
    return np.take(x, indices, axis=axis)


def pack_weight(weight: np.ndarray, *, layout: str, kc: int, nr: int) -> np.ndarray:
    """Weight in `layout` ("kn" or "nk") -> [K/kc, ceil(N/nr), kc, nr]; the last column block is zero padded."""
    k, n = weight.shape if layout == "kn" else weight.shape[::-1]
    assert k % kc == 0, f"chunk {kc} does not divide K = {k}"
    blocks = -(-n // nr)
    out = np.zeros((k // kc, blocks, kc, nr), dtype=weight.dtype)
    kn = weight if layout == "kn" else weight.T
    for block in range(blocks):
        columns = kn[:, block * nr : (block + 1) * nr]
        out[:, block, :, : columns.shape[1]] = columns.reshape(k // kc, kc, columns.shape[1])
    return out


def pack_bf16(weight: np.ndarray, *, layout: str, kc: int, nr: int) -> np.ndarray:
    """Weight in `layout` -> [K/kc, ceil(N/nr), kc/2, nr, 2] bfloat16, rounded to nearest even; padded columns zero."""
    import ml_dtypes  # a dependency of TVM

    kn = weight if layout == "kn" else weight.T
    k, n = kn.shape
    assert k % kc == 0 and kc % 2 == 0, f"chunk {kc} does not divide K = {k}, or is odd"
    out = np.zeros((k // kc, -(-n // nr), kc // 2, nr, 2), dtype=ml_dtypes.bfloat16)
    for panel in range(out.shape[1]):
        columns = kn[:, panel * nr : (panel + 1) * nr].astype(ml_dtypes.bfloat16)
        out[:, panel, :, : columns.shape[1]] = columns.reshape(k // kc, kc // 2, 2, -1).swapaxes(2, 3)
    return out


def _reshape(x: np.ndarray, shape: list[int]) -> np.ndarray:
    return x.reshape(shape)


def _permute(x: np.ndarray, axes: list[int]) -> np.ndarray:
    return x.transpose(axes)


def _slice(x: np.ndarray, axes: list[int], begin: list[int], end: list[int], strides: list[int]) -> np.ndarray:
    where = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, begin, end, strides):
        where[axis] = slice(*bounds)
    return x[tuple(where)]


def _pad(x: np.ndarray, widths: list[list[int]]) -> np.ndarray:
    return np.pad(x, widths)


def _sum(x: np.ndarray, axes: list[int], keepdims: bool) -> np.ndarray:
    return x.sum(axis=tuple(axes), keepdims=keepdims)


def _astype(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(dtype)


RECIPE_OPS: dict[str, Callable[..., np.ndarray]] = {
    "concat": _concat,
    "reshape": _reshape,
    "expand_dims": _reshape,
    "squeeze": _reshape,
    "permute_dims": _permute,
    "strided_slice": _slice,
    "pad": _pad,
    "sum": _sum,
    "astype": _astype,
    "take": _take,
    "pack": pack_weight,
    "pack_bf16": pack_bf16,
}
