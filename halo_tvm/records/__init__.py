"""The tuning log on disk: workload keys, line format, look-up."""

from .home import home, log_dirs, shipped_logs, user_logs
from .log import LookupReport, TuningLog
from .record import Fingerprint, Record, Size
from .workload import describe, workload_key

__all__ = [
    "Fingerprint",
    "LookupReport",
    "Record",
    "Size",
    "TuningLog",
    "describe",
    "home",
    "log_dirs",
    "shipped_logs",
    "user_logs",
    "workload_key",
]
