"""Weights as function parameters: which variable is which tensor, and how a pass replaces one.

`main` carries the attribute `halo.params`: the tensor names of its parameters behind the inputs, in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tvm
from tvm import relax

from ..params import Names, ParamRecipe, ParamTable
from ..relay_ops.operator import attrs_of, op_name, operator_of
from .graph_pass import bindings, replace_main

_TABLES = ("relax.halo.embedding", "relax.take")  # read rows of a matrix and multiply by none


def param_names(func: relax.Function) -> list[str]:
    """Tensor names of the parameters behind the inputs."""
    return [str(name) for name in func.attrs["halo.params"]]


def weight_variable(name: str, params: ParamTable) -> relax.Var:
    """A new parameter for a tensor of the table."""
    identifier = re.sub(r"\W", "_", name)  # it becomes a name in generated C and CUDA source
    return relax.Var(identifier, relax.TensorType(params.shape(name), params.dtype(name)))


def num_inputs(func: relax.Function) -> int:
    """How many of main's parameters are inputs of the model; without the attribute all are."""
    return int(func.attrs["num_input"]) if func.attrs and "num_input" in func.attrs else len(func.params)


def head_of(func: relax.Function) -> str | None:
    """The weight of the last linear of a `main` that is lifted, None where that is none of its parameters."""
    names = dict(zip(list(func.params)[num_inputs(func) :], param_names(func)))
    linears = [b.value for b in bindings(func) if (op := operator_of(b.value)) is not None and op.name == "linear"]
    return names.get(linears[-1].args[1]) if linears else None


def names_in(func: relax.Function, params: ParamTable) -> Names:
    """What globs may name in a `main` that no pass has seen: what more than embeddings read may be of a linear."""
    tensors = dict(zip(list(func.params)[num_inputs(func) :], param_names(func)))
    layers, weights = set(), set()
    for binding in bindings(func):
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        if operator_of(call) is not None and (layer := attrs_of(call).get("layer")) is not None:
            layers.add(str(layer))
        if op_name(call) not in _TABLES:
            weights |= {tensors[arg] for arg in call.args if isinstance(arg, relax.Var) and arg in tensors}
    return Names(frozenset(layers), frozenset(name for name in weights if len(params.shape(name)) > 1))


class WeightEditor:
    """Names the weight variables of one `main` and adds new ones; `finish` keeps what is still used."""

    def __init__(self, func: relax.Function, params: ParamTable) -> None:
        self.params = params
        self.inputs = list(func.params)[: num_inputs(func)]
        self._vars = dict(zip(param_names(func), list(func.params)[num_inputs(func) :]))
        self._names = {var: name for name, var in self._vars.items()}

    def name(self, expr: relax.Expr) -> str | None:
        """The tensor name of a weight variable, None for anything else."""
        return self._names.get(expr) if isinstance(expr, relax.Var) else None

    def derive(
        self,
        output: str,
        op: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        dtype: str | None = None,
        /,
        **attrs: object,
    ) -> relax.Var:
        """A new weight variable `output` = op(inputs, attrs), recorded as a recipe; asked for twice, made once.

        `dtype` is that of the first input unless it is given.
        """
        shape = tuple(int(d) for d in shape)
        dtype = dtype or self.params.dtype(inputs[0])
        self.params.add_recipe(ParamRecipe(output, op, tuple(inputs), attrs, shape, dtype))
        return self.weight(output)

    def weight(self, output: str) -> relax.Var:
        """The variable of a tensor that the table knows."""
        if output not in self._vars:
            var = weight_variable(output, self.params)
            self._vars[output] = var
            self._names[var] = output
        return self._vars[output]

    def finish(self, mod: tvm.IRModule, body: relax.Expr) -> tvm.IRModule:
        """`mod` with main = inputs and the weights that `body` still uses -> `body`."""
        old = mod["main"]
        free = set(relax.analysis.free_vars(body))
        used = {name: var for name, var in self._vars.items() if var in free}
        func = relax.Function([*self.inputs, *used.values()], body, old.ret_ty, old.is_pure)
        func = func.with_attrs({**{k: old.attrs[k] for k in old.attrs.keys()}, "halo.params": list(used)})
        return replace_main(mod, func)
