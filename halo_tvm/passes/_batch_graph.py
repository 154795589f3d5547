"""What the bindings of main are to a batch: kernels that compute its images apart, views of it, or neither."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import ir, relax, tirx

from ..dimensions import itemsize_of
from ..errors import Declined
from ..relay_ops.operator import op_name, shaped
from ._batch_axis import BatchAxis, batch_axis, leading, per_image
from ._batch_stretches import Kernel, Stretch, Tensor

KERNEL = "relax.call_tir"
_RESHAPE = "relax.reshape"
_ASSUMED = 8  # images, of any number, for which a stretch must be worth it


@dataclass(frozen=True)
class Batch:
    """How many images there are: a number, or a size of main."""

    count: int | ir.Var

    @property
    def number(self) -> int:
        """The number of images that benefits are computed for."""
        return self.count if isinstance(self.count, int) else _ASSUMED

    @property
    def open(self) -> list[ir.Var]:
        """The number of images where it is a size of main: who takes tensors of it may be given no other word of it."""
        return [] if isinstance(self.count, int) else [self.count]

    def times(self, size: ir.Expr) -> int:
        """How often the number of images is in `size`; 0 where it is not, or not a whole number of times."""
        return per_image(size, self.count)

    def rows(self, ty: relax.TensorType) -> int:
        """How many rows of the first axis belong to an image; 0 where there are not as many for each."""
        sizes = ty.shape.values
        return self.times(sizes[leading(sizes)]) if len(sizes) else 0

    def bytes_of(self, ty: relax.TensorType) -> int:
        """Bytes of a tensor, of `number` images where it has the batch in front."""
        sizes = [int(s) if isinstance(s, tirx.IntImm) else self.rows(ty) * self.number for s in ty.shape.values]
        return math.prod(sizes) * itemsize_of(ty.dtype)

    def of(self, ty: relax.TensorType, images: int | ir.Var) -> relax.TensorType:
        """The type of `images` of those in front of a tensor of type `ty`."""
        sizes = list(ty.shape.values)
        sizes[leading(sizes)] = images * self.rows(ty)
        return relax.TensorType(sizes, ty.dtype)

    def types(self, ty: relax.Type) -> list[relax.TensorType]:
        """The tensors that `ty` is, each of known size but for the batch; `Declined` where it is anything else."""
        fields = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        for one in fields:
            if not shaped(one):
                raise Declined("no tensor of known rank")
            sizes = [size for size in one.shape.values if not isinstance(size, tirx.IntImm)]
            if sizes and (len(sizes) > 1 or not self.rows(one)):
                raise Declined("a tensor of unknown size")
        return fields


class Graph:
    """The bindings of main, what each is to a batch, and the tensors between them."""

    def __init__(self, mod: tvm.IRModule, batch: Batch) -> None:
        self.mod = relax.transform.ToNonDataflow()(mod)
        self.main = self.mod["main"]
        self.bindings = [binding for block in self.main.body.blocks for binding in block.bindings]
        self._batch = batch
        self._axes: dict[tuple[ir.GlobalVar, int | ir.Var], BatchAxis | None] = {}
        self._tensors: dict[relax.Var, list[Tensor]] = {}  # several for a variable that is a tuple
        self.steps: list[Kernel | None] = []
        for place, binding in enumerate(self.bindings):
            try:
                self.steps.append(self._step(place, binding))
            except Declined:
                self._leave(binding.value)
                self.steps.append(None)
        self._leave(self.main.body.body)

    def inside(self, stretch: Stretch) -> list[relax.Binding]:
        """The bindings of `stretch`."""
        return self.bindings[stretch.first : stretch.last + 1]

    def axis(self, call: relax.Call) -> BatchAxis:
        """The batch in the function that `call` calls; `Declined` where it has none."""
        func, count = self.mod[call.args[0]], self._batch.count
        own = [count] if isinstance(count, int) else self._sizes(func, call)
        if len(own) != 1 or not isinstance(func, tirx.PrimFunc):
            raise Declined("no size of the function is the number of images")
        key = (call.args[0], own[0])
        if key not in self._axes:
            try:
                self._axes[key] = batch_axis(func, own[0])
            except Declined:
                self._axes[key] = None
        axis = self._axes[key]
        if axis is None:
            raise Declined("images are not computed apart")
        return axis

    def _sizes(self, func: tirx.PrimFunc, call: relax.Call) -> list[ir.Var]:
        """The sizes of `func` that are the number of images, or of rows of them, where it is called."""
        args = call.args[1].fields
        outs = [out for ty in call.ty_args for out in getattr(ty, "fields", [ty])]
        found: list[ir.Var] = []
        for param, given in zip(func.params, [*args, *outs]):
            ty = given if isinstance(given, relax.Type) else given.ty
            tensor = isinstance(param.ty, tirx.BufferType)
            for own, size in zip(param.shape, getattr(ty.shape, "values", ())) if tensor else [(param, given)]:
                if isinstance(own, ir.Var) and self._batch.times(size) and not any(own.same_as(v) for v in found):
                    found.append(own)
        return found

    def _step(self, place: int, binding: relax.Binding) -> Kernel:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            if value.tuple_value in self._tensors:
                self._tensors[binding.var] = [self._tensors[value.tuple_value][value.index]]
            return Kernel((), (), 0)
        if op_name(value) == _RESHAPE:
            return self._view(binding.var, value)
        if op_name(value) != KERNEL or not isinstance(binding, relax.VarBinding):
            raise Declined("no kernel")
        types, given = self._batch.types(binding.var.ty), list(value.args[1].fields)
        axis, params = self.axis(value), self.mod[value.args[0]].params
        tensors = [param for param in params if isinstance(param.ty, tirx.BufferType)]
        if any(param not in axis.tensors for param in tensors[len(tensors) - len(types) :]):
            raise Declined("a result that is no part of the batch")
        reads: list[Tensor] = []
        wholes: list[Tensor] = []
        others = 0
        for param, arg in zip(params, given):
            if param in axis.tensors:
                if not isinstance(arg, relax.Var):
                    raise Declined("a constant batch")
                reads += self._of(arg)
            elif isinstance(param.ty, tirx.BufferType):
                others += sum(map(self._batch.bytes_of, self._batch.types(arg.ty)))
                wholes += self._tensors.get(arg, ()) if isinstance(arg, relax.Var) else ()
            elif not self._batch.times(arg):
                raise Declined("a number beside the size of the batch")
        for tensor in (*reads, *wholes):
            tensor.readers.append(place)
        first = max((tensor.maker + 1 for tensor in wholes), default=0)
        writes = tuple(Tensor(self._batch.bytes_of(ty), place) for ty in types)
        self._tensors[binding.var] = list(writes)
        return Kernel(tuple(reads), writes, others, first)

    def _view(self, var: relax.Var, value: relax.Call) -> Kernel:
        """A reshape that leaves whole images in front."""
        source = value.args[0]
        if not all(map(self._batch.rows, [*self._batch.types(source.ty), *self._batch.types(var.ty)])):
            raise Declined("no images in front")
        if not isinstance(source, relax.Var):
            raise Declined("a constant")
        self._tensors[var] = self._of(source)
        return Kernel((), (), 0)

    def _of(self, var: relax.Var) -> list[Tensor]:
        if var not in self._tensors:
            (ty,) = self._batch.types(var.ty)
            self._tensors[var] = [Tensor(self._batch.bytes_of(ty))]
        return self._tensors[var]

    def _leave(self, value: relax.Expr) -> None:
        for var in relax.analysis.free_vars(value):
            for tensor in self._tensors.get(var, ()):
                tensor.leaves = True
