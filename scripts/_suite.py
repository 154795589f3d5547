"""What the benchmark suite measures: rows of models and sizes, the peers of a precision, and what is promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

BEST_FP32 = ("onnxruntime", "onnxruntime-plain", "onnxruntime-extended", "torch-compile", "openvino")
# openvino's static int8 is no one's best: on random weights its errors are several times those of the others.
BEST_INT8 = ("onnxruntime-int8", "onnxruntime-int8-plain", "openvino-int8")
# A row runs against these when --vs is not given.
PEERS: Mapping[str, tuple[str, ...]] = {
    "fp32": (*BEST_FP32, "torch", "jax"),
    "int8": BEST_INT8,
    "bf16": (*BEST_FP32, "openvino-bf16"),
    "fp16": (*BEST_FP32, "openvino-fp16"),
}


@dataclass(frozen=True)
class Goal:
    """The least ratio, peer's time / ours, against the best of some peers; at two threads."""

    precision: str
    ratio: float
    against: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One line of the suite: a model and the sizes it is timed at."""

    model: str
    shape: str
    goals: tuple[Goal, ...]
    precisions: tuple[str, ...] = ("fp32", "int8")
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # precision -> peers of this row alone
    without: tuple[str, ...] = ()  # peers that have no such model

    def peers(self, precision: str) -> tuple[str, ...]:
        return (*(name for name in PEERS[precision] if name not in self.without), *self.extra.get(precision, ()))


def _transformer(fp32: float) -> tuple[Goal, ...]:
    return Goal("fp32", fp32, BEST_FP32), Goal("int8", 1.60, BEST_INT8), Goal("fp16", 1.80, PEERS["fp16"])


WHOLE = ("fp32", "int8", "fp16")
SUITE = (
    Row("gpt2-last", "batch=1,sequence=128", _transformer(1.20), WHOLE),
    Row("bert-base", "batch=1,sequence=128", _transformer(1.12), WHOLE),
    Row(
        "mlp",
        "batch=256",
        (Goal("fp32", 1.05, BEST_FP32), Goal("fp32", 0.95, ("libxsmm",))),
        extra={"fp32": ("libxsmm", "tvm")},
    ),
    Row("t5-small", "batch=1,sequence=128", (Goal("fp32", 1.10, BEST_FP32[:-1]),), without=("jax",)),
    Row("gpt2-last", "batch=1,sequence=512", _transformer(1.20), WHOLE),
    Row("bert-base", "batch=8,sequence=128", _transformer(1.12), WHOLE),
)
MEMORY = ("gpt2-last", 1.5)  # peak of a run in fp32: torch eager's / ours, and what is promised


def cells(
    models: tuple[str, ...] | None, precisions: tuple[str, ...] | None, threads: tuple[int, ...]
) -> Iterator[tuple[Row, str, int]]:
    """Every measurement in order: the most threads first, all rows in fp32 before the next precision."""
    for count in sorted(threads, reverse=True):
        for precision in PEERS:
            for row in SUITE:
                if models is not None and row.model not in models:
                    continue
                asked = row.precisions if precisions is None else precisions
                if precision in asked:
                    yield row, precision, count


def goals_of(model: str, sizes: Mapping[str, tuple[int, ...]], precision: str, threads: int) -> tuple[Goal, ...]:
    """The goals of a measured result: those of the row with its model and sizes; there are none at one thread."""
    shape = next(iter(sizes.values()), ())
    for row in SUITE:
        wanted = tuple(int(part.split("=")[1]) for part in row.shape.split(","))
        if row.model == model and shape[: len(wanted)] == wanted:
            return tuple(g for g in row.goals if g.precision == precision and threads == 2)
    return ()
