"""The tuning log on disk: workload keys, line format, look-up."""

from .home import home, host_profile, log_dirs, shipped_logs, user_logs
from .log import LookupReport, TuningLog
from .record import Fingerprint, Record, Size
from .trials import Trials
from .workload import describe, family_of, workload_key

__all__ = [
    "Fingerprint",
    "LookupReport",
    "Record",
    "Size",
    "Trials",
    "TuningLog",
    "describe",
    "family_of",
    "home",
    "host_profile",
    "log_dirs",
    "shipped_logs",
    "user_logs",
    "workload_key",
]
