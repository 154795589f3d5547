"""Writing TVMScript: an indenting line buffer and expressions on float32 vectors.

Every index of the text is int64, like the symbolic dimensions it meets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..code import pair_dot

LOG2_E = 1.4426950408889634

# 2**f for |f| <= 1/2 in ascending powers, minimax in the relative error: 8e-8, with float32 rounding 2.2e-7.
EXP2 = (
    1.0000000716546844,
    0.6931469670647361,
    0.24022119723842572,
    0.05550713273537916,
    0.009675541334355007,
    0.0013276471979750252,
)
# Adding it to |y| < 2**22 rounds y to an integer, which then stands in the low bits of the sum.
ROUND = 12582912.0  # 1.5 * 2**23
# Below it exp2 gives 8e-31, which counts as nothing beside a row sum of at least 1 and stays a normal number.
LEAST = -100.0
# tanh(u) = u * P(u * u) for |u| < TANH_NEAR, minimax in the relative error: 4e-9; farther out
# 1 - 2 / (exp(2 * u) + 1) loses no digits.
TANH_NEAR = 0.625
TANH = (
    0.9999999960752907,
    -0.333332605269355,
    0.13331127536237247,
    -0.05372106800709106,
    0.020590988289096383,
    -0.005659988970003195,
)


UNROLLED = 256  # numbers of a head whose vectors are written out; of more, code generation takes a quarter of a minute


class Source:
    """The text under construction."""

    def __init__(self, through_memory: bool = True) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._through_memory = through_memory

    def __call__(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def under(self, header: str) -> Iterator[None]:
        self(header)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """A scope of its own for names and buffers."""
        with self.under(f"with T.sblock({name!r}):"):
            self("T.reads()", "T.writes()")
            yield

    def loop(self, var: str, extent: object, kind: str = "serial"):
        return self.under(f"for {var} in T.{kind}({i64(extent)}):")

    def columns(self, width: int, step: int) -> Iterator[object]:
        """Where the parts of a row of `width` numbers begin: each in lines of its own, or, of a long row, in a loop."""
        if width <= UNROLLED:
            yield from range(0, width, step)
            return
        with self.loop("place", width // step):
            yield f"place * {i64(step)}"
        yield from range(width // step * step, width, step)

    def let(self, name: str, value: object, dtype: str = "int64") -> None:
        """`name` = `value`, a number below 2**31.

        For CPUs it passes through memory (LLVM removes that), because the simplifiers of the lowering replace a
        variable by its value wherever it stands, and spent half a minute on nested quotients and minima.
        One int32 is the size that StorageRewrite never merges with another buffer. A kernel for GPUs has few
        quotients, and its shared memory is not planned around loads outside of statements.
        """
        if not self._through_memory:
            self(f"{name}: T.let[T.{dtype}] = " + (i64(value) if dtype == "int64" else f'T.cast({value}, "{dtype}")'))
            return
        self(
            f'{name}_cell = T.alloc_buffer((1,), "int32")',
            f'{name}_cell[0] = T.cast({i64(value)}, "int32")',
            f"{name}: T.let[T.{dtype}] = "
            + (f'T.cast({name}_cell[0], "int64")' if dtype == "int64" else f"{name}_cell[0]"),
        )

    @contextmanager
    def rows(self) -> Iterator[None]:
        """A loop over the rows r of a task."""
        with self.loop("row", "rows"):
            self.let("r", "row")
            yield

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def i64(value: object) -> str:
    return f"T.int64({value})" if isinstance(value, int) else str(value)


def beyond(start: object, count: int) -> object:
    """The place `count` behind `start`, a number or a text."""
    return start + count if isinstance(start, int) else f"{start} + {i64(count)}"


class Vectors:
    """Expressions on vectors of `lanes` float32 values."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.dtype = f"float32x{lanes}"
        self.int_dtype = f"int32x{lanes}"

    def span(self, start: object) -> str:
        """The index of one vector that begins at `start`."""
        return f"T.ramp({i64(start)}, T.int64(1), {self.lanes})"

    def all(self, scalar: str) -> str:
        return f"T.broadcast({scalar}, {self.lanes})"

    def const(self, value: float) -> str:
        return self.all(f"T.float32({value!r})")

    def buffer(self, name: str, count: int = 1) -> str:
        """A statement: local vectors. They live in registers only below 1024 bytes, so many are many buffers."""
        assert count * self.lanes * 4 < 1024, f"{name} of {count} vectors would go to memory"
        return f'{name} = T.alloc_buffer(({count},), "{self.dtype}")'

    def pair(self, low: str, high: str) -> str:
        """Two vectors as words of two bfloat16, lane by lane; the words are carried as float32."""
        words = f'T.call_pure_extern("{self.int_dtype}", "{pair_dot.JOIN}", {low}, {high})'
        return f'T.reinterpret("{self.dtype}", {words})'

    def dot(self, total: str, a: str, b: str, pairs: bool) -> str:
        """total + a * b; of `pairs`, both products of each lane."""
        if not pairs:
            return f"{total} + {a} * {b}"
        words = ", ".join(f'T.reinterpret("{self.int_dtype}", {x})' for x in (a, b))
        return f'T.call_pure_extern("{self.dtype}", "{pair_dot.NAME}", {total}, {words})'

    def polynomial(self, coefficients: Sequence[float], x: str) -> str:
        text = self.const(coefficients[-1])
        for value in coefficients[-2::-1]:
            text = f"({text} * {x} + {self.const(value)})"
        return text

    def at_least(self, lowest: float, x: str) -> str:
        """The larger one, and NaN where x is: what TVM makes of `max` gives its second operand where one is NaN."""
        return f"T.max({self.const(lowest)}, {x})"

    def exp2(self, x: str, temporary: str) -> list[str]:
        """Statements: x = 2**x for x in [LEAST, 100]; the integer part is added to the exponent bits.

        Of a NaN the low nine bits are added there: one whose are zero, as of all that arithmetic makes, stays one.
        """
        as_int = f'T.reinterpret("{self.int_dtype}", {{}})'.format
        shifted = f"T.shift_left({as_int(temporary)}, {self.all('T.int32(23)')})"
        return [
            f"{temporary} = {x} + {self.const(ROUND)}",
            f"{x} = {x} - ({temporary} - {self.const(ROUND)})",
            f"{x} = {self.polynomial(EXP2, x)}",
            f'{x} = T.reinterpret("{self.dtype}", {as_int(x)} + {shifted})',
        ]

    def tanh(self, x: str, far: str, temporary: str) -> list[str]:
        """Statements: x = tanh(x)."""
        clamped = self.at_least(-60.0, f"T.min({self.const(60.0)}, {x} * {self.const(2 * LOG2_E)})")
        near = f"{x} * {self.polynomial(TANH, f'({x} * {x})')}"
        is_near = f"T.max({x}, {self.const(0.0)} - {x}) < {self.const(TANH_NEAR)}"
        return [
            f"{far} = {clamped}",
            *self.exp2(far, temporary),
            f"{far} = {self.const(1.0)} - {self.const(2.0)} / ({far} + {self.const(1.0)})",
            f"{x} = T.Select({is_near}, {near}, {far})",
        ]

    def butterfly(self, combine: str, x: str, temporary: str) -> list[str]:
        """Statements: every lane of x becomes the combination of all; `combine` has the places a and b.

        llvm.vector.reduce.fmax would spend three instructions a step on NaN.
        """
        statements = []
        half = self.lanes // 2
        while half:
            order = [lane ^ half for lane in range(self.lanes)]
            statements += [f"{temporary} = T.Shuffle([{x}], {order})", f"{x} = {combine.format(a=x, b=temporary)}"]
            half //= 2
        return statements

    def sums_across(self, rows: Sequence[str]) -> list[str]:
        """Statements: lane i of the first of `lanes` vectors becomes the sum of the lanes of vector i.

        Two vectors at a time: halves exchanged and added, with one vector left of two, then quarters, ...
        """
        lanes, statements, half = self.lanes, [], self.lanes // 2
        while half:
            low = [j if not j & half else lanes + j - half for j in range(lanes)]
            high = [j + half if not j & half else lanes + j for j in range(lanes)]
            for i in range(half):
                a, b = rows[i], rows[i + half]
                statements.append(f"{a} = T.Shuffle([{a}, {b}], {low}) + T.Shuffle([{a}, {b}], {high})")
            half //= 2
        return statements

    def transpose(self, rows: Sequence[str], temporary: str) -> list[str]:
        """Statements: `lanes` vectors become their transpose, by exchanging off-diagonal squares of halving size."""
        lanes, statements, half = self.lanes, [], self.lanes // 2
        while half:
            low = [j if not j & half else lanes + j - half for j in range(lanes)]
            high = [j + half if not j & half else lanes + j for j in range(lanes)]
            for i in range(lanes):
                if i & half:
                    continue
                a, b = rows[i], rows[i + half]
                statements += [
                    f"{temporary} = T.Shuffle([{a}, {b}], {low})",
                    f"{b} = T.Shuffle([{a}, {b}], {high})",
                    f"{a} = {temporary}",
                ]
            half //= 2
        return statements
