"""A TorchScript graph as an nn.Module that torch.export can trace.

Every node is evaluated by Python: what is a number, a string or a list is computed while tracing, what is a tensor
goes to the ATen operator of the node. So loops over known lengths unroll, conditions on shapes are decided, and
sizes that the graph reads from its inputs stay symbolic. Attributes that the graph sets are returned, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

from ...errors import UnsupportedModel
from ._cells import CELLS
from ._numbers import implicit, tensor_of
from ._scalars import SCALARS
from ._values import ATTRIBUTES, Made, Number, Object, to_native, to_number
from ._writes import Kept, attributes_set, attributes_written, copied, joined, module_paths, nodes_of, writes_inputs

_STEPS = 2_000_000  # nodes evaluated in one run of the graph, unrolled loops included


class Walker(torch.nn.Module):
    """The method `forward` of a ScriptModule. `state` gives values of attributes that the graph sets, by path."""

    def __init__(self, script: torch.jit.ScriptModule) -> None:
        super().__init__()
        self._c, self._graph = script._c, script.inlined_graph
        self._names: dict[str, str] = {}  # path of an attribute, or of a constant -> name here
        self._scalars: dict[str, object] = {}  # name of a constant of rank 0 -> its value
        self._schemas: dict[str, tuple[Callable[..., object], torch._C.FunctionSchema]] = {}
        self._objects = module_paths(self._graph)
        self._steps = 0
        self._state: dict[str, object] = {}
        self._kept: dict[str, Kept] = {}
        for node in nodes_of(self._graph):
            self._register(node)
        self._written = frozenset(attributes_written(self._graph))
        self._writes_inputs = writes_inputs(self._graph)
        held = (p for p in attributes_written(self._graph) if isinstance(self.attribute(p), torch.Tensor))
        self.state_paths = tuple(dict.fromkeys((*attributes_set(self._graph), *held)))

    def run(self, arguments: tuple[object, ...], state: Mapping[str, object]) -> tuple[object, dict[str, object]]:
        """(what the graph returns, the attributes it sets); `state` has their values before."""
        self._steps, self._kept = 0, {}
        self._state = {path: copied(value) if path in self._written else value for path, value in state.items()}
        if self._writes_inputs:
            arguments = tuple(copied(value) for value in arguments)
        graph_inputs = list(self._graph.inputs())
        env: dict[str, object] = {graph_inputs[0].debugName(): Object("")}
        env.update(zip((i.debugName() for i in graph_inputs[1:]), arguments, strict=True))
        self._block(self._graph, env)
        for kept in self._kept.values():
            kept.check()
        outputs = [env[o.debugName()] for o in self._graph.outputs()]
        return outputs[0] if len(outputs) == 1 else tuple(outputs), self._state

    def attribute(self, path: str) -> object:
        """The value of an attribute as the file has it."""
        value = self._c
        for part in path.split("."):
            value = value.getattr(part)
        return value

    # registration

    def _register(self, node: torch._C.Node) -> None:
        kind = node.kind()
        if kind == "prim::GetAttr":
            self._register_attribute(node)
        elif kind == "prim::Constant":
            value = node.output().toIValue() if node.output().type().kind() != "NoneType" else None
            if isinstance(value, torch.Tensor):
                self._keep(f"constant.{node.output().debugName()}", value)

    def _register_attribute(self, node: torch._C.Node) -> None:
        owner = self._objects.get(node.input().debugName())
        if owner is None or node.output().type().kind() == "ClassType":
            return
        path = joined(owner, node.s("name"))
        value = self.attribute(path)
        if isinstance(value, torch.Tensor):
            self._keep(path, value)

    def _keep(self, path: str, value: torch.Tensor) -> None:
        """Hold a tensor under a name that torch accepts; the same memory is held once."""
        if path in self._names:
            return
        name = "".join(c if c.isalnum() else "_" for c in path)
        while hasattr(self, name):
            name += "_"
        self._names[path] = name
        value = value.detach()
        if value.dim() == 0 and value.dtype in (torch.int64, torch.float64, torch.bool):
            self._scalars[name] = value.item()
        if value.is_floating_point():
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        else:
            self.register_buffer(name, value)

    # evaluation

    def _block(self, block: object, env: dict[str, object]) -> None:
        for node in block.nodes():
            self._steps += 1
            if self._steps > _STEPS:
                raise UnsupportedModel(
                    f"expected a model of at most {_STEPS} steps with its loops unrolled, found more: "
                    "a loop may not end; give smaller shapes"
                )
            results = self._node(node, env)
            for output, value in zip(node.outputs(), results, strict=True):
                env[output.debugName()] = value

    def _node(self, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
        special = _SPECIAL.get(node.kind())
        if special is not None:
            return special(self, node, env)
        args = [env[i.debugName()] for i in node.inputs()]
        return self._operator(node, args)

    def _operator(self, node: torch._C.Node, args: list[object]) -> tuple[object, ...]:
        kind = node.kind()
        if kind in ATTRIBUTES and args and isinstance(args[0], torch.Tensor):
            return (ATTRIBUTES[kind](*args),)
        plain_first = bool(args) and isinstance(args[0], list | tuple | dict | str)
        if kind in SCALARS and (plain_first or not any(isinstance(a, torch.Tensor) for a in args)):
            plain = [to_number(a) for a in args]
            if kind in ("aten::add", "aten::sub") and len(plain) == 3:
                plain[1:] = [plain[1] * plain[2]]
            if kind == "aten::div" and len(plain) == 3 and isinstance(plain[2], str):
                return (_wrap(args, _rounded_division(*plain)),)
            found = SCALARS[kind](*plain)
            return (_wrap(args, found),) if node.outputsSize() else ()
        if kind in _COPIES and isinstance(args[0], Number):
            floats = kind == "aten::to" and isinstance(args[1], int) and args[1] in _FLOATS
            if floats:
                return (Number(torch.sym_float(args[0].value)),)
            if kind == "aten::to" and isinstance(args[1], int) and args[1] in _INTEGERS:
                return (Number(torch.sym_int(args[0].value)),)
            if kind != "aten::to":
                return (args[0],)
        if kind in CELLS:
            return CELLS[kind](*args)
        if kind == "aten::len":
            return (args[0].shape[0],)
        return self._aten(node, args)

    def _aten(self, node: torch._C.Node, args: list[object]) -> tuple[object, ...]:
        function, schema = self._schema(node)
        positional, named = [], {}
        for argument, value in zip(schema.arguments, args):
            value = to_native(value, argument)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        result = function(*positional, **named)
        if node.outputsSize() == 1:
            return (list(result) if isinstance(result, tuple) and len(schema.returns) == 1 else result,)
        return tuple(result)

    def _schema(self, node: torch._C.Node) -> tuple[Callable[..., object], torch._C.FunctionSchema]:
        text = node.schema()
        if text not in self._schemas:
            if not text or text == "(no schema)":
                raise UnsupportedModel(
                    f"expected operators of TorchScript's own library, found {node.kind()}: export the model as ONNX"
                )
            schema = torch._C.parse_schema(text)
            space, name = schema.name.split("::")
            packet = getattr(getattr(torch.ops, space), name, None)
            if packet is None or (space, name) in _FORBIDDEN or space not in ("aten", "torchvision"):
                raise UnsupportedModel(
                    f"expected operators that compute on tensors, found {schema.name}: export the model without it"
                )
            generic = next((str(a.type) for a in schema.arguments if _GENERIC.search(str(a.type))), None)
            if generic is not None:
                raise UnsupportedModel(
                    f"expected operators that compute on tensors, found {schema.name} of a {generic}: "
                    "export the model without it"
                )
            self._schemas[text] = getattr(packet, schema.overload_name or "default"), schema
        return self._schemas[text]


# A number stays one through these; TorchScript's dtypes 5 to 7 are floats, 2 to 4 integers.
_COPIES = ("aten::to", "aten::detach", "aten::clone", "aten::contiguous")
_FLOATS, _INTEGERS = (5, 6, 7), (2, 3, 4)

_GENERIC = re.compile(r"\bt\d?\b|\bDict\b")  # of any type: what only TorchScript's interpreter can call

# Files and quantised or packed objects: nothing an inference graph needs.
_FORBIDDEN = {("aten", name) for name in ("save", "from_file", "load", "_save", "wait", "hash")}


def _wrap(args: list[object], value: object) -> object:
    """What is made of numbers that stand for tensors stands for a tensor, too, unless it left that world."""
    return Number(value) if any(isinstance(a, Number) for a in args) and _is_number(value) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat)


def _rounded_division(a: object, b: object, mode: str | None) -> object:
    if mode is None:
        return a / b
    return a // b if mode == "floor" or isinstance(a, int | torch.SymInt) and a >= 0 and b > 0 else int(a / b)


def _constant(walker: Walker, node: torch._C.Node, _env: dict[str, object]) -> tuple[object, ...]:
    output = node.output()
    name = walker._names.get(f"constant.{output.debugName()}")
    if name is not None:
        tensor = getattr(walker, name)
        return (Number(walker._scalars[name], tensor) if name in walker._scalars else tensor,)
    return (None if output.type().kind() == "NoneType" else output.toIValue(),)


def _get(walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    owner, name = env[node.input().debugName()], node.s("name")
    if isinstance(owner, Made) and name in owner.attributes:
        return (owner.attributes[name],)
    if not isinstance(owner, Object):
        raise UnsupportedModel(
            f"expected attributes of modules, found {name} of an object made while running: export the model as ONNX"
        )
    path = joined(owner.path, name)
    if node.output().type().kind() == "ClassType":
        return (Object(path),)
    if path in walker._state:
        return (walker._state[path],)
    value = getattr(walker, walker._names[path]) if path in walker._names else walker.attribute(path)
    if path not in walker._written:
        return (value,)
    if isinstance(value, list | dict):
        return (walker._kept.setdefault(path, Kept(path, value)).value,)
    return (walker._state.setdefault(path, copied(value)),)


def _set_attribute(walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    owner, value = (env[i.debugName()] for i in node.inputs())
    if isinstance(owner, Made):
        owner.attributes[node.s("name")] = value
    else:
        walker._state[joined(owner.path, node.s("name"))] = value
    return ()


def _if(walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    then, otherwise = node.blocks()
    block = then if decide(env[next(iter(node.inputs())).debugName()]) else otherwise
    walker._block(block, env)
    return tuple(env[o.debugName()] for o in block.outputs())


def decide(condition: object) -> bool:
    """A condition as true or false; `UnsupportedModel` when it depends on the values of tensors."""
    condition = to_number(condition)
    if isinstance(condition, torch.Tensor):
        try:
            return bool(condition)
        except (RuntimeError, TypeError) as reason:
            raise UnsupportedModel(
                "expected conditions that follow from shapes and constants, found one that depends on the values of "
                "a tensor: export the model as ONNX"
            ) from reason
    return bool(condition)


def _loop(walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    limit, condition, *carried = (env[i.debugName()] for i in node.inputs())
    (body,) = node.blocks()
    names = [i.debugName() for i in body.inputs()]
    index = 0
    while index < int(to_number(limit)) and decide(condition):
        env.update(zip(names, [index, *carried], strict=True))
        walker._block(body, env)
        walker._steps += 1
        condition, *carried = (env[o.debugName()] for o in body.outputs())
        index += 1
    return tuple(carried)


def _raise(_walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    message = env[next(iter(node.inputs())).debugName()]
    raise UnsupportedModel(
        f"expected inputs that the model accepts, found that it refuses them with {str(message)[:200]!r}: "
        "correct --shape or --inputs"
    )


def _list(_walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    tensors = node.output().type().getElementType().kind() == "TensorType"
    values = [env[i.debugName()] for i in node.inputs()]
    return (values if tensors else [to_number(v) for v in values],)


def _dict(_walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    values = [env[i.debugName()] for i in node.inputs()]
    return (dict(zip(values[::2], values[1::2], strict=True)),)


def _values(node: torch._C.Node, env: dict[str, object]) -> list[object]:
    return [env[i.debugName()] for i in node.inputs()]


def _to_tensor(_walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    (value,) = _values(node, env)
    return (value if isinstance(value, torch.Tensor | Number) else Number(value),)


def _create(_walker: Walker, node: torch._C.Node, _env: dict[str, object]) -> tuple[object, ...]:
    kind = str(node.output().type())
    if not kind.startswith("__torch__.torch.autograd.grad_mode."):
        raise UnsupportedModel(f"expected tensors, numbers, lists, found an object of {kind}: export the model as ONNX")
    return (Made(),)


def _isinstance(_walker: Walker, node: torch._C.Node, env: dict[str, object]) -> tuple[object, ...]:
    raise UnsupportedModel(
        "expected values whose types are known, found a check of a type while running: export the model as ONNX"
    )


Special = Callable[[Walker, "torch._C.Node", dict[str, object]], tuple[object, ...]]
_SPECIAL: dict[str, Special] = {
    "prim::Constant": _constant,
    "prim::GetAttr": _get,
    "prim::SetAttr": _set_attribute,
    "prim::If": _if,
    "prim::Loop": _loop,
    "prim::RaiseException": _raise,
    "prim::ListConstruct": _list,
    "prim::DictConstruct": _dict,
    "prim::TupleConstruct": lambda w, n, env: (tuple(_values(n, env)),),
    "prim::TupleUnpack": lambda w, n, env: tuple(_values(n, env)[0]),
    "prim::ListUnpack": lambda w, n, env: tuple(_values(n, env)[0]),
    "prim::TupleIndex": lambda w, n, env: (_values(n, env)[0][_values(n, env)[1]],),
    "prim::TupleSlice": lambda w, n, env: (_values(n, env)[0][n.i("beg") : n.i("end")],),
    "prim::Uninitialized": lambda w, n, env: (None,),
    "prim::NumToTensor": _to_tensor,
    "prim::CreateObject": _create,
    "prim::Enter": lambda w, n, env: (None,),  # of grad_mode, which has no meaning here
    "prim::Exit": lambda w, n, env: (None,),
    **dict.fromkeys(
        [f"aten::{kind}" for kind in "Int Float Bool IntImplicit FloatImplicit ScalarImplicit item".split()],
        lambda w, n, env: (implicit(n, _values(n, env)[0]),),
    ),
    "aten::tensor": lambda w, n, env: (tensor_of(*_values(n, env)),),
    "aten::as_tensor": lambda w, n, env: (tensor_of(*_values(n, env)),),
    "prim::unchecked_cast": lambda w, n, env: (_values(n, env)[0],),
    "aten::__is__": lambda w, n, env: (SCALARS[n.kind()](*_values(n, env)),),
    "aten::__isnot__": lambda w, n, env: (SCALARS[n.kind()](*_values(n, env)),),
    "prim::isinstance": _isinstance,
}
