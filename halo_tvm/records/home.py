"""Where tuning logs, the host's profile and kept builds live; the one place that reads HALO_TVM_HOME."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError

_LOGS = "tuning_logs"
_PROFILE = "host.json"
_BUILDS = "builds"


def home() -> Path:
    """The user's data directory: $HALO_TVM_HOME, else $XDG_DATA_HOME/halo_tvm, else ~/.local/share/halo_tvm."""
    chosen = os.environ.get("HALO_TVM_HOME")
    if chosen:
        return Path(chosen).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "halo_tvm"


def user_logs() -> Path:
    """The log that `tune` writes to when no directory is named; it need not exist yet."""
    return home() / _LOGS


def host_profile() -> Path:
    """The file in which `doctor --measure` keeps this host's ceilings; it need not exist yet."""
    return home() / _PROFILE


def kept_builds() -> Path:
    """The directory in which `compile` keeps the libraries it built; it need not exist yet."""
    return home() / _BUILDS


def check_writable_log(directory: Path) -> None:
    """`UsageError` before hours of tuning when their records could not be written into `directory`."""
    existing = next(parent for parent in (directory.absolute(), *directory.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise unwritable_log(existing, "it is no directory that may be written to")


def unwritable_log(place: Path, why: str) -> UsageError:
    """What to raise where a file of a tuning log cannot be written."""
    return UsageError(
        f"a tuning log must be writable, but {str(place)!r} is not ({why}): make room there, choose another directory "
        "with --log, or set HALO_TVM_HOME"
    )


def check_named_log(directory: str | Path | None) -> None:
    """`UsageError` where a log that is read by name is not there; the default ones need not exist yet."""
    if directory is not None and not Path(directory).exists():
        raise UsageError(
            f"a tuning log was expected at {str(directory)!r}, but there is none: correct --log, or make it with "
            "`halo-tvm tune --log`"
        )


def shipped_logs() -> Path | None:
    """The read-only log that comes with the package: inside it when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for directory in (package / _LOGS, package.parent / _LOGS):
        if directory.is_dir():
            return directory
    return None


def log_dirs(named: str | Path | None = None) -> tuple[Path, ...]:
    """Directories in look-up order: the named one, the user's, the shipped one; raises `UsageError` for a file."""
    if named is not None and Path(named).exists() and not Path(named).is_dir():
        raise UsageError(
            f"a tuning log is a directory with <target-key>/records.jsonl, but {str(named)!r} is a file: "
            "give the directory that holds it"
        )
    shipped = shipped_logs()
    return (*((Path(named),) if named is not None else ()), user_logs(), *((shipped,) if shipped else ()))
