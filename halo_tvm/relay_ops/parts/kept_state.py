"""What operators share whose state is overwritten in place: one step after the other over time, channels side by side.

A state has a row for each sequence, and no position: what it was before the call cannot be had back. `lengths [b]` says
how many tokens came before. A length of 0 begins with zeros, whatever is stored; below zero is a row that takes no
part, whose state stays and whose results are zero or mean nothing. Without a state every row begins with zeros, and
nothing is kept.

Loops of the lowered functions are marked for the rule `state_loop`: "tasks" may run side by side, "lanes" are vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from tvm import ir, relax, te, tirx

from ...dimensions import differ
from ...prim_text import prim_func
from ..operator import Operator, attrs_of, shaped

LOOP = "halo.loop"
TASKS, LANES = "tasks", "lanes"
_WIDEST, _WHOLE = 32, 8  # channels of a task: sums of so many fit the registers of every target; whole vectors


def lanes_of(channels: int) -> int:
    """How many channels a task takes: a divisor of `channels`, whole vectors where there is one."""
    if channels <= _WIDEST:
        return channels
    divisors = [width for width in range(1, _WIDEST + 1) if channels % width == 0]
    return max(divisors, key=lambda width: (width % _WHOLE == 0, width))


def marked(extent: str, mark: str) -> str:
    """The words of a loop that the rule knows."""
    return f'T.serial({extent}, annotations={{"{LOOP}": "{mark}"}})'


def size_text(dim: ir.Expr, name: str) -> str:
    return f"T.int64({int(dim)})" if isinstance(dim, tirx.IntImm) else name


class StateOperator(Operator, abstract=True):
    """An operator whose call may keep a state: the arguments x, state, lengths, ... with `has_state`, else x, ...

    It gives y of the shape of x and, with a state, the state.
    """

    fusible = False
    writes = {1: 1}
    arguments: ClassVar[tuple[str, ...]]  # without the state and its lengths, which stand behind the first

    @classmethod
    def names(cls, attrs: Mapping[str, object]) -> list[str]:
        """The arguments of a call with these attributes."""
        first, *rest = cls.arguments
        state = ("state", "lengths") if attrs.get("has_state") else ()
        return [first, *state, *(name for name in rest if name != "bias" or attrs.get("has_bias"))]

    @classmethod
    def written_by(cls, attrs: Mapping[str, object]) -> Mapping[int, int]:
        return cls.writes if attrs.get("has_state") else {}

    @classmethod
    def lowered(cls, types: Sequence[relax.TensorType], **attrs: object) -> tirx.PrimFunc:
        """The function over buffers of these types and, the last one, y."""
        raise AssertionError(f"halo.{cls.name} lacks its lowering")

    @staticmethod
    def compute(*args: te.Tensor, **attrs: object) -> te.Tensor:
        """Only the lowering has the meaning: TE writes nothing in place."""
        raise AssertionError("operators with a state are lowered by themselves")

    @classmethod
    def _legalize(cls, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attrs = {k: v for k, v in attrs_of(call).items() if k != "layer"}
        types = [arg.ty for arg in call.args]
        gvar, given = cls._added(bb, call, cls.lowered(types, **attrs)), relax.Tuple(list(call.args))
        if not attrs.get("has_state"):
            return relax.call_tir(gvar, given, [types[0]])
        return relax.op.call_tir_inplace(gvar, given, [-1, 1], [types[0], types[1]])

    @classmethod
    def result(cls, call: relax.Call) -> relax.Type:
        types = [arg.ty for arg in call.args]
        return relax.TupleType(types[:2]) if attrs_of(call).get("has_state") else types[0]


def expect(op: str, names: Sequence[str], call: relax.Call, shapes: Mapping[str, Sequence[object]]) -> None:
    """`ValueError` unless the arguments are these, of these shapes, all float32 but for int32 lengths."""
    if len(call.args) != len(names):
        raise ValueError(
            f"halo.{op}: {len(names)} arguments expected ({', '.join(names)}), got {len(call.args)}: pass them in this "
            "order and set has_<name> for each optional one"
        )
    for name, arg in zip(names, call.args):
        ty, shape, dtype = arg.ty, list(shapes[name]), "int32" if name == "lengths" else "float32"
        fits = shaped(ty) and str(ty.dtype) == dtype and ty.ndim == len(shape)
        if not fits or any(differ(found, wanted) for found, wanted in zip(ty.shape.values, shape)):
            raise ValueError(f"halo.{op}: {name} must be {dtype} of the shape {shape}, got {ty}: cast or reshape it")


def scan_shapes(op: str, names: Sequence[str], call: relax.Call, *, values: str, keys: str) -> dict[str, list[ir.Expr]]:
    """The shapes of `values` [b, s, h, p], `keys` [b, s, g, n], the state [b, h, n, p] and the lengths [b] of a scan.

    `ValueError` unless the call has arguments of these names, and g divides h.
    """
    attrs, types = attrs_of(call), dict(zip(names, (arg.ty for arg in call.args)))
    if attrs.keys() - {"layer", "has_state"} or len(call.args) != len(names):
        raise ValueError(f"halo.{op}: {', '.join(names)} expected, got {len(call.args)} and {attrs}")
    for name in (values, keys):
        ty = types[name]
        if not shaped(ty) or ty.ndim != 4:
            raise ValueError(f"halo.{op}: {name} must have rank 4 and a known shape, got {ty}: reshape it")
    b, s, h, p = types[values].shape.values
    g, n = types[keys].shape.values[2:]
    if int(h) % int(g):
        raise ValueError(f"halo.{op}: {keys} of groups that divide {int(h)} heads expected, got {int(g)}")
    return {values: [b, s, h, p], keys: [b, s, g, n], "state": [b, h, n, p], "lengths": [b]}


def begun(given: Mapping[str, np.ndarray], shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a reference begins with: which rows take part (of the state's rank), the stored state and the one they have.

    `shape` is that of the state, zeros where none is `given`.
    """
    rows = (shape[0], *[1] * (len(shape) - 1))
    lengths = given.get("lengths", np.zeros(shape[0], np.int32)).reshape(rows)
    kept = given["state"] if "state" in given else np.zeros(shape, np.float32)
    return lengths >= 0, kept, np.where(lengths > 0, kept, 0)


