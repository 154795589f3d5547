"""Every option of every verb: frozen dataclasses, the only source of command-line flags.

Precedence is command line, environment, `halo.toml`, default; `resolve` applies it. The environment
is read in `environment`, when it is called (and HALO_TVM_HOME in `records.home`).
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from .errors import UnknownName, UsageError

C = TypeVar("C", bound="Config")

OPT_LEVELS = {"0": 0, "1": 1, "2": 2, "3": 3, "low": 1, "medium": 2, "high": 3}
PRECISIONS = ("fp32", "bf16", "fp16", "int8")
EFFORTS = ("none", "quick", "full")
STAGES = ("analytic", "records", "ranked", "descent")
ENGINES = ("halo", "metaschedule")
LOG_ACTIONS = ("list", "show", "best", "merge", "verify", "export", "import")
LOG_LEVELS = ("debug", "info", "warning", "error")
TOML_NAME = "halo.toml"
# Tables of halo.toml that are not a verb's options: they reach the compiler as `overrides`.
OVERRIDE_TABLES = ("passes", "operators", "layers")


@dataclass(frozen=True)
class Environment:
    """The environment variables that stand for options."""

    threads: int | None  # HALO_TVM_NUM_THREADS
    log: str  # HALO_TVM_LOG: verbosity on stderr, one of LOG_LEVELS


def environment() -> Environment:
    """The environment as it is now; `UsageError` for a value that cannot be meant."""
    threads = os.environ.get("HALO_TVM_NUM_THREADS") or None
    if threads is not None and not (threads.isdecimal() and int(threads) > 0):
        raise UsageError(
            f"HALO_TVM_NUM_THREADS must be a positive number of threads, but is {threads!r}: correct or unset it"
        )
    log = (os.environ.get("HALO_TVM_LOG") or "warning").lower()
    if log not in LOG_LEVELS:
        raise UsageError(f"HALO_TVM_LOG must be one of {', '.join(LOG_LEVELS)}, but is {log!r}: correct or unset it")
    return Environment(int(threads) if threads else None, log)


def option(default: object = dataclasses.MISSING, help: str = "", **metadata: object) -> object:  # noqa: A002
    """A field with what its flag needs.

    Metadata: `short` (one-letter flag), `metavar`, `positional`, `choices`, `env` (attribute of
    `Environment` that serves when no flag is given), `flag=False` (no flag), `split=False` (a list whose
    flag is repeated, never separated by commas: its values may hold them).
    """
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True)
class Config:
    """Base of all option sets. A field's type is its flag's type: str, int, float, bool, tuple[str, ...]."""

    announced: ClassVar[bool] = True  # printed before the work starts

    def __str__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        width = max(map(len, shown))
        lines = [f"  {name:<{width}}  {_shown(value)}" for name, value in shown.items() if value not in (None, (), {})]
        return "\n".join([type(self).__name__, *lines])

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata.get("choices")
            for chosen in value if isinstance(value, tuple) else (value,):
                if choices and chosen is not None and chosen not in choices:
                    name = field.name.removesuffix("s") if isinstance(value, tuple) else field.name
                    raise UnknownName(name.replace("_", " "), str(chosen), choices)
        threads = getattr(self, "threads", None)
        if threads is not None and threads < 1:
            raise UsageError(
                f"threads must be at least 1, but are {threads}: leave the option out to use every allowed core"
            )
        seed = getattr(self, "seed", 0)
        if seed < 0:
            raise UsageError(f"seed must be at least 0, but is {seed}: give a number that is not negative")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_MODEL = "built-in name, model file, or Hugging Face directory"
_THREADS = "threads to use (default: every core this process may run on)"
_RANGES = "dimensions of an input, each a number or a range, e.g. input_ids=1..8x1..512 (repeatable)"
_INPUTS = (
    "example inputs (.npz, by name in order): a reference case; "
    "TorchScript, which declares none, takes its inputs from it"
)
_TRUST = "import files that can run code also where this system cannot confine that"
_SIZES = "sizes of named dimensions, e.g. batch=1,sequence=128"
_PRECISION = (
    "arithmetic of products with weights: fp32; bf16: weights in bfloat16; fp16; "
    "int8: weights per channel, activations per token"
)
_FORCE_PRECISION = "take --precision also where this target computes it slower than fp32"
_LOG = "directory of tuning records, looked up before all others"
_JSON = "write the result as JSON to FILE ('-': standard output)"
_MARKDOWN = "write the result as Markdown to FILE"


@dataclass(frozen=True)
class CompileConfig(Config):
    """A model becomes an artifact."""

    model: str = option(help=_MODEL, short="m", metavar="MODEL")
    output: str | None = option(None, "artifact directory (default: <model>.halo)", short="o", metavar="DIR")
    target: str = option("cpu", "what to compile for: `halo-tvm targets` lists them", short="t", metavar="TARGET")
    opt_level: str = option(
        "3", "pass list: 0..3, or low, medium, high", short="O", metavar="LEVEL", choices=tuple(OPT_LEVELS)
    )
    precision: str = option("fp32", _PRECISION, metavar="PRECISION", choices=PRECISIONS)
    force_precision: bool = option(False, _FORCE_PRECISION)
    enable: tuple[str, ...] = option((), "also run this pass (repeatable)", metavar="PASS")
    disable: tuple[str, ...] = option((), "leave this pass out (repeatable)", metavar="PASS")
    shape: tuple[str, ...] = option((), _RANGES, metavar="INPUT=DIMS")
    inputs: str | None = option(None, _INPUTS, metavar="FILE")
    trust_model: bool = option(False, _TRUST)
    log: str | None = option(None, _LOG, metavar="DIR")
    dump_ir: str | None = option(None, "write the module after each phase there", metavar="DIR")
    config: str | None = option(None, f"options file (default: ./{TOML_NAME} when it exists)", metavar="FILE")
    seed: int = option(0, "seed of random weights and reference inputs")
    threads: int | None = option(None, _THREADS, metavar="N", env="threads")
    validate: bool = option(True, "compare the artifact with the reference after building it")
    records: bool = option(True, "use tuning records; without them every schedule is the analytic default")
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict, hash=False, metadata={"flag": False})

    @property
    def level(self) -> int:
        """The opt level as a number from 0 to 3."""
        return OPT_LEVELS[self.opt_level]

    @property
    def artifact(self) -> Path:
        """Where the artifact goes: `output`, else the model's last path part with `.halo`."""
        return Path(self.output) if self.output else Path(Path(self.model).stem + ".halo")


