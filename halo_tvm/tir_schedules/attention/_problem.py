"""Reading the PrimFunc of an attention call: its buffers, dimensions and attributes, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.buffer import BufferType

from ...dimensions import by_name, size_of
from ...errors import Declined
from ._text import LOG2_E, Source

HEAD_MULTIPLE = 16  # of the size of a head that rules serve
WIDEST_EVERYWHERE = 256  # the largest that all of them do


@dataclass(frozen=True)
class Problem:
    """One attention call. Dimensions `b`, `s`, `t` are int64 expressions of the text."""

    header: tuple[str, ...]  # parameters of the text function
    declarations: tuple[str, ...]  # its symbolic variables and buffers
    b: str
    s: str
    t: str
    static_s: int | None  # the same, where it is known
    static_t: int | None
    h: int
    h_kv: int
    d: int
    scale: float
    packed: bool
    causal: bool
    window: int
    softcap: float
    key_mask: str | None  # dtype
    bias: tuple[bool, bool, bool] | None  # which of [b, h, s] have extent 1
    sinks: bool = False  # a score of every head beside those of keys, whose value is zero
    lengths: bool = False  # the keys of each batch row are counted by data
    narrow: bool = False  # the operands of both products may be rounded to bfloat16
    tf32: bool = False  # they may be rounded to 11 bits
    dtype: str = "float32"  # of queries and the result
    kept: str = "float32"  # of keys and values

    @property
    def ratio(self) -> int:
        """Query heads of one KV head."""
        return self.h // self.h_kv

    @property
    def keys(self) -> str:
        """The keys of batch row n: `locate_keys` defines the name where data counts them."""
        return "limit" if self.lengths else self.t

    @property
    def shift(self) -> str:
        """Query i stands at key position i + shift."""
        return "T.int64(0)" if self.keys == self.s else f"({self.keys} - {self.s})"

    @property
    def score_scale(self) -> float:
        """The factor of the product of queries and keys, whose exponential is of two; in front of a soft cap's tanh."""
        return self.scale / self.softcap if self.softcap else self.scale * LOG2_E

    def bias_row(self, batch: str, head: str, query: str) -> str:
        """The indices into the bias in front of that of a key."""
        assert self.bias is not None
        return ", ".join("T.int64(0)" if one else index for one, index in zip(self.bias, (batch, head, query)))


def call_attributes(func: tirx.PrimFunc) -> dict[str, object]:
    """`halo.call` of an attention function as plain values; declines any other function."""
    attrs = func.attrs or {}
    if "halo.call" not in attrs:
        raise Declined("serves functions with the attribute halo.call, this one has none")
    call = attrs["halo.call"]
    values = {str(key): getattr(call[key], "value", call[key]) for key in call.keys()}
    if values.get("op") != "attention":
        raise Declined(f"serves halo.attention, this function calls halo.{values.get('op')}")
    return values


def read(
    func: tirx.PrimFunc,
    dtypes: Sequence[str] = ("float32",),
    caches: Sequence[str] = (),
    *,
    sinks: bool = False,
    widest: int = WIDEST_EVERYWHERE,
) -> Problem:
    """The problem `func` states on queries, keys and values of one of `dtypes`, or Declined(reason).

    Keys and values may be of another type where it is one of `caches`. `sinks`: the rule knows them.
    `widest` is the largest head size that it serves.
    """
    attrs = call_attributes(func)
    if attrs.get("has_sinks") and not sinks:
        raise Declined("serves attention without sinks")
    names = _operand_names(attrs)
    buffers = buffers_of(func)
    assert len(buffers) == len(names), f"attention function with {len(buffers)} buffers, expected {names}"
    for name, buffer in zip(names, buffers):
        served = ("float32",) if name in ("bias", "sinks") else dtypes
        if name in ("K", "V"):
            served = (str(buffers[0].dtype), *caches)
        if name not in ("key_mask", "lengths") and str(buffer.dtype) not in served:
            raise Declined(f"serves {', '.join(served)}, {name} is {buffer.dtype}")
    d = int(attrs["head_dim"])
    if d % HEAD_MULTIPLE or not HEAD_MULTIPLE <= d <= widest:
        raise Declined(f"serves head sizes that are multiples of {HEAD_MULTIPLE} up to {widest}, got {d}")

    variables = _variables(func, buffers)
    texts = {name: [_dim(dim, variables) for dim in buffer.shape] for name, buffer in zip(names, buffers)}
    scalars = {param for param in func.params if not is_buffer(param)}
    unnamed = iter(names)
    header = [
        f"p_{next(unnamed)}: T.handle" if is_buffer(param) else f"{variables[param]}: T.{param.ty}"
        for param in func.params
    ]
    declarations = [f"{name} = T.{var.ty}()" for var, name in variables.items() if var not in scalars]
    for name, buffer in zip(names, buffers):
        declarations.append(f'{name} = T.match_buffer(p_{name}, ({", ".join(texts[name])},), "{buffer.dtype}")')

    first = texts[names[0]]
    keys = buffers[0 if attrs.get("packed") else names.index("K")].shape[1]
    bias = None
    if attrs.get("has_bias"):
        bias = tuple(isinstance(dim, tirx.IntImm) and dim.value == 1 for dim in buffers[names.index("bias")].shape[:3])
    return Problem(
        header=tuple(header),
        declarations=tuple(declarations),
        b=first[0],
        s=first[1],
        t=_dim(keys, variables),
        static_s=_static(buffers[0].shape[1]),
        static_t=_static(keys),
        h=int(attrs["num_heads"]),
        h_kv=int(attrs["num_kv_heads"]),
        d=d,
        scale=float(attrs["scale"]),
        packed=bool(attrs.get("packed", False)),
        causal=bool(attrs.get("causal", False)),
        window=int(attrs.get("window", 0)),
        softcap=float(attrs.get("softcap", 0.0)),
        key_mask=str(buffers[names.index("key_mask")].dtype) if attrs.get("has_key_mask") else None,
        bias=bias,
        sinks=bool(attrs.get("has_sinks", False)),
        lengths=bool(attrs.get("has_lengths", False)),
        narrow=attrs.get("products") == "bfloat16",
        tf32=attrs.get("products") == "tf32",
        dtype=str(buffers[0].dtype),
        kept=str(buffers[0 if attrs.get("packed") else names.index("K")].dtype),
    )


