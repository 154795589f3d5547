"""A batch whose activations do not fit the caches goes a few images at a time through the kernels that need them.

Before -> after, for 8 images
    a = conv(x); b = depthwise(a); c = linear(b)         a, b: 8 times 4.8 MB
        ->   c = alloc();  part([0, 1], x, c); ... part([7, 1], x, c)      with, of one image,
             part([i, 1], x, c):  a = conv(rows(x, i)); b = depthwise(a); rows(c, i) = linear(b)
    the same for any number of images
        ->   c = alloc();  parts([0, n], x, c)      with, of the `n` that main has,
             parts([i, n], x, c):  if n <= 1: part([i, n], x, c)
                                   else: parts([i, n // 2], x, c); parts([i + n // 2, n - n // 2], x, c)
Serves
    stretches of kernels that compute every image alone (`_batch_axis.py`), on CPUs
Leaves alone
    stretches that would read more weights again than they save of activations (`_batch_stretches.py`), images of open
    size, and modules with functions of an importer's own
`rows` is a view; the parts of `c` are written where they belong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import ir, relax, tirx

from .._compat import set_type
from ..launcher import ROWS
from ..relay_ops.operator import op_name
from ._batch_axis import leading, of_images
from ._batch_graph import KERNEL, Batch, Graph
from ._batch_stretches import Stretch, stretches
from .graph_pass import PART, Context, Pass, Report
from .weights import num_inputs


@dataclass(frozen=True)
class TileBatch(Pass):
    """The pass; the batch is the first axis of the first input that is larger than one, or open."""

    name = "tile_batch"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        spec = context.target.spec
        count = _images(mod["main"])
        if count is None or not spec.own_launcher:
            return mod, {"stretches": []}
        batch = Batch(count)
        graph = Graph(mod, batch)
        found = stretches(graph.steps, batch.number, context.target.cores * spec.l2_bytes)
        report = [
            {
                "kernels": sum(op_name(b.value) == KERNEL for b in graph.inside(stretch)),
                "images": stretch.images,
                "of": str(count),
                "saved_bytes": int(stretch.saved),
            }
            for stretch in found
        ]
        return _Cut(graph, batch).cut(found) if found else mod, {"stretches": report}


def _images(func: relax.Function) -> int | ir.Var | None:
    """The size of the first axis of the first input that has one of two or more, or an open one; None without."""
    for param in list(func.params)[: num_inputs(func)]:
        shape = getattr(param.ty, "shape", None)
        first = shape.values[0] if isinstance(shape, relax.ShapeExpr) and len(shape.values) else None
        if isinstance(first, tirx.IntImm) and int(first) > 1:
            return int(first)
        if isinstance(first, ir.Var):
            return first
    return None


@dataclass
class _Part:
    """What the function of a stretch is given, by what main gives it."""

    inputs: dict[relax.Var, relax.Var] = field(default_factory=dict)  # of the batch
    outputs: dict[relax.Var, list[relax.Var]] = field(default_factory=dict)  # made inside, read behind
    shared: dict[relax.Var, relax.Var] = field(default_factory=dict)  # no part of the batch

    @property
    def params(self) -> list[relax.Var]:
        return [*self.inputs.values(), *(p for ps in self.outputs.values() for p in ps), *self.shared.values()]


class _Cut:
    def __init__(self, graph: Graph, batch: Batch) -> None:
        self._graph, self._batch = graph, batch
        self._builder = relax.BlockBuilder(graph.mod)
        self._made: dict[tuple[ir.GlobalVar, int], ir.GlobalVar] = {}

    def cut(self, found: Sequence[Stretch]) -> tvm.IRModule:
        """The module whose main runs the stretches `found` part by part."""
        graph, main = self._graph, self._graph.main
        bindings: list[relax.Binding] = []
        done = 0
        for number, stretch in enumerate(found):
            bindings += [*graph.bindings[done : stretch.first], *self._calls(stretch, number)]
            done = stretch.last + 1
        block = relax.BindingBlock([*bindings, *graph.bindings[done:]])
        mod = self._builder.get().clone()
        body = relax.SeqExpr([block], main.body.body)
        mod["main"] = relax.Function(main.params, body, main.ret_ty, is_pure=False, attrs=main.attrs)
        return relax.transform.DeadCodeElimination()(mod)

    def _calls(self, stretch: Stretch, number: int) -> list[relax.Binding]:
        """What stands in main in place of `stretch`: the tensors that it makes, and calls for all parts."""
        builder, count = self._builder, self._batch.count
        bindings, inside = self._bindings(stretch)
        part, behind = self._part(inside, stretch)
        function = self._function(inside, part, stretch.images, f"part{number}")
        wholes: list[relax.Var] = []
        for var in part.outputs:
            fields = self._batch.types(var.ty)
            news = [var] if len(fields) == 1 else [relax.Var(f"{var.name}_{i}", ty) for i, ty in enumerate(fields)]
            for new, ty in zip(news, fields):
                alloc = relax.op.builtin.alloc_tensor(ty.shape, str(ty.dtype), 0, "global")
                bindings.append(relax.VarBinding(new, builder.normalize(alloc)))
            if len(fields) > 1:
                bindings.append(relax.VarBinding(var, builder.normalize(relax.Tuple(news))))
            wholes += news
        if isinstance(count, int):
            parts = [[at, stretch.images] for at in range(0, count, stretch.images)]
        else:
            function, parts = self._halving(function, part, stretch.images, f"parts{number}"), [[0, count]]
        for at in parts:
            call = relax.Call(
                function, [relax.ShapeExpr([*at, *self._batch.open]), *part.inputs, *wholes, *part.shared]
            )
            value = builder.normalize(call)
            bindings.append(relax.VarBinding(relax.Var("parts", value.ty), value))
        views = (b for b in inside if b.var in behind and op_name(b.value) != KERNEL)
        return [*bindings, *views]

    def _bindings(self, stretch: Stretch) -> tuple[list[relax.Binding], list[relax.Binding]]:
        """Those of `stretch` that only take a tensor out of a tuple that was made before, and the others."""
        inside = self._graph.inside(stretch)
        made = {binding.var for binding in inside}
        early: list[relax.Binding] = []
        others: list[relax.Binding] = []
        for binding in inside:
            taken = isinstance(binding.value, relax.TupleGetItem) and binding.value.tuple_value not in made
            (early if taken else others).append(binding)
        return early, others

    def _part(self, inside: Sequence[relax.Binding], stretch: Stretch) -> tuple[_Part, set[relax.Var]]:
        """What a function of `inside` needs and makes; which variables of these bindings are read behind `stretch`."""
        graph, part = self._graph, _Part()
        made = {binding.var for binding in inside}
        rest = [*(b.value for b in graph.bindings[stretch.last + 1 :]), graph.main.body.body]
        behind = {var for value in rest for var in relax.analysis.free_vars(value) if var in made}
        for binding in reversed(inside):
            if binding.var in behind and op_name(binding.value) != KERNEL:  # a view
                behind.update(relax.analysis.free_vars(binding.value))
        for binding in inside:
            value = binding.value
            if op_name(value) == KERNEL:
                tensors = graph.axis(value).tensors
                pairs = [(arg, p in tensors) for p, arg in zip(graph.mod[value.args[0]].params, value.args[1].fields)]
                if binding.var in behind:
                    types = self._batch.types(binding.var.ty)
                    part.outputs[binding.var] = [relax.Var(binding.var.name, ty) for ty in types]
            else:
                pairs = [(var, True) for var in relax.analysis.free_vars(value)]
            for arg, batched in pairs:
                held = part.inputs if batched else part.shared
                if isinstance(arg.ty, relax.TensorType) and isinstance(arg, relax.Var) and arg not in made:
                    held.setdefault(arg, relax.Var(arg.name, arg.ty))
        return part, behind & made

    def _function(self, inside: Sequence[relax.Binding], part: _Part, most: int, name: str) -> ir.GlobalVar:
        """The function that computes as many images as it is told, `most` at most, from the first of which it is told.

        Of a known batch it computes `most`.
        """
        builder, known = self._builder, isinstance(self._batch.count, int)
        first, count = tirx.Var("first", "int64"), tirx.Var("images", "int64")
        images: int | ir.Var = most if known else count
        at = relax.Var("at", relax.ShapeType([first, images, *self._batch.open]))
        params = [at, *part.params]
        attrs: dict[str, object] = {PART: True, "num_input": len(params) - len(part.shared)}
        attrs |= {} if known else {"tir_var_upper_bound": {str(count.name): most}}
        with builder.function(name, params, attrs=attrs, pure=False):
            here = {whole: builder.emit(self._rows(param, first, images)) for whole, param in part.inputs.items()}
            written: list[relax.Expr] = []
            for binding in inside:
                value = binding.value
                if op_name(value) == KERNEL:
                    into = [builder.emit(self._rows(p, first, images)) for p in part.outputs.get(binding.var, ())]
                    here[binding.var] = builder.emit(self._kernel(value, here, part.shared, into, images))
                    written += [here[binding.var]] if into else []
                elif isinstance(value, relax.TupleGetItem):
                    here[binding.var] = builder.emit(relax.TupleGetItem(here[value.tuple_value], value.index))
                else:
                    shape = self._batch.of(binding.var.ty, images).shape
                    here[binding.var] = builder.emit(relax.op.reshape(here[value.args[0]], shape))
            gvar = builder.emit_func_output(relax.Tuple(written))
        builder.update_func(gvar, relax.utils.copy_with_new_vars(builder.get()[gvar]))  # sizes of its own
        return gvar

    def _halving(self, one: ir.GlobalVar, part: _Part, most: int, name: str) -> ir.GlobalVar:
        """The function that computes any number of images by `one`, halves of them until these are `most` or fewer."""
        first, count = tirx.Var("first", "int64"), tirx.Var("images", "int64")
        at = relax.Var("at", relax.ShapeType([first, count, *self._batch.open]))
        params = [at, *part.params]
        (whole, *_), *_ = part.outputs.values()  # a branch must have some result
        own = ir.GlobalVar(name)
        set_type(own, relax.FuncType([p.ty for p in params], whole.ty, False))

        def branch(*calls: tuple[ir.GlobalVar, list[ir.Expr]]) -> relax.SeqExpr:
            bindings = []
            for function, sizes in calls:
                value = relax.Call(function, [relax.ShapeExpr([*sizes, *self._batch.open]), *params[1:]])
                set_type(value, function.ty.ret)
                bindings.append(relax.VarBinding(relax.Var("parts", function.ty.ret), value))
            return relax.SeqExpr([relax.BindingBlock(bindings)], whole)

        half = tirx.floordiv(count, 2)
        few = branch((one, [first, count]))
        many = branch((own, [first, half]), (own, [first + half, count - half]))
        value = relax.If(relax.prim_value(count <= most), few, many)
        result = relax.Var("done", whole.ty)
        body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, value)])], result)
        func = relax.Function(params, body, whole.ty, is_pure=False).with_attr(PART, True)
        self._builder.update_func(own, relax.utils.copy_with_new_vars(func))
        return own

    def _rows(self, whole: relax.Var, first: ir.Var, images: int | ir.Var) -> relax.Call:
        """The rows of `whole` that belong to `images` from the image `first` on: a view."""
        rows, axis = self._batch.rows(whole.ty), leading(whole.ty.shape.values)
        args = [whole, *map(relax.prim_value, (axis, first * rows, images * rows))]
        return relax.Call(relax.ExternFunc(ROWS), args, ty_args=[self._batch.of(whole.ty, images)])

    def _kernel(
        self,
        call: relax.Call,
        here: Mapping[relax.Var, relax.Expr],
        shared: Mapping[relax.Var, relax.Expr],
        into: Sequence[relax.Var],
        images: int | ir.Var,
    ) -> relax.Call:
        """`call` for `images`: of the batch as it stands `here`, and of what is `shared`.

        It writes `into` tensors where there are any.
        """
        gvar, tensors = self._of_images(call, images), self._graph.axis(call).tensors
        given: list[relax.Expr] = []
        for param, arg in zip(self._graph.mod[call.args[0]].params, call.args[1].fields):
            if not isinstance(arg.ty, relax.TensorType):
                given.append(images * self._batch.times(arg))
            elif isinstance(arg, relax.Var):
                given.append(here[arg] if param in tensors else shared[arg])
            else:
                given.append(arg)
        outs = [self._batch.of(ty, images) for ty in self._batch.types(call.ty)]
        if into:
            places = list(range(len(given), len(given) + len(into)))
            return relax.op.call_tir_inplace(gvar, relax.Tuple([*given, *into]), places, outs)
        return relax.op.call_tir(gvar, relax.Tuple(given), outs[0] if len(outs) == 1 else outs)

    def _of_images(self, call: relax.Call, images: int | ir.Var) -> ir.GlobalVar:
        """What `call` calls, for a known number of images; for any number it is the same."""
        gvar = call.args[0]
        if not isinstance(images, int):
            return gvar
        if (gvar, images) not in self._made:
            func = of_images(self._graph.mod[gvar], self._graph.axis(call), images)
            self._made[gvar, images] = self._builder.add_func(func, gvar.name_hint)
        return self._made[gvar, images]
