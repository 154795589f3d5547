"""Every option of every verb: frozen dataclasses, one file per verb, the only source of command-line flags.

Precedence is command line, environment, `halo.toml`, default; `resolve` applies it. The environment
is read in `environment`, when it is called (and HALO_TVM_HOME in `records.home`).
"""

from ._command import words_of
from ._config import TOML_NAME, Config, option
from ._devices import check_device_key, parse_address
from ._environment import LOG_LEVELS, Environment, environment
from ._fields import flag_of, listed, type_of
from ._resolve import OVERRIDE_TABLES, read_toml, resolve
from ._signature import with_signature
from ._sizes import parse_sizes
from .bench import BenchConfig
from .compile import OPT_LEVELS, PRECISIONS, CompileConfig
from .doctor import DoctorConfig
from .export import ExportConfig
from .inspect import InspectConfig
from .logs import LOG_ACTIONS, LogsConfig
from .operators import OperatorsConfig
from .profile import ProfileConfig
from .report import ReportConfig
from .rpc import RpcConfig
from .run import RunConfig
from .targets import TargetsConfig
from .tune import EFFORTS, STAGES, TuneConfig
from .validate import ValidateConfig

__all__ = [
    "EFFORTS",
    "LOG_ACTIONS",
    "LOG_LEVELS",
    "OPT_LEVELS",
    "OVERRIDE_TABLES",
    "PRECISIONS",
    "STAGES",
    "TOML_NAME",
    "BenchConfig",
    "CompileConfig",
    "Config",
    "DoctorConfig",
    "Environment",
    "ExportConfig",
    "InspectConfig",
    "LogsConfig",
    "OperatorsConfig",
    "ProfileConfig",
    "ReportConfig",
    "RpcConfig",
    "RunConfig",
    "TargetsConfig",
    "TuneConfig",
    "ValidateConfig",
    "check_device_key",
    "environment",
    "flag_of",
    "listed",
    "option",
    "parse_address",
    "parse_sizes",
    "read_toml",
    "resolve",
    "type_of",
    "with_signature",
    "words_of",
]
