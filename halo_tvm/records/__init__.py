"""The tuning log on disk: line format, look-up; `workload`, which names functions of TVM, is imported by itself."""

from .home import home, host_profile, log_dirs, shipped_logs, user_logs
from .log import LookupReport, TuningLog
from .record import Fingerprint, Record, Size
from .trials import Trials

__all__ = [
    "Fingerprint",
    "LookupReport",
    "Record",
    "Size",
    "Trials",
    "TuningLog",
    "home",
    "host_profile",
    "log_dirs",
    "shipped_logs",
    "user_logs",
]
