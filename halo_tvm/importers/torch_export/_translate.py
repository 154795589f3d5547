"""The graph of an exported program -> a Relax `main`, one operator after another.

Shapes come from the example values that torch keeps at every node: no shape arithmetic is imported, it is read.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from tvm import ir, relax, tirx

from ...errors import UnsupportedModel
from ...params import ParamSource, ParamTable
from .._reasons import listed
from ..loops import not_negative
from ..meaning.builder import Refused
from ..meaning.constant import Constant
from ..meaning.random import Draws
from . import families  # noqa: F401  (importing them registers the converters)
from ._call import DTYPES, Call, constant, dtype_name, to_array
from ._complex import COMPONENTS, Pair, is_complex, parts_of
from ._dimensions import Dimensions
from ._of_weights import OfWeights
from ._registry import COMPLEX, CONVERTERS, IGNORED, is_random, target_name

_FOLDED_BYTES = 1 << 18
_SCALARS = (torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)


class Translator:
    """Walks one program; `env` maps its nodes to what they became."""

    def __init__(
        self,
        dims: Dimensions,
        weights: Mapping[fx.Node, relax.Var | Pair],
        constants: Mapping[fx.Node, torch.Tensor],
        params: ParamTable,
        tensors: Mapping[fx.Node, torch.Tensor],
    ) -> None:
        """`params`: a source for every variable of `weights`, in their order; it grows by what is made of them.

        `tensors` are those of `weights`.
        """
        self.dims = dims
        self.sizes = dims.sizes
        self.builder = relax.BlockBuilder()
        self.env: dict[fx.Node, object] = {}
        self.params = params
        self.draws = Draws()
        # tied weights are several nodes with one variable
        variables = [v for w in weights.values() for v in (w.parts if isinstance(w, Pair) else [w])]
        self.weights = dict(zip(dict.fromkeys(variables), list(params.sources), strict=True))
        self.layer = ""  # the name of what is emitted now: reports name nodes as the model does
        self._refused: dict[str, list[str]] = defaultdict(list)
        # nodes whose values do not depend on inputs or weights
        self.known = {node: tensor for node, tensor in constants.items() if tensor.numel() * 8 <= _FOLDED_BYTES}
        self.of_weights = OfWeights(tensors, constants)
        self.env.update(weights)
        self.env.update({n: self._held(t) for n, t in constants.items()})

    def emit(self, expr: relax.Expr) -> relax.Var:
        return self.builder.emit(expr, self.layer)

    def constant_of(self, x: relax.Expr) -> Constant | None:
        """The values behind a weight or a constant; None for what the run computes."""
        if x in self.weights:
            name = self.weights[x]
            source = self.params.sources[name]
            return Constant(source.shape, source.dtype, source.load, name)
        return Constant.of(x.value.numpy()) if isinstance(x, ir.GenericConst) else None

    def weight_of(self, value: Constant) -> relax.Expr:
        """A new weight; `value` names it, with a number behind where two have one name."""
        if np.prod(value.shape, dtype=np.int64) <= 1:
            return constant(value.array, value.dtype)
        name = base = value.name or self.layer
        while name in self.params:
            name = f"{base}_{len(self.weights)}"
        self.params.add_source(name, ParamSource(value.shape, value.dtype, value.load))
        var = relax.Var(re.sub(r"\W", "_", name), relax.TensorType(value.shape, value.dtype))
        self.weights[var] = name
        return var

    def walk(self, graph: fx.Graph) -> None:
        """Convert every node of `graph` whose inputs are in `env`; `UnsupportedModel` lists all it cannot."""
        self._walk(graph)
        if self._refused:
            found = listed(self._refused)
            raise UnsupportedModel(
                f"expected operators that can be converted, found {found}: export the model without them"
            )

    def _walk(self, graph: fx.Graph) -> None:
        needed = _needed(graph)
        for node in graph.nodes:
            if node.op == "call_function":
                if node in needed:
                    self._convert(node)
            elif node.op == "get_attr":
                held = operator.attrgetter(str(node.target))(graph.owning_module)
                if isinstance(held, torch.Tensor):
                    self.env[node] = self._held(held)
            elif node.op not in ("placeholder", "output"):
                self._refused[f"{node.op} {node.target}"].append(node.name)

    def enter(self, graph: fx.Graph, arguments: Sequence[object]) -> list[object]:
        """The results of a graph inside for `arguments`; names that it gives to sizes are its own.

        What it cannot convert is in the list that `walk` ends with.
        """
        layer = self.layer
        with self.dims.scope():
            self.env.update(zip([node for node in graph.nodes if node.op == "placeholder"], arguments, strict=True))
            self._walk(graph)
            output = next(node for node in graph.nodes if node.op == "output").args[0]
            results = fx.node.map_arg(output, lambda node: self.env[node])
        self.layer = layer
        return list(results) if isinstance(results, tuple | list) else [results]

    def _convert(self, node: fx.Node) -> None:
        target = target_name(node.target)
        self.layer = _layer_name(node)
        meta = node.meta.get("val")
        try:
            made = self.of_weights.value_of(node) if self.of_weights.visit(node) else None
            if isinstance(meta, _SCALARS):
                if target == "aten._local_scalar_dense.default":
                    self.find(self.env[node.args[0]], meta)
                self.env[node] = self.dims.expr(meta)
            elif made is not None:
                self.env[node] = self.weight_of(made)
            elif self.of_weights.is_left_to_its_parts(node):
                return
            elif node.target is operator.getitem:
                self.env[node] = self.env[node.args[0]][node.args[1]]
            elif self._is_fixed(node):
                self.env[node] = self._folded(node)
            elif target not in (table := COMPLEX if is_complex(node) else CONVERTERS):
                raise Refused("complex numbers" if target in CONVERTERS else "")
            elif _is_empty(meta):
                self.env[node] = self._empty(meta)
            else:
                self.env[node] = self._checked(table[target](Call(self, node)), meta)
        except (Refused, GuardOnDataDependentSymNode) as reason:
            what = str(reason) if isinstance(reason, Refused) else "sizes that values decide"
            self._refused[target + (f" with {what}" if what else "")].append(node.name)
            self.env[node] = self._stand_in(node.name, meta)
        except UnsupportedModel as reason:
            raise UnsupportedModel(f"{reason} (at {node.name}, {target})") from reason

    def find(self, held: relax.Expr, number: object, *, is_size: bool = True) -> None:
        """Make a dimension of an integer that a tensor of one element holds, as `x.item()`.

        A run where a size is below 0 is refused.
        """
        if not isinstance(number, torch.SymInt) or not number.node.expr.is_Symbol or self.dims.knows(number.node.expr):
            return
        held = self.emit(relax.op.reshape(held, [1]))
        held = held if str(held.ty.dtype) == "int64" else self.emit(relax.op.astype(held, "int64"))
        if is_size:
            held = not_negative(self.builder, held, f"a number below 0 for {self.layer[:80]}")
        size = self.dims.define(number, "item", is_size=is_size)
        self.builder.match_cast(self.emit(relax.op.tensor_to_shape(held)), relax.ShapeType([size]))

    def _is_fixed(self, node: fx.Node) -> bool:
        """Whether a node's value follows from the program alone, and is small: positions, masks, buckets."""
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor) or not all(isinstance(size, int) for size in meta.shape):
            return False
        if is_random(node.target):
            return False
        arguments = node.all_input_nodes
        return (
            meta.numel() * meta.element_size() <= _FOLDED_BYTES
            and (meta.dtype in DTYPES or meta.dtype in COMPONENTS)
            and all(
                a in self.known or not isinstance(a.meta.get("val"), torch.Tensor | tuple | list) for a in arguments
            )
            and all(isinstance(a.meta.get("val"), torch.Tensor | bool | int | float) for a in arguments)
        )

    def _folded(self, node: fx.Node) -> relax.Expr | Pair:
        """The node's value, computed by torch."""

        def value(argument: fx.Node) -> object:
            return self.known.get(argument, argument.meta["val"])

        args, kwargs = (fx.node.map_arg(a, value) for a in (node.args, node.kwargs))
        with torch.no_grad():
            self.known[node] = node.target(*args, **kwargs)
        return self._held(self.known[node])

    def _held(self, tensor: torch.Tensor) -> relax.Expr | Pair:
        """A small tensor as a constant."""
        if tensor.dtype in COMPONENTS:
            return Pair.of(*(self._held(part) for part in parts_of(tensor)))
        return constant(to_array(tensor), dtype_name(tensor.dtype))

    def _empty(self, meta: object) -> object:
        """Results without elements: whatever computes them, there is nothing to compute."""
        if isinstance(meta, tuple | list):
            return tuple(map(self._empty, meta))
        if meta.dtype in COMPONENTS:
            return Pair.of(*(self._empty(part) for part in parts_of(meta)))
        shape, dtype = relax.ShapeExpr(self.dims.shape(meta.shape)), dtype_name(meta.dtype)
        return self.emit(relax.op.full(shape, constant(0, dtype), dtype))

    def _checked(self, result: object, meta: object) -> object:
        """`result` with the shape that torch says it has, where Relax could not infer it."""
        if isinstance(result, tuple | list):
            return tuple(self._checked(r, m) for r, m in zip(result, meta, strict=False))
        if isinstance(result, Pair):
            return result.mapped(self._checked, meta)
        if not isinstance(meta, torch.Tensor):  # a number among several results
            return result
        expected = dtype_name(meta.dtype)
        assert str(result.ty.dtype) == expected, f"converted to {result.ty}, torch says {expected}"
        known = isinstance(result.ty.shape, relax.ShapeExpr)
        if known and len(result.ty.shape.values) == meta.dim():
            result = self._with_numbers(result, meta.shape)
            self.dims.learn(meta.shape, result.ty.shape.values)
            return result
        assert not known, f"converted to {result.ty}, torch says {tuple(meta.shape)}"
        return self.builder.match_cast(result, relax.TensorType(self.dims.shape(meta.shape), expected))

    def _with_numbers(self, result: relax.Expr, sizes: Sequence[object]) -> relax.Expr:
        """`result` with numbers where sizes are some by their ranges.

        x[:1] has min(1, batch) rows for Relax, which knows no ranges and would not broadcast them.
        """
        found = list(result.ty.shape.values)
        for axis, (size, dim) in enumerate(zip(sizes, found, strict=True)):
            if isinstance(size, int) and not isinstance(dim, tirx.IntImm) and self.sizes.is_equal(dim, size):
                found[axis] = tirx.IntImm("int64", size)
        if all(a.same_as(b) for a, b in zip(found, result.ty.shape.values)):
            return result
        bound = result if isinstance(result, relax.Var) else self.emit(result)
        return self.builder.match_cast(bound, relax.TensorType(found, result.ty.dtype))

    def _stand_in(self, name: str, meta: object) -> object:
        """A variable of the refused node's type, so that the walk goes on and finds what else is unsupported."""
        if isinstance(meta, tuple | list):
            return tuple(self._stand_in(f"{name}_{i}", m) for i, m in enumerate(meta))
        if not isinstance(meta, torch.Tensor):
            return None
        if meta.dtype in COMPONENTS:
            return Pair.of(*(self._stand_in(f"{name}_{i}", part) for i, part in enumerate(parts_of(meta))))
        try:
            return relax.Var(name, relax.TensorType(self.dims.shape(meta.shape), dtype_name(meta.dtype)))
        except (Refused, UnsupportedModel):
            return relax.Var(name, relax.TensorType(dtype="float32", ndim=meta.dim()))


def _needed(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that results need, or that draw; others are statements about values, and what these are about."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        states = node.op == "call_function" and target_name(node.target) in IGNORED
        if node.op == "output" or (not states and (is_random(node.target) or not found.isdisjoint(node.users))):
            found.add(node)
    return found


def _is_empty(meta: object) -> bool:
    """Whether results of the example `meta` are tensors without elements, each by a size that is always 0."""
    if isinstance(meta, tuple | list):
        return bool(meta) and all(map(_is_empty, meta))
    return isinstance(meta, torch.Tensor) and any(isinstance(size, int) and size == 0 for size in meta.shape)


def _layer_name(node: fx.Node) -> str:
    """The path of the module that a node comes from, and the node's name."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return "/".join(part for part in (stack[-1][0] if stack else "", node.name) if part)
