"""The sequential part of a recurrent layer, behind the input's product for all time steps.

Shapes
    gates [s, b, dirs * blocks * g * block]   the input's product and biases, see Columns
    r [dirs, blocks, hidden * g * block]      per phase of the cell: [hidden, gates of the phase, block]
        int8 (has_r_scale): [ceil(hidden / 4), g, block, 4] for each block, zeros behind `hidden`
    r_scale, r_sums [dirs, blocks, g * block] (has_r_scale)   of the columns of such an r: scales, and sums over k
    recurrent_bias [dirs, 1, blocks * block] (has_recurrent_bias)   GRU's, with linear_before_reset
    lengths [b] int32 or int64 (has_lengths)
    initial_h, initial_c [dirs, b, hidden] (has_initial_h, has_initial_c)
    peepholes [dirs, 3, blocks * block] (has_peepholes)
    ->   y [s, dirs, b, hidden], y_h [dirs, b, hidden], for an LSTM y_c [dirs, b, hidden]
Columns
    per direction, per block of `block` hidden units: the g gates of the cell, `block` values each;
    blocks = ceil(hidden / block), and what lies beyond `hidden` does not matter
Computation
    the steps of `halo.lstm`, `halo.gru` or `halo.rnn`, whichever `cell` names; with r in int8
    state @ r' = (sum_k q[k] * r[k, j] - level * r_sums[j]) * scale * r_scale[j],   q = the state's levels on its grid
Numerics
    float32 and float64, each at its own precision
References
    none: it is a part of those operators, which lower to it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax, te, tirx

from .linear_w8a8 import GROUP
from .operator import Operator, attrs_of
from .parts.recurrent.cell import CELLS, Options, options_of
from .parts.recurrent.nest import nest
from .parts.recurrent.packed import reference
from .parts.recurrent.signature import LENGTH_DTYPES, expect

OPTIONAL = ("recurrent_bias", "lengths", "initial_h", "initial_c", "peepholes", "r_scale", "r_sums")
_OF_THE_LAYER = {"recurrent_bias", "r_sums"}  # which has no arguments of these names


class Recurrence(Operator):
    """The time loop of a recurrent layer."""

    name = "recurrence"
    fusible = False
    counts_symbols = True

    @classmethod
    def of(
        cls,
        gates: relax.Expr,
        r: relax.Expr,
        optional: Mapping[str, relax.Expr | None],
        options: Options,
        block: int,
        layer: str | None,
    ) -> relax.Call:
        """The call for a layer with `options`."""
        given = [name for name in OPTIONAL if optional.get(name) is not None]
        names, alphas, betas = zip(*options.activations)
        return cls.call(
            gates,
            r,
            *(optional[name] for name in given),
            cell=options.cell.name,
            block=block,
            hidden=options.hidden,
            direction=options.direction,
            activations=list(names),
            alpha=list(alphas),
            beta=list(betas),
            layer=layer,
            **{limit: getattr(options, limit) for limit in options.cell.limits},
            **{f"has_{name}": True for name in given},
            **({"has_w_scale": True} if options.byte_weights else {}),
            **dict.fromkeys(sorted(options.flags), True),
        )

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TupleType:
        attrs = attrs_of(call)
        options, block, names = _parsed(attrs)
        types = [arg.ty for arg in call.args]
        if len(types) != len(names):
            raise ValueError(
                f"halo.recurrence: {len(names)} arguments expected ({', '.join(names)}), got {len(types)}: "
                "pass them in this order and set has_<name> for each optional one"
            )
        d, h = options.directions, options.hidden
        width = -(-h // block) * block
        s, b = types[0].shape.values[:2]
        dtype = str(types[0].dtype)
        depth = options.groups * GROUP if options.byte_weights else h
        columns = (d, width // block, options.cell.gates * block)
        shapes = {
            "gates": (s, b, d * options.cell.gates * width),
            "r": (d, width // block, depth * options.cell.gates * block),
            "recurrent_bias": (d, 1, width),
            "lengths": (b,),
            "initial_h": (d, b, h),
            "initial_c": (d, b, h),
            "peepholes": (d, 3, width),
            "r_scale": columns,
            "r_sums": columns,
        }
        own = {"lengths": LENGTH_DTYPES, "gates": ("float32", "float64")}
        own |= {"r": ("int8",)} if options.byte_weights else {}
        for name, ty in zip(names, types):
            expect("halo.recurrence", name, ty, shapes[name], own.get(name, (dtype,)))
        state = relax.TensorType([d, b, h], dtype)
        return relax.TupleType([relax.TensorType([s, d, b, h], dtype), *[state] * options.cell.states])

    @staticmethod
    def compute(*args: te.Tensor, **attrs: object) -> list[te.Tensor]:
        options, block, names = _parsed(attrs)
        given = dict(zip(names, (tirx.decl_buffer(a.shape, a.dtype, name=name) for name, a in zip(names, args))))
        s, b = args[0].shape[:2]
        d, h, dtype = options.directions, options.hidden, args[0].dtype
        shapes = [(s, d, b, h), *[(d, b, h)] * options.cell.states]
        outs = [tirx.decl_buffer(shape, dtype, name=name) for shape, name in zip(shapes, ("y", "y_h", "y_c"))]
        return te.extern(
            shapes,
            list(args),
            lambda ins, results: nest(options, block, dict(zip(names, ins)), results),
            name="recurrence",
            dtype=[dtype] * len(shapes),
            in_buffers=list(given.values()),
            out_buffers=outs,
        )

    @staticmethod
    def reference(*args: np.ndarray, **attrs: object) -> tuple[np.ndarray, ...]:
        options, block, names = _parsed(attrs)
        return reference(options, block, dict(zip(names, args)))

    @staticmethod
    def flops(shapes: Sequence[tuple[int, ...]], **attrs: object) -> int:
        """The products with the state."""
        s, b, columns = shapes[0]
        return 2 * s * b * columns * int(attrs["hidden"])

    @staticmethod
    def cases() -> tuple[dict[str, object], ...]:
        lstm = {"cell": "lstm", "block": 16, "hidden": 21, "direction": "bidirectional"}
        gru = {"cell": "gru", "block": 32, "hidden": 32, "direction": "reverse"}
        lengths = np.array([4, 0, 2], "int32")
        rng = np.random.default_rng(0)

        def r(*shape: int) -> np.ndarray:
            """Small weights: sums of large ones amplify rounding from step to step."""
            return (0.2 * rng.standard_normal(shape)).astype("float32")

        levels = rng.integers(-127, 128, (2, 2, 6, 64, 4)).astype("int8")
        levels[:, :, 5, :, 1:] = 0  # behind the 21 values of the state
        sums = levels.sum((2, 4)).astype("float32")
        scales = np.full((2, 2, 64), 0.002, "float32")
        return (
            {"args": [(3, 1, 32), r(1, 1, 32 * 20)], "attrs": {"cell": "rnn", "block": 32, "hidden": 20}},
            {"args": [(5, 2, 256), r(2, 2, 21 * 64)], "attrs": lstm},
            {
                "args": [(4, 3, 256), r(2, 2, 21 * 64), lengths, (2, 3, 21), (2, 3, 21), (2, 3, 32)],
                "attrs": {
                    **lstm,
                    "has_lengths": True,
                    "has_initial_h": True,
                    "has_initial_c": True,
                    "has_peepholes": True,
                    "clip": 0.5,
                },
            },
            {"args": [(7, 5, 96), r(1, 1, 32 * 96)], "attrs": gru},
            {
                "args": [(2, 4, 96), r(1, 1, 32 * 96), (1, 1, 32)],
                "attrs": {**gru, "linear_before_reset": True, "has_recurrent_bias": True},
            },
            {
                "args": [(5, 3, 256), levels.reshape(2, 2, -1), (2, 3, 21), scales, sums],
                "attrs": {**lstm, **{f"has_{name}": True for name in ("initial_h", "w_scale", "r_scale", "r_sums")}},
            },
        )


def _parsed(attrs: Mapping[str, object]) -> tuple[Options, int, list[str]]:
    """Options, block and the names of the arguments in order."""
    own = {"cell", "block", *(f"has_{name}" for name in _OF_THE_LAYER)}
    rest = {k: v for k, v in attrs.items() if k not in own}
    options = options_of(CELLS[str(attrs["cell"])], rest)
    return options, int(attrs["block"]), ["gates", "r", *(name for name in OPTIONAL if attrs.get(f"has_{name}"))]
