"""One operator of a TFLite file while it is written as ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._schema import ACTIVATIONS

if TYPE_CHECKING:
    from ._file import Operator, Tensor
    from ._graph import Graph


class Refused(Exception):
    """An operator that cannot be written: a sentence, which the user reads behind its name."""


@dataclass(frozen=True)
class Result:
    """The ONNX name of an output: floats, which the graph puts on the output's grid where it has one, or `stored`."""

    name: str
    stored: bool = False


@dataclass(frozen=True)
class Channels(Result):
    """A result whose channels are its second dimension, where the file has them last."""


class Node:
    """The operator's inputs and options, and how to write nodes."""

    def __init__(self, graph: Graph, operator: Operator) -> None:
        self.graph, self.operator = graph, operator

    # Inputs. `i` counts the operator's inputs.

    def has(self, i: int) -> bool:
        return i < len(self.operator.inputs) and self.operator.inputs[i] >= 0

    @property
    def count(self) -> int:
        return len(self.operator.inputs)

    def tensor(self, i: int) -> Tensor:
        if not self.has(i):
            raise Refused(f"expected an input {i}, found {self.count} inputs")
        return self.graph.tensors[self.operator.inputs[i]]

    def output(self, i: int = 0) -> Tensor:
        if i >= len(self.operator.outputs):
            raise Refused(f"expected an output {i}, found {len(self.operator.outputs)}")
        return self.graph.tensors[self.operator.outputs[i]]

    def x(self, i: int = 0, first: bool = False) -> str:
        """Input `i` as floats (or what it is, if on no grid), channels first where `first`."""
        self.tensor(i)
        return self.graph.floats(self.operator.inputs[i], first)

    def stored(self, i: int = 0, first: bool = False) -> str:
        """Input `i` as the file has it: integers on a grid stay integers."""
        self.tensor(i)
        return self.graph.stored(self.operator.inputs[i], first)

    def permuted(self, i: int, perm: list[int]) -> str:
        """Input `i` as floats, its dimensions in the order `perm`."""
        if self.rank(i) != len(perm):
            raise Refused(f"expected {len(perm)} dimensions of input {i}, found {self.rank(i)}")
        return self.graph.permuted(self.operator.inputs[i], perm)

    def made_first(self, i: int = 0) -> bool:
        return self.has(i) and self.graph.made_first(self.operator.inputs[i])

    def shape(self, i: int = 0) -> tuple[int | None, ...]:
        return self.tensor(i).shape

    def rank(self, i: int = 0) -> int:
        return len(self.shape(i))

    def known(self, i: int) -> NDArray[Any] | None:
        """The values of input `i` where the file has them."""
        return self.tensor(i).data if self.has(i) else None

    def constant(self, i: int, what: str) -> NDArray[Any]:
        found = self.known(i)
        if found is None:
            raise Refused(f"expected {what} known in the file, found them computed")
        return found

    def integers(self, i: int, what: str) -> list[int]:
        """The values of a small input that the file has, as a list."""
        found = self.constant(i, what)
        if found.size > 64 or found.dtype.kind not in "iu":
            raise Refused(f"expected at most 64 integers for {what}, found {found.size} of {found.dtype}")
        return [int(v) for v in found.reshape(-1)]

    def axes(self, i: int) -> list[int]:
        rank = self.rank(0)
        return [self.axis(a, rank) for a in self.integers(i, "axes")]

    def axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise Refused(f"expected an axis within {rank} dimensions, found {axis}")
        return axis % rank

    # Options.

    def option(self, name: str) -> int:
        value = self.operator.options.get(name, 0)
        if not isinstance(value, int | float):
            raise Refused(f"expected a number for {name}, found {value!r}")
        return int(value)

    def real(self, name: str) -> float:
        value = self.operator.options.get(name, 0.0)
        if not isinstance(value, int | float):
            raise Refused(f"expected a number for {name}, found {value!r}")
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.option(name))

    def positive(self, *names: str) -> list[int]:
        found = [self.option(n) for n in names]
        if min(found) < 1:
            raise Refused(f"expected {', '.join(names)} of at least 1, found {found}")
        return found

    # Nodes.

    def emit(self, op: str, *inputs: str, **attributes: object) -> str:
        return self.graph.emit(op, inputs, attributes)

    def emit_all(self, op: str, inputs: Sequence[str], outputs: int, **attributes: object) -> list[str]:
        return self.graph.emit_all(op, inputs, attributes, outputs)

    def const(self, values: object, dtype: DTypeLike | None = None) -> str:
        return self.graph.constant(np.asarray(values, dtype))

    def sliced(self, x: str, axis: int, start: int, stop: int) -> str:
        """`x` from `start` to `stop` along `axis`."""
        return self.emit("Slice", x, *map(self.sizes, ([start], [stop], [axis])))

    def sizes(self, values: Sequence[int]) -> str:
        return self.const(values, np.int64)

    def int64(self, i: int) -> str:
        """Input `i`, integers, as ONNX wants sizes and places."""
        found = self.known(i)
        if found is not None:
            return self.const(found, np.int64)
        return self.stored(i) if self.tensor(i).dtype == "int64" else self.emit("Cast", self.stored(i), to=7)

    def activated(self, result: Result) -> Result:
        """`result` through the activation that the operator has fused, if any."""
        if result.stored or self.operator.name.endswith(("LSTM", "RNN", "SVDF")):
            return result
        name = self.fused_activation()
        return result if name == "NONE" else type(result)(self.activation(name, result.name))

    def fused_activation(self) -> str:
        """The activation that the operator has fused, NONE for most."""
        number = self.option("activation")
        if not 0 <= number < len(ACTIVATIONS):
            raise Refused(f"expected a known activation, found {number}")
        return ACTIVATIONS[number]

    def activation(self, name: str, x: str) -> str:
        if name == "NONE":
            return x
        if name in ("RELU", "TANH"):
            return self.emit("Relu" if name == "RELU" else "Tanh", x)
        limits = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}.get(name)
        if limits is None:
            raise Refused(f"expected a known activation, found {name}")
        return self.emit("Clip", x, *(self.const(v, np.float32) for v in limits))
