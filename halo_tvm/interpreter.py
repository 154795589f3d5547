"""The meaning of an imported model: `main` evaluated by NumPy in float64, one operator after another.

It shares no code with lowering, scheduling or code generation, so it is what an artifact of a built-in
definition is validated against. Weights are read one at a time; a large product runs in blocks of
columns, so memory stays near that of the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

from .dimensions import size_of
from .errors import UnsupportedModel
from .imported import ImportedModel
from .relay_ops.operator import attrs_of, operator_of
from .relay_ops.parts.activation import ACTIVATIONS, sigmoid

_COLUMNS = 8192  # columns of a linear that are evaluated at once


Observer = Callable[[str, np.ndarray], None]  # is told of every linear: the name of its weight, its input [..., k]


def evaluate(
    model: ImportedModel, inputs: Mapping[str, np.ndarray], observe: Observer | None = None
) -> dict[str, np.ndarray]:
    """Outputs by name for `inputs` by name; floating-point values are float64."""
    return evaluate_all(model, [inputs], observe)[0]


def evaluate_all(
    model: ImportedModel, cases: Sequence[Mapping[str, np.ndarray]], observe: Observer | None = None
) -> list[dict[str, np.ndarray]]:
    """Several inputs in step, so that every weight is read once for all of them."""
    func = model.mod["main"]
    weights = _Weights(model)
    evaluators = [_Evaluator(model, case, weights, observe) for case in cases]
    last_use = _last_uses(func)
    for block in func.body.blocks:
        for binding in block.bindings:
            for evaluator in evaluators:
                evaluator.env[binding.var] = evaluator.value(binding.value)
                for var in last_use.get(binding.var, ()):
                    evaluator.env.pop(var, None)
            weights.forget()
    results = [evaluator.value(func.body.body) for evaluator in evaluators]
    return [dict(zip(model.outputs, r if isinstance(r, tuple) else (r,))) for r in results]


def linear_weights(model: ImportedModel) -> dict[str, int]:
    """The weights that linears of `main` read as they are, and their depths k."""
    func = model.mod["main"]
    names = weight_names(model)
    calls = [b.value for block in func.body.blocks for b in block.bindings if operator_of(b.value) is not None]
    linears = [call for call in calls if operator_of(call).name == "linear" and call.args[1] in names]
    return {names[call.args[1]]: int(call.args[0].ty.shape.values[-1]) for call in linears}


def weight_names(model: ImportedModel) -> dict[relax.Var, str]:
    """The tensors behind the inputs of `main`, by variable."""
    func = model.mod["main"]
    return dict(zip(func.params[len(model.inputs) :], (str(n) for n in func.attrs["halo.params"])))


class _Weights:
    """Tensors by variable, kept while one binding is evaluated for all cases."""

    def __init__(self, model: ImportedModel) -> None:
        self.names = weight_names(model)
        self._params = model.params
        self._kept: dict[str, np.ndarray] = {}

    def __getitem__(self, var: relax.Var) -> np.ndarray:
        name = self.names[var]
        if name not in self._kept:
            self._kept[name] = self._params.materialise(name)
        return self._kept[name]

    def forget(self) -> None:
        self._kept.clear()


class _Evaluator:
    def __init__(
        self, model: ImportedModel, inputs: Mapping[str, np.ndarray], weights: _Weights, observe: Observer | None
    ) -> None:
        self.observe = observe
        self.env: dict[relax.Var, object] = {}
        self.dims: dict[str, int] = {}
        self.weights = weights
        for var, spec in zip(model.mod["main"].params, model.inputs):
            value = inputs[spec.name]
            # not copied: a cache of float64 holds afterwards what the model wrote into it
            self.env[var] = value.astype(np.float64, copy=False) if value.dtype.kind == "f" else value
            self.dims.update({d: n for d, n in zip(spec.shape, value.shape) if isinstance(d, str)})

    def value(self, expr: relax.Expr) -> object:
        if isinstance(expr, relax.Var):
            return self.env[expr] if expr in self.env else self.weights[expr].astype(np.float64)
        if isinstance(expr, tvm.ir.GenericConst):
            data = expr.value.numpy()
            return data.astype(np.float64) if data.dtype.kind == "f" else data
        if isinstance(expr, relax.ShapeExpr):
            return tuple(self.size(dim) for dim in expr.values)
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Call):
            return self._call(expr)
        return self.size(expr)

    def size(self, dim: tvm.ir.Expr) -> int:
        """A dimension expression at the sizes of the inputs."""
        return size_of(dim, self.dims)

    def _call(self, call: relax.Call) -> object:
        operator = operator_of(call)
        if operator is not None:
            attrs = {k: v for k, v in attrs_of(call).items() if k != "layer"}
            if operator.name == "linear":
                return self._linear(call, attrs)
            if operator.name == "embedding":
                table = call.args[1]
                table = self.env[table] if table in self.env else self.weights[table]  # in float32: it may be large
                return operator.reference(self.value(call.args[0]), table, **attrs).astype(np.float64)
            if operator.name == "experts" and call.args[2] in self.weights.names:
                x, ids, weight, *more = call.args
                given = (self.value(x), self.value(ids), self.weights[weight], *map(self.value, more))
                return operator.reference(*given, **attrs)  # which widens the weights of one expert at a time
            out = operator.reference(*(self.value(arg) for arg in call.args), **attrs)
            for result, position in operator.written_by(attrs).items():
                self.value(call.args[position])[...] = out[result] if isinstance(out, tuple) else out
            return out
        handler = _OPS.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
        if handler is None:
            name = getattr(call.op, "name", call.op)
            raise UnsupportedModel(
                f"expected an operator with a NumPy meaning, found {name}: validate against the source engine"
            )
        return handler(self, call)

    def _linear(self, call: relax.Call, attrs: Mapping[str, object]) -> np.ndarray:
        """halo.linear in blocks of columns: the float64 copy of a vocabulary-sized weight never exists."""
        x = self.value(call.args[0])
        if self.observe is not None and call.args[1] in self.weights.names:
            self.observe(self.weights.names[call.args[1]], x)
        weight = self.weights[call.args[1]]
        kn = weight if attrs["layout"] == "kn" else weight.T
        out = np.empty((*x.shape[:-1], attrs["n"]))
        for start in range(0, attrs["n"], _COLUMNS):
            out[..., start : start + _COLUMNS] = x @ kn[:, start : start + _COLUMNS].astype(np.float64)
        return out + self.value(call.args[2]) if len(call.args) == 3 else out


def _last_uses(func: relax.Function) -> dict[relax.Var, list[relax.Var]]:
    """Binding variable -> the variables that nothing behind it needs."""
    last: dict[relax.Var, relax.Var] = {}
    order = [b for block in func.body.blocks for b in block.bindings]
    for binding in order:
        for var in relax.analysis.free_vars(binding.value):
            last[var] = binding.var
    kept = set(relax.analysis.free_vars(func.body.body))
    uses: dict[relax.Var, list[relax.Var]] = {}
    for var, by in last.items():
        if var not in kept:
            uses.setdefault(by, []).append(var)
    return uses


Handler = Callable[[_Evaluator, relax.Call], object]


def _elementwise(function: Callable[..., np.ndarray]) -> Handler:
    return lambda e, call: function(*(e.value(arg) for arg in call.args))


def _arange(e: _Evaluator, call: relax.Call) -> np.ndarray:
    start, stop, step = (e.size(arg) for arg in call.args)
    return np.arange(start, stop, step, dtype=str(call.attrs.dtype))


def _softmax(e: _Evaluator, call: relax.Call) -> np.ndarray:
    x = e.value(call.args[0])
    axis = int(call.attrs.axis)
    y = np.exp(x - x.max(axis=axis, keepdims=True))
    return y / y.sum(axis=axis, keepdims=True)


def _reduction(function: Callable[..., np.ndarray]) -> Handler:
    def run(e: _Evaluator, call: relax.Call) -> np.ndarray:
        axes = None if call.attrs.axis is None else tuple(int(a) for a in call.attrs.axis)
        return function(e.value(call.args[0]), axis=axes, keepdims=bool(call.attrs.keepdims))

    return run


def _permute(e: _Evaluator, call: relax.Call) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(e.value(call.args[0]), None if axes is None else [int(a) for a in axes])


def _strided_slice(e: _Evaluator, call: relax.Call) -> np.ndarray:
    x = e.value(call.args[0])
    axes, *bounds = ([e.size(field) for field in arg.fields] for arg in call.args[1:])
    cut = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        cut[axis] = slice(*(bound[i] for bound in bounds))
    return x[tuple(cut)]


def _astype(e: _Evaluator, call: relax.Call) -> np.ndarray:
    dtype = np.dtype(str(call.attrs.dtype))
    return e.value(call.args[0]).astype(np.float64 if dtype.kind == "f" else dtype)


def _concat(e: _Evaluator, call: relax.Call) -> np.ndarray:
    return np.concatenate(e.value(call.args[0]), axis=0 if call.attrs.axis is None else int(call.attrs.axis))


def _expand_dims(e: _Evaluator, call: relax.Call) -> np.ndarray:
    return np.expand_dims(e.value(call.args[0]), tuple(int(a) for a in call.attrs.axis))


_OPS: dict[str, Handler] = {
    **{activation.op: _elementwise(activation.numpy) for activation in ACTIVATIONS.values() if activation.op},
    "relax.add": _elementwise(np.add),
    "relax.subtract": _elementwise(np.subtract),
    "relax.multiply": _elementwise(np.multiply),
    "relax.divide": _elementwise(np.divide),
    "relax.maximum": _elementwise(np.maximum),
    "relax.minimum": _elementwise(np.minimum),
    "relax.power": _elementwise(np.power),
    "relax.equal": _elementwise(np.equal),
    "relax.not_equal": _elementwise(np.not_equal),
    "relax.tanh": _elementwise(np.tanh),
    "relax.exp": _elementwise(np.exp),
    "relax.sqrt": _elementwise(np.sqrt),
    "relax.rsqrt": _elementwise(lambda x: 1.0 / np.sqrt(x)),
    "relax.negative": _elementwise(np.negative),
    "relax.sigmoid": _elementwise(sigmoid),
    "relax.where": _elementwise(np.where),
    "relax.matmul": _elementwise(np.matmul),
    "relax.reshape": lambda e, call: e.value(call.args[0]).reshape(e.value(call.args[1])),
    "relax.broadcast_to": lambda e, call: np.broadcast_to(e.value(call.args[0]), e.value(call.args[1])),
    "relax.permute_dims": _permute,
    "relax.concat": _concat,
    "relax.expand_dims": _expand_dims,
    "relax.astype": _astype,
    "relax.arange": _arange,
    "relax.strided_slice": _strided_slice,
    "relax.take": lambda e, call: np.take(e.value(call.args[0]), e.value(call.args[1]), axis=call.attrs.axis),
    "relax.nn.softmax": _softmax,
    "relax.mean": _reduction(np.mean),
    "relax.sum": _reduction(np.sum),
    "relax.max": _reduction(np.max),
}