_SCAN = """
@T.prim_func(s_tir=True, private=True)
def {name}({arguments}):
    {variables}
    {match}
    for task in {tasks}:
        with T.sblock("{name}"):
            vt = T.axis.remap("S", [task])
            T.reads({reads})
            T.writes({writes})
            T.sblock_attr({{"halo.op": "{name}"}})
            {held}
            {buffers}
            row: T.let[T.int64] = vt // {tasks_of_row}
            head: T.let[T.int64] = vt // {blocks} % {h}
            at: T.let[T.int64] = vt % {blocks} * {w}
            if {begins}:
                for j in T.serial({states}):
                    for e in {lanes}:
                        {place} = T.float32(0)
            for i in T.serial({steps}):
                {step}
            {rest}
"""
_REST = """if lengths[row] < 0:
                for i in T.serial({s}):
                    for e in {lanes}:
                        y[row, i, head, at + e] = T.float32(0)"""


def scan(
    name: str,
    by_name: Mapping[str, relax.TensorType],
    step: str,
    buffers: Mapping[str, str],
    *,
    values: str,
    keys: str,
    **own: str,
) -> tirx.PrimFunc:
    """The function `name` whose state [b, h, n, p], a matrix for every head, moves on by `step` with each token.

    `values` [b, s, h, p] and `keys` [b, s, g, n] are names among the arguments `by_name`. A task has some channels of
    one head: `step` is text of token i of sequence `row` and head `head`, whose words are those of `_words` and `own`;
    `buffers` are its own, with their sizes.
    """
    words = _words(by_name, values=values, keys=keys) | {"name": name}
    words |= {word: text.format(**words) for word, text in own.items()}
    sizes = {buffer: size.format(**words) for buffer, size in buffers.items()}
    return prim_func(
        _SCAN.format(
            **words,
            buffers="; ".join(f'{b} = T.alloc_buffer(({n},), "float32", scope="local")' for b, n in sizes.items()),
            step=step.strip().format(**words),
            rest=_REST.format(**words) if "state" in by_name else "pass",
        )
    )


def _words(by_name: Mapping[str, relax.TensorType], *, values: str, keys: str) -> dict[str, str]:
    """The words of `_SCAN` that follow from the types of the arguments."""
    b, s, h, p = by_name[values].shape.values
    g, n = (int(dim) for dim in by_name[keys].shape.values[2:])
    sizes = {"b": size_text(b, "b"), "s": size_text(s, "s")}
    h, p, w, state = int(h), int(p), lanes_of(int(p)), "state" in by_name
    shapes = {
        name: ", ".join(size_text(dim, size) for dim, size in zip(ty.shape.values, "bsss"))
        for name, ty in by_name.items()
    }
    shapes["y"] = shapes[values]
    wholes = {name: ", ".join(f"T.int64(0):{dim}" for dim in shape.split(", ")) for name, shape in shapes.items()}
    held = f'held = T.alloc_buffer((T.int64({n}), T.int64({w})), "float32", scope="local")'
    return {
        "arguments": ", ".join(f"p_{name}: T.handle" for name in shapes),
        "variables": "; ".join(f"{var} = T.int64()" for var, text in sizes.items() if var == text) or "pass",
        "match": "; ".join(
            f'{name} = T.match_buffer(p_{name}, ({shape},), "{"int32" if name == "lengths" else "float32"}")'
            for name, shape in shapes.items()
        ),
        "tasks": marked(f"{sizes['b']} * T.int64({h * p // w})", TASKS),
        "tasks_of_row": f"T.int64({h * p // w})",
        # That the state is read, too, would keep TVM's rule for GPUs from taking the block.
        "reads": ", ".join(f"{name}[{wholes[name]}]" for name in by_name if name != "state"),
        "writes": ", ".join(f"{name}[{wholes[name]}]" for name in (["y", "state"] if state else ["y"])),
        "held": "pass" if state else held,
        "place": "state[row, head, j, at + e]" if state else "held[j, e]",
        "begins": "lengths[row] == 0" if state else "row >= T.int64(0)",
        "steps": f"T.if_then_else(lengths[row] >= 0, {sizes['s']}, T.int64(0))" if state else sizes["s"],
        "s": sizes["s"],
        "h": f"T.int64({h})",
        "w": f"T.int64({w})",
        "blocks": f"T.int64({p // w})",
        "states": f"T.int64({n})",
        "share": f"T.int64({h // g})",
        "lanes": marked(f"T.int64({w})", LANES),
    }