@dataclass(frozen=True)
class TuneConfig(Config):
    """The functions of one model or of many are measured; what is learned goes to a tuning log."""

    model: tuple[str, ...] | str = option((), f"{_MODEL} (repeatable)", short="m", metavar="MODEL", split=False)
    model_list: str | None = option(
        None, "file of models, one a line, with shape=, inputs= and weight= of its own; # begins a comment",
        metavar="FILE",
    )  # fmt: skip
    target: str = option("cpu", "what to tune for: `halo-tvm targets` lists them", short="t", metavar="TARGET")
    budget: str = option("10m", "wall-clock limit, e.g. 90s, 10m, 1h", metavar="TIME")
    trials: int | None = option(None, "most candidates to measure (default: as many as the budget allows)", metavar="N")
    effort: str = option("full", "how widely to search", metavar="EFFORT", choices=EFFORTS)
    stages: tuple[str, ...] = option(
        (), f"stages of the search: {', '.join(STAGES)} (default: those of --effort)", metavar="STAGE", choices=STAGES
    )
    engine: str = option("halo", "what searches the rules' spaces", metavar="ENGINE", choices=ENGINES)
    resume: bool = option(False, "go on with the last run of this model and target that did not end")
    cold_cache: bool = option(True, "time kernels with weights that come from memory, as in a whole model")
    rpc: str | None = option(None, "measure on a device of this RPC tracker", metavar="HOST:PORT")
    device_key: str | None = option(None, "the key under which the device is known to the tracker", metavar="KEY")
    log: str | None = option(
        None, "directory to write records to (default: tuning_logs under $HALO_TVM_HOME)", metavar="DIR"
    )
    shape: tuple[str, ...] = option((), _RANGES, metavar="INPUT=DIMS")
    inputs: str | None = option(None, _INPUTS, metavar="FILE")
    trust_model: bool = option(False, _TRUST)
    opt_level: str = option(
        "3", "pass list: 0..3, or low, medium, high", short="O", metavar="LEVEL", choices=tuple(OPT_LEVELS)
    )
    precision: str = option("fp32", _PRECISION, metavar="PRECISION", choices=PRECISIONS)
    force_precision: bool = option(False, _FORCE_PRECISION)
    enable: tuple[str, ...] = option((), "also run this pass (repeatable)", metavar="PASS")
    disable: tuple[str, ...] = option((), "leave this pass out (repeatable)", metavar="PASS")
    config: str | None = option(None, f"options file (default: ./{TOML_NAME} when it exists)", metavar="FILE")
    seed: int = option(0, "seed of weights, inputs and search order")
    threads: int | None = option(None, _THREADS, metavar="N", env="threads")
    json: str | None = option(None, _JSON, metavar="FILE")
    overrides: Mapping[str, object] = dataclasses.field(default_factory=dict, hash=False, metadata={"flag": False})

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            object.__setattr__(self, "model", (self.model,))
        super().__post_init__()
        if not self.model and not self.model_list:
            raise UsageError("model must be given, but is not: see --help")
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
        for option_name, value in (("--stages", self.stages), ("--resume", self.resume)):
            if value and self.engine != ENGINES[0]:
                raise UsageError(
                    f"{option_name} belongs to the engine {ENGINES[0]}, but --engine {self.engine} was given: leave "
                    "one of the two out"
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


@dataclass(frozen=True)
class RunConfig(Config):
    """An artifact is run once."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    input: tuple[str, ...] = option(
        (),
        "an input's values: NAME=FILE.npy, or FILE.npz with several (repeatable); others are seeded random",
        metavar="NAME=FILE",
    )
    output: str | None = option(None, "write the outputs to FILE.npz", short="o", metavar="FILE")
    shape: str | None = option(None, _SIZES, metavar="NAME=SIZE")
    seed: int = option(0, "seed of inputs that are not given")
    threads: int | None = option(None, _THREADS, metavar="N", env="threads")


@dataclass(frozen=True)
class BenchConfig(Config):
    """An artifact is timed, interleaved with other engines."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    vs: tuple[str, ...] = option(
        (), "engine to compare with, e.g. onnxruntime, torch, or another artifact (repeatable)", metavar="ENGINE"
    )
    reference: str | None = option(None, "the original model file, for engines that read it", metavar="FILE")
    shape: str | None = option(None, _SIZES, metavar="NAME=SIZE")
    rounds: int = option(20, "interleaved rounds", metavar="N")
    threads: int | None = option(None, _THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs")
    json: str | None = option(None, _JSON, metavar="FILE")
    markdown: str | None = option(None, _MARKDOWN, metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, but are {self.rounds}: give a positive number")


@dataclass(frozen=True)
class ValidateConfig(Config):
    """An artifact's outputs are compared with its reference."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    reference: str | None = option(
        None, "the original model file or directory, evaluated again, or an .npz of inputs and outputs", metavar="FILE"
    )
    threads: int | None = option(None, _THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs of an original that is evaluated again")
    json: str | None = option(None, _JSON, metavar="FILE")
    markdown: str | None = option(None, _MARKDOWN, metavar="FILE")


@dataclass(frozen=True)
class ProfileConfig(Config):
    """An artifact's time, kernel by kernel."""

    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    shape: str | None = option(None, _SIZES, metavar="NAME=SIZE")
    rounds: int = option(10, "runs to take the median of", metavar="N")
    threads: int | None = option(None, _THREADS, metavar="N", env="threads")
    seed: int = option(0, "seed of the inputs")
    json: str | None = option(None, _JSON, metavar="FILE")
    markdown: str | None = option(None, _MARKDOWN, metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise UsageError(f"rounds must be at least 1, but are {self.rounds}: give a positive number")


@dataclass(frozen=True)
class InspectConfig(Config):
    """What an artifact is, read from its manifest."""

    announced: ClassVar[bool] = False
    artifact: str = option(help="artifact directory", positional=True, metavar="ARTIFACT")
    json: bool = option(False, "print the manifest as JSON")


@dataclass(frozen=True)
class LogsConfig(Config):
    """Tuning records: where they are, what they say, whether they are whole, and moving them."""

    announced: ClassVar[bool] = False
    action: str = option(
        "list",
        "list, show, best, merge, verify, export or import",
        positional=True,
        metavar="ACTION",
        choices=LOG_ACTIONS,
    )
    names: tuple[str, ...] = option(
        (), "what the action works on, see above", positional=True, metavar="NAME", split=False
    )
    log: str | None = option(
        None, "this log before all others; merge and import write to it (default: the user's log)", metavar="DIR"
    )
    workload: str | None = option(
        None, "show, best: only workloads with this in their key or description", metavar="TEXT"
    )
    rule: str | None = option(None, "show, best: only rules with this in their name", metavar="TEXT")
    target: str = option("cpu", "best: what would be compiled for", short="t", metavar="TARGET")
    trials: bool = option(False, "show: also trials and failures")
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class TargetsConfig(Config):
    """Targets, and whether this machine can build and run each."""

    announced: ClassVar[bool] = False
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class OperatorsConfig(Config):
    """Operators, and how each is recognised, fused and scheduled."""

    announced: ClassVar[bool] = False
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class RpcConfig(Config):
    """A tracker of devices, or a server that offers this machine as one."""

    announced: ClassVar[bool] = False
    action: str = option(
        help="tracker: keeps the list of devices; server: offers this machine",
        positional=True, metavar="ACTION", choices=("tracker", "server"),
    )  # fmt: skip
    host: str = option("127.0.0.1", "address to listen at; any but a loopback address needs --trust-network")
    port: int | None = option(
        None, "port to listen at (default: the first free one from 9190 for a tracker, from 9090 for a server)",
        metavar="N",
    )  # fmt: skip
    tracker: str | None = option(None, "server: the tracker to report to", metavar="HOST:PORT")
    device_key: str = option("halo", "server: the key under which the tracker lists this machine", metavar="KEY")
    trust_network: bool = option(False, "listen where other machines reach it: TVM's RPC runs any code its peer sends")
    threads: int | None = option(None, _THREADS, metavar="N", env="threads")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.port is not None and not 0 < self.port < 1 << 16:
            raise UsageError(f"port must be a number from 1 to 65535, but is {self.port}: give a free one, e.g. 9190")
        check_device_key(self.device_key)
        if self.action == "tracker" and self.tracker:
            raise UsageError("--tracker belongs to a server, but a tracker was asked for: leave it out")
        if self.tracker is not None:
            parse_address(self.tracker, "--tracker")


@dataclass(frozen=True)
class DoctorConfig(Config):
    """What this machine can build and run."""

    announced: ClassVar[bool] = False
    measure: bool = option(False, "measure FMA peak and read bandwidth (10 s), kept in host.json under $HALO_TVM_HOME")
    json: bool = option(False, "print JSON")


def parse_sizes(text: str | None) -> dict[str, int]:
    """`batch=1,sequence=128` as sizes by dimension name; `UsageError` for anything else."""
    sizes: dict[str, int] = {}
    for part in (text or "").split(","):
        name, equals, size = (word.strip() for word in part.partition("="))
        if not part.strip():
            continue
        if not (name and equals and size.isdecimal() and int(size) > 0):
            raise UsageError(
                f"sizes are written NAME=SIZE, separated by commas, but {part.strip()!r} was given: correct --shape"
            )
        sizes[name] = int(size)
    return sizes


def parse_address(text: str, option: str) -> tuple[str, int]:
    """`HOST:PORT`, an IPv6 address in brackets, as host and port; `UsageError` naming `option` for anything else."""
    host, _, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else "" if ":" in host else host
    if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,253}", host) or not (port.isascii() and port.isdecimal()):
        raise UsageError(
            f"{option} is written HOST:PORT, e.g. 127.0.0.1:9190 or [::1]:9190, but is {text[:80]!r}: correct it"
        )
    if len(port) > 5 or not 0 < int(port) < 1 << 16:
        raise UsageError(f"the port of {option} must be a number from 1 to 65535, but is {port[:20]}: correct it")
    return host, int(port)


def check_device_key(key: str) -> None:
    """`UsageError` for a key that TVM's tracker would take apart."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", key):
        raise UsageError(
            "a device key has 1 to 64 letters, digits, dots, dashes or underscores, "
            f"but is {key[:80]!r}: choose another"
        )


def read_toml(path: str | Path) -> dict[str, object]:
    """The tables of an options file; `UsageError` when it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"an options file was expected at {path}, but {error.strerror or error}: correct --config"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} must be a TOML file, but {error}: correct that line") from None


def resolve(
    kind: type[C], given: Mapping[str, object], *, environ: Environment | None = None, directory: str | Path = "."
) -> C:
    """`kind` from `given` options (those on the command line), environment, options file, defaults.

    The table of `halo.toml` is named like the verb: `[compile]` for `CompileConfig`. Unknown keys are
    refused with the nearest known one. `[passes]`, `[operators]` and `[layers]` become `overrides`.
    """
    environ = environment() if environ is None else environ
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, object] = {}
    path = _options_file(fields, given, Path(directory))
    if path is not None:
        values.update(_from_toml(kind, fields, path))
    for name, field in fields.items():
        found = getattr(environ, field.metadata["env"]) if "env" in field.metadata else None
        if found is not None:
            values[name] = found
    values.update(given)
    missing = [
        n for n, f in fields.items() if n not in values and f.default is f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be given, but is not: see --help")
    return kind(**values)


def _options_file(fields: Mapping[str, object], given: Mapping[str, object], directory: Path) -> Path | None:
    if given.get("config"):
        return Path(str(given["config"]))
    implied = directory / TOML_NAME
    return implied if "config" in fields and implied.is_file() else None


def _from_toml(kind: type[Config], fields: Mapping[str, dataclasses.Field], path: Path) -> dict[str, object]:
    tables = read_toml(path)
    verbs = {c.__name__.removesuffix("Config").lower() for c in Config.__subclasses__()}
    for table in tables:
        if table not in verbs and table not in OVERRIDE_TABLES:
            raise UnknownName(f"table in {path}", table, verbs | set(OVERRIDE_TABLES))
    own = tables.get(kind.__name__.removesuffix("Config").lower(), {})
    if not isinstance(own, dict):
        raise UsageError(
            f"{path} must hold tables such as [compile], but found a plain value: put options under a table"
        )
    settable = {name for name, field in fields.items() if field.metadata.get("flag", True) and name != "config"}
    values: dict[str, object] = {"config": str(path)}
    for key, value in own.items():
        name = key.replace("-", "_")
        if name not in settable:
            raise UnknownName(f"option in {path}", key, settable)
        values[name] = _coerced(path, key, value, fields[name])
    if "overrides" in fields:
        values["overrides"] = {table: tables[table] for table in OVERRIDE_TABLES if table in tables}
    return values


def _coerced(path: Path, key: str, value: object, field: dataclasses.Field) -> object:
    """A TOML value as its field's type; a number may stand for a string (`opt_level = 2`)."""
    wanted = str(field.type)
    if wanted.startswith("tuple") and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if wanted.endswith("| str") and isinstance(value, str):
        return value
    if wanted.startswith("str") and isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value)
    if wanted.startswith("bool") and isinstance(value, bool):
        return value
    if wanted.startswith("int") and isinstance(value, int) and not isinstance(value, bool):
        return value
    raise UsageError(f"{key} in {path} must be of type {wanted}, but is {value!r}: correct it")
