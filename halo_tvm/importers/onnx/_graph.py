"""One ONNX graph, node by node, into a Relax builder."""

from __future__ import annotations

import math
import re
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto
from tvm import relax, tirx

from ...artifact import Condition
from ...errors import UnsupportedModel
from ...imported import KernelOrigin, Spelled
from ...params import ParamSource, ParamTable
from .._reasons import last_line
from ..meaning.builder import Refused
from ..meaning.constant import Constant
from ..meaning.random import Draws
from ..meaning.sizes import Dim, Sizes, prim
from . import _folding, _functions, _narrow, _registry
from ._budget import Budget
from ._errors import TVM_ERRORS
from ._file import MOST_BYTES, MOST_DIMENSIONS, sparse_constant, tensor_constant
from ._node import Node
from ._origins import kept_whole
from ._quantised import QuantisedValues
from ._values import Sequence, Symbolic, Tensor, Value, elements, known

# Bounds on what a hostile file can make of few bytes.
_MOST_CONVERTED = 100_000  # nodes, those of bodies and unrolled loops counted each time
_MOST_ORIGINS = 1_000  # look-ups of the inputs that a value comes from

_PARAMETER_BYTES = 4096  # larger weights are parameters of the function, never constants in the IR
_PARAMETER_KINDS = "float32 float16 float64 bfloat16 int8 uint8".split()


class InnerProblem(Refused):
    """A node whose inner graph or body holds nodes that cannot be converted."""


