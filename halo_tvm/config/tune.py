"""Options of `halo-tvm tune`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UsageError
from . import _texts
from ._config import TOML_NAME, Config, option
from ._devices import check_device_key, parse_address
from .compile import CACHES, OPT_LEVELS, PRECISIONS, CompileConfig

EFFORTS = ("none", "quick", "full")
STAGES = ("analytic", "records", "ranked", "descent", "metaschedule")  # the last one only where it is asked for


@dataclass(frozen=True)
class TuneConfig(Config):
    """The functions of one model or of many are measured; what is learned goes to a tuning log."""

    model: tuple[str, ...] | str = option((), f"{_texts.MODEL} (repeatable)", short="m", metavar="MODEL", split=False)
    model_list: str | None = option(
        None,
        "file of models, one a line, with shape=, inputs= and weight= of its own; # begins a comment",
        metavar="FILE",
    )
    target: str = option("cpu", "what to tune for: `halo-tvm targets` lists them", short="t", metavar="TARGET")
    budget: str = option("10m", "wall-clock limit, e.g. 90s, 10m, 1h", metavar="TIME")
    trials: int | None = option(
        None,
        "most candidates to measure (default: as many as the budget allows), or to build with --build-only "
        "(default: 4 of each function)",
        metavar="N",
    )
    effort: str = option("full", "how widely to search", metavar="EFFORT", choices=EFFORTS)
    stages: tuple[str, ...] = option(
        (), f"stages of the search: {', '.join(STAGES)} (default: those of --effort)", metavar="STAGE", choices=STAGES
    )
    build_only: bool = option(
        False, "build the best candidates by the rules' own models and rank them; nothing is measured or recorded"
    )
    resume: bool = option(False, "go on with the last run of this model and target that did not end")
    cold_cache: bool = option(True, "time kernels with weights that come from memory, as in a whole model")
    rpc: str | None = option(None, "measure on a device of this RPC tracker", metavar="HOST:PORT")
    device_key: str | None = option(None, "the key under which the device is known to the tracker", metavar="KEY")
    log: str | None = option(
        None, "directory to write records to (default: tuning_logs under $HALO_TVM_HOME)", metavar="DIR"
    )
    shape: tuple[str, ...] = option((), _texts.RANGES, metavar="INPUT=DIMS")
    inputs: str | None = option(None, _texts.INPUTS, metavar="FILE")
    trust_model: bool = option(False, _texts.TRUST)
    opt_level: str = option(
        "3", "pass list: 0..3, or low, medium, high", short="O", metavar="LEVEL", choices=tuple(OPT_LEVELS)
    )
    precision: str | None = option(None, _texts.PRECISION, metavar="PRECISION", choices=PRECISIONS)
    force_precision: bool = option(False, _texts.FORCE_PRECISION)
    kv: str | None = option(None, _texts.KV, metavar="PRECISION", choices=CACHES)
    function: tuple[str, ...] = option(
        (),
        "tune this function (repeatable; default: all that a language model answers with, else main)",
        metavar="NAME",
    )
    slots: int | None = option(None, _texts.SLOTS, metavar="N")
    enable: tuple[str, ...] = option((), "also run this pass (repeatable)", metavar="PASS")
    disable: tuple[str, ...] = option((), "leave this pass out (repeatable)", metavar="PASS")
    config: str | None = option(None, f"options file (default: ./{TOML_NAME} when it exists)", metavar="FILE")
    seed: int = option(0, "seed of weights, inputs and search order")
    threads: int | None = option(None, _texts.THREADS, metavar="N", env="threads")
    json: str | None = option(None, _texts.JSON, metavar="FILE")
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict, hash=False, metadata={"flag": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model and not self.model_list:
            raise UsageError("--model or --model-list must be given, but neither is: see --help")
        if self.trials is not None and self.trials < 1:
            raise UsageError(
                f"trials must be at least 1, but are {self.trials}: leave the option out to search until the budget "
                "ends"
            )
        if bool(self.rpc) != bool(self.device_key):
            given, missing = ("--rpc", "--device-key") if self.rpc else ("--device-key", "--rpc")
            raise UsageError(
                "--rpc names a tracker and --device-key the device to ask it for, so both are needed, but only "
                f"{given} was given: add {missing}"
            )
        if self.rpc and self.device_key:
            parse_address(self.rpc, "--rpc")
            check_device_key(self.device_key)
        self._check_build_only()

    def _check_build_only(self) -> None:
        for given, value in (("--rpc", self.rpc), ("--resume", self.resume), ("--stages", self.stages)):
            if self.build_only and value:
                raise UsageError(
                    f"--build-only measures nothing, but {given} says how to measure: leave one of the two out"
                )

    def compile_config(
        self, model: str | None = None, shape: tuple[str, ...] | None = None, inputs: str | None = None
    ) -> CompileConfig:
        """The options with which `compile` builds what is tuned here; of several models, the one given."""
        shared = {f.name for f in dataclasses.fields(self)} & {f.name for f in dataclasses.fields(CompileConfig)}
        values = {name: getattr(self, name) for name in shared - {"model"}}
        name = model or (self.model[0] if self.model else str(self.model_list))
        own = {"shape": self.shape if shape is None else shape, "inputs": inputs or self.inputs}
        return CompileConfig(**{**values, **own, "model": name}, validate=False)