def locate_keys(src: Source, problem: Problem) -> None:
    """Defines `limit`, the valid keys of batch row n within 0 .. t."""
    if problem.lengths:
        src.let("limit", f'T.max(T.int64(0), T.min({problem.t}, T.cast(lengths[n], "int64")))')


def extents(func: tirx.PrimFunc, sizes: Mapping[tirx.Var, int]) -> tuple[tuple[int, ...], int]:
    """(the shape of the queries' tensor, the number of keys) with the symbolic dimensions at `sizes`."""
    attrs = call_attributes(func)
    buffers = buffers_of(func)
    known = by_name(sizes)
    queries = tuple(size_of(dim, known) for dim in buffers[0].shape)
    return queries, queries[1] if attrs.get("packed") else size_of(buffers[1].shape[1], known)


def buffers_of(func: tirx.PrimFunc) -> list[tirx.Var]:
    return [param for param in func.params if is_buffer(param)]


def is_buffer(param: tirx.Var) -> bool:
    return isinstance(param.ty, BufferType)


def _operand_names(attrs: dict[str, object]) -> list[str]:
    operands = ["QKV"] if attrs.get("packed") else ["Q", "K", "V"]
    extras = [name for name in ("key_mask", "bias", "sinks", "lengths") if attrs.get(f"has_{name}")]
    return [*operands, *extras, "O"]


def _static(dim: tirx.PrimExpr) -> int | None:
    return int(dim.value) if isinstance(dim, tirx.IntImm) else None


def _variables(func: tirx.PrimFunc, buffers: list[tirx.Var]) -> dict[tirx.Var, str]:
    """The symbolic dimensions of `func`, each with a name the text can use."""
    found: list[tirx.Var] = [param for param in func.params if not is_buffer(param)]
    for buffer in buffers:
        for dim in buffer.shape:
            found += [var for var in _vars_of(dim) if not any(var.same_as(old) for old in found)]
    return {var: f"n{position}" for position, var in enumerate(found)}


def _vars_of(dim: tirx.PrimExpr) -> list[tirx.Var]:
    if isinstance(dim, tirx.Var):
        return [dim]
    return [var for side in ("a", "b") if hasattr(dim, side) for var in _vars_of(getattr(dim, side))]


BINARY = {tirx.Add: "({} + {})", tirx.Sub: "({} - {})", tirx.Mul: "({} * {})", tirx.FloorDiv: "({} // {})"} | {
    tirx.FloorMod: "({} % {})",
    tirx.Min: "T.min({}, {})",
    tirx.Max: "T.max({}, {})",
}


def _dim(dim: tirx.PrimExpr, names: dict[tirx.Var, str]) -> str:
    if isinstance(dim, tirx.IntImm):
        return f"T.int64({dim.value})"
    if isinstance(dim, tirx.Var):
        return names[dim]
    if type(dim) in BINARY:
        return BINARY[type(dim)].format(_dim(dim.a, names), _dim(dim.b, names))
    raise Declined(f"serves dimensions built by {', '.join(kind.__name__ for kind in BINARY)}, got {dim}")
