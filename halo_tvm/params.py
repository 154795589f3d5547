"""The weights of a model: an ordered table of lazy tensors, and recipes for what passes do to them.

No pass ever touches weight data. A pass that changes a weight appends a `ParamRecipe`; the recipes
run once, tensor by tensor, while the artifact is written, so a build's peak memory stays near the
size of its largest tensors and never doubles the weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from .errors import UsageError
from .weight_groups import Grid, group_grid, group_pack
from .weight_windows import (
    pack_convolution,
    pack_convolution_bf16,
    pack_convolution_int8,
    pack_winograd,
    pack_winograd_integers,
    side_by_side,
)


@dataclass(frozen=True)
class ParamSource:
    """A tensor that can be read when needed: `load()` returns a NumPy array of `shape` and `dtype`."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray] = field(compare=False, repr=False)
    grid: Grid | None = None  # what the numbers of a linear's weight lie on, where a file stores integers

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def seeded_normal(seed: int, name: str, shape: tuple[int, ...], scale: float, offset: float) -> np.ndarray:
    """float32 `offset + scale * normal`, seeded per tensor name: the same in every process."""
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    x = rng.standard_normal(shape, dtype=np.float32)
    x *= np.float32(scale)
    if offset:
        x += np.float32(offset)
    return x


def squares_of(weight: str) -> str:
    """The name of the mean squares [k] of what `weight` [k, n] is multiplied with, where a source is measured."""
    return f"{weight}|squares"


@dataclass(frozen=True)
class ParamRecipe:
    """`output` = `op(*inputs, **attrs)`: one step a pass asks for, executed while params.bin is written."""

    output: str
    op: str  # a key of RECIPE_OPS
    inputs: tuple[str, ...]
    attrs: Mapping[str, object]
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Names:
    """What globs of halo.toml may name in functions: layers, and weights of linears."""

    layers: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        return self.layers | self.weights

    def __or__(self, other: Names) -> Names:
        return Names(self.layers | other.layers, self.weights | other.weights)


