"""Options of `halo-tvm compile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from . import _texts
from ._config import TOML_NAME, Config, option

OPT_LEVELS = {"0": 0, "1": 1, "2": 2, "3": 3, "low": 1, "medium": 2, "high": 3}
PRECISIONS = ("fp32", "bf16", "fp16", "int8", "int4")
CACHES = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class CompileConfig(Config):
    """A model becomes an artifact."""

    model: str = option(help=_texts.MODEL, short="m", metavar="MODEL")
    output: str | None = option(None, "artifact directory (default: <model>.halo)", short="o", metavar="DIR")
    target: str = option("cpu", "what to compile for: `halo-tvm targets` lists them", short="t", metavar="TARGET")
    opt_level: str = option(
        "3", "pass list: 0..3, or low, medium, high", short="O", metavar="LEVEL", choices=tuple(OPT_LEVELS)
    )
    precision: str | None = option(None, _texts.PRECISION, metavar="PRECISION", choices=PRECISIONS)
    force_precision: bool = option(False, _texts.FORCE_PRECISION)
    kv: str | None = option(None, _texts.KV, metavar="PRECISION", choices=CACHES)
    enable: tuple[str, ...] = option((), "also run this pass (repeatable)", metavar="PASS")
    disable: tuple[str, ...] = option((), "leave this pass out (repeatable)", metavar="PASS")
    shape: tuple[str, ...] = option((), _texts.RANGES, metavar="INPUT=DIMS")
    inputs: str | None = option(None, _texts.INPUTS, metavar="FILE")
    signature: str | None = option(None, _texts.SIGNATURE, metavar="NAME")
    trust_model: bool = option(False, _texts.TRUST)
    tokenizer: str | None = option(
        None, "directory whose tokenizer.json a language model gets instead of its own", metavar="DIR"
    )
    calibrate: str | None = option(
        None,
        "text that a language model reads to find the scales of its int4 weights (default: a shipped one)",
        metavar="FILE",
    )
    max_divergence: float | None = option(
        None,
        "how far from its source a language model may be on a text (default: what the precision may cost)",
        metavar="NATS",
    )
    allow_quality_loss: bool = option(False, "write a language model that is further from its source than that")
    function: tuple[str, ...] = option(
        (), "build this function beside main (repeatable; default: all that a checkpoint has)", metavar="NAME"
    )
    slots: int | None = option(None, _texts.SLOTS, metavar="N")
    log: str | None = option(None, _texts.LOG, metavar="DIR")
    dump_ir: str | None = option(None, "write the module after each phase there", metavar="DIR")
    config: str | None = option(None, f"options file (default: ./{TOML_NAME} when it exists)", metavar="FILE")
    seed: int = option(0, "seed of random weights and reference inputs")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
    validate: bool = option(True, "compare the artifact with the reference after building it")
    records: bool = option(True, "use tuning records; without them every schedule is the analytic default")
    cache: bool = option(True, "take the library of an unchanged module from an earlier build")
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict, hash=False, metadata={"flag": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_divergence is not None and not self.max_divergence >= 0:
            raise UsageError(
                f"max_divergence must be a number of nats from 0, but is {self.max_divergence}: "
                "leave the option out for what the precision may cost"
            )

    @property
    def level(self) -> int:
        """The opt level as a number from 0 to 3."""
        return OPT_LEVELS[self.opt_level]

    @property
    def artifact(self) -> Path:
        """Where the artifact goes: `output`, else the model's last path part with `.halo`."""
        return Path(self.output) if self.output else Path(Path(self.model).stem.replace(":", "-") + ".halo")