class GraphConverter:
    """Converts the nodes of one model; graphs inside nodes share everything but their names."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        functions: Mapping[tuple[str, str], object],
        spelled: Spelled | None = None,
    ) -> None:
        self.builder = relax.BlockBuilder()
        self.sizes = Sizes()
        self.opsets = dict(opsets)
        self.functions = dict(functions)  # the model's own, by (domain, name)
        self.params = ParamTable()
        self.weights: dict[str, relax.Var] = {}  # parameter name -> variable of main
        self.problems: dict[str, list[str]] = defaultdict(list)  # "operator (reason)" -> node names
        self.needs: set[str] = set()  # graph inputs that would have to be constant
        self.checked_indices: list[relax.Var] = []  # inputs whose values the executor keeps within an axis
        # Names of inner graphs come first, those around them behind: nothing is copied to enter one.
        self._env: ChainMap[str, Value | None] = ChainMap()
        self._broken: set[str] = set()  # names whose node could not be converted
        self._made_of: dict[str, tuple[str, ...]] = {}  # name -> the names its node read
        self._graph_inputs: set[str] = set()
        self._emitted: ChainMap[int, tuple[Value, relax.Expr]] = ChainMap()
        self._constants: dict[relax.Expr, Constant] = {}  # weights and constants of Relax -> what they hold
        self._weights_emitted: dict[int, tuple[Value, relax.Expr]] = {}
        self.quantised = QuantisedValues()
        self._dimension_names: set[str] = set()
        self._names: dict[str, int] = {}  # of dimensions and parameters -> how often asked for
        self.kept: dict[str, KernelOrigin] = {}  # nodes that stay nodes, by the name of the function called
        self._spelled = spelled
        self.equalities: ChainMap[str, tuple[Dim, Dim]] = ChainMap()  # a boolean's name -> the sizes it compares
        self.draws = Draws()
        self.conditions: list[Condition] = []  # of sizes, some of them found at run time
        self.only_types = False  # nobody reads the values of what is converted now, see `control_flow`
        self._depth = 0
        self._converted_nodes = 0
        self.budget = Budget()
        self._origin_lookups = 0

    # Names.

    def define(self, name: str, value: Value, *, is_input: bool = False) -> None:
        self._env[name] = value
        if is_input:
            self._graph_inputs.add(name)

    def lookup(self, name: str) -> Value | None:
        return self._env[name] if name else None

    @property
    def dimension_names(self) -> frozenset[str]:
        return frozenset(self._dimension_names)

    def dimension_name(self, hint: str) -> str:
        """A new name for a symbolic dimension."""
        word = re.sub(r"\W", "_", hint) or "dim"
        name = self._new_name(f"_{word}" if word[0].isdecimal() else word, "dimension ")  # 2 + n has a number in it
        self._dimension_names.add(name)
        return name

    def _new_name(self, base: str, kind: str) -> str:
        """`base`, with a number behind it where it is taken already among names of this `kind`."""
        name, count = base, self._names.get(kind + base, 0)
        while kind + name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names[kind + base] = count
        self._names.setdefault(kind + name, 0)
        return name

    def origins(self, name: str) -> frozenset[str]:
        """The graph inputs that the value called `name` is computed from."""
        self._origin_lookups += 1
        if self._origin_lookups > _MOST_ORIGINS:
            return frozenset()
        found, seen, stack = set(), set(), [name]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if current in self._graph_inputs:
                found.add(current)
            stack.extend(self._made_of.get(current, ()))
        return frozenset(found)

    # Values as expressions.

    def expr_of(self, value: Value) -> relax.Expr:
        """`value` as a Relax expression; a weight becomes a parameter when it is first used."""
        if isinstance(value, Sequence):
            raise Refused("expected a tensor, found a sequence")
        if _narrow.is_narrow(value.dtype):
            raise Refused(f"tensors of {value.dtype} can be converted, quantised and restored, nothing else")
        return self.stored_of(value)

    def stored_of(self, value: Tensor | Constant | Symbolic) -> relax.Expr:
        """As `expr_of`; elements of less than a byte as they are held."""
        if isinstance(value, Tensor):
            return value.expr
        # What a graph inside a node emitted may lie in a block of its own; weights are everywhere.
        emitted = self._weights_emitted if isinstance(value, Constant) else self._emitted
        kept = emitted.get(id(value))
        if kept is None:
            expr = self._parameter(value) if isinstance(value, Constant) else self._shape_tensor(value)
            if isinstance(value, Constant):
                self._constants[expr] = value
            # The value is kept beside the expression, so that its id stays its own.
            emitted[id(value)] = kept = (value, expr)
        return kept[1]

    def constant_of(self, x: relax.Expr) -> Constant | None:
        """The constant that `x` was made of; None for what the run computes."""
        return self._constants.get(x)

    def parameter_of(self, value: Constant) -> relax.Var:
        """`value` as a parameter of the function, however small it is."""
        kept = self._weights_emitted.get(id(value))
        if kept is None or not isinstance(kept[1], relax.Var):
            self._weights_emitted[id(value)] = kept = (value, self._new_parameter(value))
        return kept[1]

    def _parameter(self, value: Constant) -> relax.Expr:
        if _narrow.is_narrow(value.dtype):
            value = Constant.of(_narrow.stored_array(value.array), value.name)
        count = int(np.prod(value.shape, dtype=np.int64))
        is_float = value.dtype.startswith(("float", "bfloat"))
        if count <= 1 or value.dtype not in _PARAMETER_KINDS or not (is_float or value.size_bytes > _PARAMETER_BYTES):
            return relax.const(np.ascontiguousarray(value.array).reshape(value.shape), value.dtype)
        return self._new_parameter(value)

    def _new_parameter(self, value: Constant) -> relax.Var:
        name = self._new_name(value.name or f"constant_{len(self.weights)}", "parameter ")
        self.params.add_source(name, ParamSource(value.shape, value.dtype, value.load))
        var = relax.Var(identifier(name), relax.TensorType(value.shape, value.dtype))
        self.weights[name] = var
        return var

    def _shape_tensor(self, value: Symbolic) -> relax.Expr:
        """A tensor computed from dimensions at run time; one number as a range, which lifts can read."""
        from tvm import te

        if value.array.size == 1 and value.dtype == "int64":
            number = prim(value.array.reshape(-1)[0])
            single = self.builder.emit(relax.op.arange(number, number + 1, 1, "int64"))
            return single if value.shape == (1,) else self.builder.emit(relax.op.reshape(single, value.shape))
        items = [prim(e).astype("int64") if not isinstance(e, int) else prim(e) for e in value.array.reshape(-1)]

        def select(sizes: Items) -> te.Tensor:
            def element(*index):
                flat = 0
                for i, extent in zip(index, value.shape):
                    flat = flat * extent + i
                out = sizes[-1]
                for position in range(len(sizes) - 2, -1, -1):
                    out = tirx.Select(flat == position, sizes[position], out)
                return out.astype(value.dtype)

            return te.compute(value.shape, element, name="sizes")

        return self.builder.emit_te(select, items, primfunc_name_hint="onnx_sizes")

    # Nodes.

    def convert(self, nodes: Iterable[NodeProto]) -> None:
        """Convert nodes in order. What cannot be converted is collected in `problems`, and what needs it skipped."""
        for proto in nodes:
            self._converted_nodes += 1
            if self._converted_nodes > _MOST_CONVERTED:
                raise UnsupportedModel(
                    f"expected at most {_MOST_CONVERTED} nodes with the bodies of functions and loops written out, "
                    "found more: export a smaller graph"
                )
            for output in proto.output:
                self.equalities.pop(output, None)
                self._made_of[output] = tuple(i for i in proto.input if i)
            if any(i in self._broken for i in proto.input):
                self._broken.update(proto.output)
                continue
            try:
                results = self._converted(proto)
            except InnerProblem:  # already collected, with the names of the nodes inside
                self._broken.update(proto.output)
            except Refused as reason:
                self._problem(proto, str(reason))
                self.needs |= reason.needs
            except UnsupportedModel:
                raise
            except TVM_ERRORS as reason:
                self._problem(proto, f"{type(reason).__name__}: {last_line(reason)}")
            else:
                for name, value in zip(proto.output, results):
                    if name:
                        self._env[name] = value

    def _problem(self, proto: NodeProto, reason: str) -> None:
        operator = f"{proto.domain}.{proto.op_type}" if proto.domain not in ("", "ai.onnx") else proto.op_type
        self.problems[f"{operator} ({reason})"].append(proto.name or (proto.output[0] if proto.output else "?"))
        self._broken.update(proto.output)

    def _converted(self, proto: NodeProto) -> tuple[Value | None, ...]:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        missing = [i for i in proto.input if i and i not in self._env]
        if missing:
            raise Refused(f"its input {missing[0]} is made by no earlier node")
        inputs = [self.lookup(i) for i in proto.input]
        node = Node(proto, self, inputs, self.opsets.get(domain, 1))
        folded = _folding.fold(node, domain)
        if folded is not None:
            self.quantised.follow_known(node, folded)
            return folded
        if domain == "":
            rule = _registry.SYMBOLIC.get(proto.op_type)
            if rule is not None and all(i is None or isinstance(i, Constant | Symbolic | Tensor) for i in inputs):
                value = rule(node)
                if value is not None:
                    return value if isinstance(value, tuple) else (value,)
        function = _registry.find(domain, proto.op_type, node.opset)
        if function is None or (domain, proto.op_type) in self.functions:
            return _functions.inline(node, domain)
        integer = _registry.IN_INTEGERS.get(proto.op_type, lambda node: None)(node)
        results = self._values(node, function(node) if integer is None else integer)
        self.quantised.follow(node, results, lambda other: self._values(other, function(other)))
        kept = None if self._spelled is None else kept_whole(node, results, self._spelled)
        return results if kept is None else kept

    def keep(self, origin: KernelOrigin) -> str:
        """The name of a function that stands for a node."""
        name = f"onnx_node_{len(self.kept)}"
        self.kept[name] = origin
        return name

    def _values(self, node: Node, result: object) -> tuple[Value | None, ...]:
        if isinstance(result, relax.Expr) and not isinstance(result, relax.Tuple):
            result = result if isinstance(result, relax.Var) else self.builder.emit(result, node.proto.name.strip("/"))
            if isinstance(result.ty, relax.TupleType):
                result = [self.builder.emit(relax.TupleGetItem(result, i)) for i in range(len(result.ty.fields))]
        elif isinstance(result, relax.Tuple):
            result = list(result.fields)
        items = result if isinstance(result, tuple | list) else (result,)
        if len(items) < len([o for o in node.outputs if o]) and any(node.outputs[len(items) :]):
            node.refuse(f"expected {len(items)} outputs, found {len(node.outputs)}")
        return tuple(self.as_value(node, item) for item in items)

    def as_value(self, node: Node, item: object) -> Value | None:
        """What a converter returned, as a value: tuples of Relax are taken apart, small constants kept known."""
        if item is None or isinstance(item, Tensor | Constant | Symbolic | Sequence):
            return item
        if isinstance(item, np.ndarray | np.generic):
            return Constant.of(np.asarray(item))
        var = node.bind(item)
        if not (isinstance(var.ty, relax.TensorType) and isinstance(var.ty.shape, relax.ShapeExpr)):
            node.refuse("the shape of its result cannot be derived")
        node.refuse_unless(var.ty.ndim <= MOST_DIMENSIONS, f"its result has more than {MOST_DIMENSIONS} dimensions")
        if math.prod(int(d) for d in var.ty.shape.values if isinstance(d, tirx.IntImm)) > MOST_BYTES:
            node.refuse(f"its result has more than {MOST_BYTES} elements")
        self.sizes.note(d for d in var.ty.shape.values if isinstance(d, tirx.Var))
        return Tensor(var)

    # Graphs inside nodes, and attributes.

    def convert_graph(self, graph: GraphProto, inputs: Items[Value | None] = ()) -> list[Value | None]:
        """The outputs of a graph inside a node, whose names see those around it."""
        if self._depth > 32:
            raise Refused("graphs are nested more than 32 deep")
        outer, emitted, equalities = self._env, self._emitted, self.equalities
        self._env, self._emitted, self.equalities = outer.new_child(), emitted.new_child(), equalities.new_child()
        self._depth += 1
        before = sum(map(len, self.problems.values()))
        try:
            self._env.update(initialisers(graph, self))
            self._env.update({i.name: value for i, value in zip(graph.input, inputs)})
            self.convert(graph.node)
            if sum(map(len, self.problems.values())) > before or any(o.name in self._broken for o in graph.output):
                raise InnerProblem("a graph inside it cannot be converted")
            missing = [o.name for o in graph.output if o.name not in self._env]
            if missing:
                raise Refused(f"a graph inside it never makes its output {missing[0]}")
            return [self._env[o.name] for o in graph.output]
        finally:
            self._depth -= 1
            self._env, self._emitted, self.equalities = outer, emitted, equalities

    def convert_body(
        self,
        nodes: Iterable[NodeProto],
        env: Mapping[str, Value | None],
        outputs: Items[str],
        opsets: Mapping[str, int],
    ) -> list[Value | None]:
        """The outputs of a function body, which sees only `env`."""
        if self._depth > 32:
            raise Refused("function bodies are nested more than 32 deep")
        outer, outer_opsets, equalities = self._env, self.opsets, self.equalities
        self._env, self.opsets, self.equalities = ChainMap(dict(env)), {**outer_opsets, **opsets}, ChainMap()
        self._depth += 1
        before = sum(map(len, self.problems.values()))
        try:
            self.convert(nodes)
            if sum(map(len, self.problems.values())) > before:
                raise InnerProblem("the body of this function cannot be converted")
            return [self._env.get(name) for name in outputs]
        finally:
            self._depth -= 1
            self._env, self.opsets, self.equalities = outer, outer_opsets, equalities

    def attribute(self, proto: AttributeProto) -> object:
        kind = AttributeProto.AttributeType.Name(proto.type)
        match kind:
            case "FLOAT":
                return proto.f
            case "INT":
                return proto.i
            case "STRING":
                return proto.s.decode("utf-8", "replace")
            case "TENSOR":
                return tensor_constant(proto.t).array
            case "GRAPH":
                return proto.g
            case "FLOATS":
                return list(proto.floats)
            case "INTS":
                return list(proto.ints)
            case "STRINGS":
                return [s.decode("utf-8", "replace") for s in proto.strings]
        raise Refused(f"attribute {proto.name} has the kind {kind}")


def identifier(name: str) -> str:
    """`name` with everything that is no letter, digit or underscore replaced."""
    text = re.sub(r"\W", "_", name)
    return text if text[:1].isalpha() or text[:1] == "_" else f"v_{text}"


def initialisers(graph: GraphProto, converter: GraphConverter) -> dict[str, Value]:
    """The constants that `graph` holds, by name."""
    found: dict[str, Value] = {t.name: tensor_constant(t) for t in graph.initializer}
    found.update({s.values.name: sparse_constant(s) for s in graph.sparse_initializer})
    return found


__all__ = ["GraphConverter", "elements", "identifier", "initialisers", "known"]