@dataclass(frozen=True)
class Shared:
    """What functions over one table of weights know of each other, so that all store a weight alike."""

    appends: bool = False  # one of them appends to caches: it reads each weight for a few rows at a time
    head: str | None = None  # the weight of main's last linear, which embeddings may read, too
    names: Names = Names()  # in any of them


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
        return self._made(name, {})

    def _made(self, name: str, held: Mapping[str, np.ndarray]) -> np.ndarray:
        """`materialise`, but what is in `held` is there already."""
        source = self.sources.get(name)
        if source is not None:
            return source.load()
        recipe = self.recipes[name]
        inputs = (held[i] if i in held else self.materialise(i) for i in recipe.inputs)
        out = RECIPE_OPS[recipe.op](*inputs, **recipe.attrs)
        assert out.shape == recipe.shape, f"recipe for {name} gave {out.shape}, promised {recipe.shape}"
        return np.asarray(out, dtype=recipe.dtype, order="C")  # ascontiguousarray gives a number a dimension

    def stream(self, names: list[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Materialise `names` one after another; what the next one is made of, too, is read or made once."""
        held: dict[str, np.ndarray] = {}
        for name, following in zip(names, [*names[1:], None]):
            inputs, wanted = self._inputs(name), self._inputs(following)
            held.update((i, self.materialise(i)) for i in inputs if i in wanted and i not in held)
            out = self._made(name, held)
            held = {key: value for key, value in {**held, name: out}.items() if key in wanted}
            yield name, out

    def _inputs(self, name: str | None) -> tuple[str, ...]:
        recipe = self.recipes.get(name) if name else None
        return recipe.inputs if recipe else ()

    def parts(self, name: str) -> Iterator[str]:
        """`name`, and all that it is made of."""
        yield name
        for part in self._inputs(name):
            yield from self.parts(part)

    def grid(self, name: str) -> Grid | None:
        """The grid that holds the numbers of `name`, if all that it is made of has one: the widest of them."""
        grids = [self.sources[source].grid for source in self.origin(name)]
        found = [grid for grid in grids if grid is not None]
        if not found or len(found) < len(grids):
            return None
        bits = max(grid.bits for grid in found)
        return Grid(bits, min(grid.group for grid in found), bits == 4 and any(grid.least for grid in found))

    @property
    def stored_precision(self) -> str | None:
        """The precision that keeps the integers of a file: of its narrowest weights; None where it has floats."""
        bits = min((source.grid.bits for source in self.sources.values() if source.grid), default=None)
        return None if bits is None else f"int{bits}"

    def origin(self, name: str) -> tuple[str, ...]:
        """Source names that `name` is made of, in order."""
        if name in self.sources:
            return (name,)
        return tuple(s for i in self.recipes[name].inputs for s in self.origin(i))


def _concat(*xs: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(xs, axis=axis)


def _stack(*xs: np.ndarray, joined: int) -> np.ndarray:
    """Every `joined` neighbours one behind the other along axis 0, stacked along a new first axis."""
    return np.concatenate(xs).reshape(len(xs) // joined, -1, *xs[0].shape[1:])


def expert_columns(weight: np.ndarray, *, whole: int) -> np.ndarray:
    """[e, n, k] -> [e * whole, k]: the columns of every expert, filled up with zeros to `whole`."""
    e, n, k = weight.shape
    if n == whole:
        return weight.reshape(e * n, k)
    made = np.zeros((e, whole, k), weight.dtype)
    made[:, :n] = weight
    return made.reshape(e * whole, k)


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


# Half arithmetic sums at most 128 products of a magnitude up to one with weights before it promotes the sum.
LARGEST_FP16 = 65504.0 / 128


def pack_fp16(weight: np.ndarray, *, layout: str, kc: int, nr: int) -> np.ndarray:
    """As `pack_weight`, in float16; `UsageError` for a weight whose partial sums float16 may not hold."""
    _check_fp16(weight, LARGEST_FP16)
    return pack_weight(weight.astype(np.float16), layout=layout, kc=kc, nr=nr)


def _check_fp16(weight: np.ndarray, most: float) -> None:
    largest = float(np.abs(np.where(np.isfinite(weight), weight, 0)).max(initial=0.0))
    if largest > most:
        raise UsageError(
            f"expected weights of magnitude up to {most:g} at --precision fp16, found {largest:g}: "
            "choose --precision bf16, which has the range of fp32"
        )


def pack_nk(weight: np.ndarray, *, layout: str, stored: str) -> np.ndarray:
    """Weight in `layout` -> [n, k] in the type `stored`; `UsageError` for one that float16 does not hold."""
    if stored == "float16":
        _check_fp16(weight, float(np.finfo(np.float16).max))
    turned = weight.T if layout == "kn" else weight
    if stored != "bfloat16":
        return turned.astype(stored)
    import ml_dtypes  # a dependency of TVM, not of its runtime

    return turned.astype(ml_dtypes.bfloat16)


W8_LARGEST = 127  # magnitudes of int8 without its lowest value
_W8_TINY = np.float32(1e-30)  # least magnitude of a column: its scale is a normal float32 number


def w8_scale(weight: np.ndarray, *, layout: str) -> np.ndarray:
    """Largest magnitude of every column of `weight` ("kn" or "nk") over 127, [n]; NaN where that is not finite."""
    k = 0 if layout == "kn" else 1
    bound = np.maximum(np.maximum(weight.max(k), -weight.min(k)), _W8_TINY)
    return np.where(np.isfinite(bound), bound / W8_LARGEST, np.float32(np.nan)).astype(np.float32)


def w8_pack(weight: np.ndarray, scale: np.ndarray, *, layout: str, kc: int, nr: int) -> np.ndarray:
    """weight / scale as int8 in groups of four along k, [k/kc, ceil(n/nr), kc/4, nr, 4]; padded columns are zero.

    So are columns whose scale is NaN: their results are NaN by the scale.
    """
    kn = weight if layout == "kn" else weight.T
    k, n = kn.shape
    assert k % kc == 0 and kc % 4 == 0, f"chunk {kc} does not divide K = {k}, or is no multiple of 4"
    out = np.zeros((k // kc, -(-n // nr), kc // 4, nr, 4), dtype=np.int8)
    divisor = np.where(np.isnan(scale), np.float32(np.inf), scale)
    for panel in range(out.shape[1]):
        columns = slice(panel * nr, (panel + 1) * nr)
        with np.errstate(invalid="ignore"):  # infinity over infinity
            integers = np.rint(np.nan_to_num(kn[:, columns] / divisor[columns])).astype(np.int8)
        out[:, panel, :, : integers.shape[1]] = integers.reshape(k // kc, kc // 4, 4, -1).swapaxes(2, 3)
    return out


def w8_correction(packed: np.ndarray, *, n: int, zero_point: int) -> np.ndarray:
    """-zero_point * column sums of a weight of `w8_pack`, [n]: what the zero point of the rows adds to every sum."""
    return (-zero_point * packed.sum((0, 2, 4), dtype=np.int32)).reshape(-1)[:n]


def pack_int8(weight: np.ndarray, *, nr: int) -> np.ndarray:
    """int8 [k, n] in groups of four along k, [1, ceil(n/nr), ceil(k/4), nr, 4]; padded rows and columns are zero."""
    k, n = weight.shape
    groups, panels = -(-k // 4), -(-n // nr)
    kn = np.zeros((groups * 4, panels * nr), np.int8)
    kn[:k, :n] = weight
    return kn.reshape(groups, 4, panels, nr).transpose(2, 0, 3, 1)[None]


def sums_int8(weight: np.ndarray) -> np.ndarray:
    """Sums of the columns of int8 [k, n] in int32, [n]."""
    return weight.sum(0, dtype=np.int32)


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
    # Narrow floating-point numbers are summed in float32, and rounded once when the recipe's type is made.
    wide = np.float32 if x.dtype.itemsize < 4 and x.dtype.kind not in "iub" else None
    return x.sum(axis=tuple(axes), keepdims=keepdims, dtype=wide)


def _astype(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(dtype)


def _shift(x: np.ndarray, by: float) -> np.ndarray:
    return x + x.dtype.type(by)


def _scaled(x: np.ndarray, by: float) -> np.ndarray:
    return x * x.dtype.type(by)


def _divided(x: np.ndarray, by: float) -> np.ndarray:
    return x / x.dtype.type(by)


def _falls(x: np.ndarray) -> np.ndarray:
    """-exp(x): the rates of a state space, which are stored as logarithms."""
    return -np.exp(x)


def _part(x: np.ndarray, index: int) -> np.ndarray:
    return x[index]


RECIPE_OPS: dict[str, Callable[..., np.ndarray]] = {
    "concat": _concat,
    "stack": _stack,
    "expert_columns": expert_columns,
    "reshape": _reshape,
    "expand_dims": _reshape,
    "squeeze": _reshape,
    "permute_dims": _permute,
    "strided_slice": _slice,
    "pad": _pad,
    "sum": _sum,
    "astype": _astype,
    "take": _take,
    "shift": _shift,
    "falls": _falls,
    "scaled": _scaled,
    "divided": _divided,
    "pack": pack_weight,
    "pack_bf16": pack_bf16,
    "pack_fp16": pack_fp16,
    "pack_nk": pack_nk,
    "pack_convolution": pack_convolution,
    "pack_convolution_bf16": pack_convolution_bf16,
    "pack_convolution_int8": pack_convolution_int8,
    "pack_winograd": pack_winograd,
    "pack_winograd_integers": pack_winograd_integers,
    "side_by_side": side_by_side,
    "w8_scale": w8_scale,
    "w8_pack": w8_pack,
    "w8_correction": w8_correction,
    "group_grid": group_grid,
    "group_part": _part,
    "group_pack": group_pack,
    "pack_int8": pack_int8,
    "sums_int8": sums_int8,
}
