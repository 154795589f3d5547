"""Every exception class of the package; each is one kind of mistake and carries its exit code.

A message has three parts, in order: what was expected, what was found, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

INTERRUPTED = 130  # the exit code after Ctrl-C
REFUSED = "halo_tvm refused: "  # begins what a kernel says that refuses to run: the rest is what it found


class HaloError(Exception):
    """Base of all errors a user can meet; `exit_code` is what a command line ends with."""

    exit_code = 1


class UsageError(HaloError):
    """An option, a path or a call that cannot be meant as written."""

    exit_code = 1


class UnknownName(UsageError):
    """A name that is in no registry; the message lists the known ones and the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        suggestion = f"; did you mean {near[0]!r}?" if near else ""
        message = f"unknown {kind} {name!r}: known are {', '.join(known)}{suggestion}"
        super().__init__(message + (f" {hint}" if hint else ""))


class InputError(UsageError):
    """A run-time input of a wrong name, shape, dtype or value range."""


class UnsupportedModel(HaloError):
    """A model file that cannot be read, or that holds something no importer or pass can handle."""

    exit_code = 2


class BeyondDefinition(UnsupportedModel):
    """A sound config that asks for something its type's definition lacks; torch may export the model."""


class ValidationFailed(HaloError):
    """Numbers differ from the reference by more than the tolerance; `report` has every comparison, if made."""

    exit_code = 3

    def __init__(self, message: str, report: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.report = report


class ArtifactCorrupt(HaloError):
    """An artifact whose files do not match its manifest."""

    exit_code = 3


class NoValidTrial(HaloError):
    """Tuning could not measure a single candidate."""

    exit_code = 4


class EnvironmentProblem(HaloError):
    """This machine or installation lacks something: an ISA, a device, a compiler, a newer release."""

    exit_code = 5


class MissingPackage(EnvironmentProblem):
    """An optional dependency is not installed; the message holds the install command."""

    def __init__(self, package: str, needed_for: str, install: str) -> None:
        super().__init__(f"{needed_for} needs the package {package!r}, which is not installed: run `{install}`")


class PeerFailed(EnvironmentProblem):
    """Another engine's process died, hung, or answered nonsense; `missing`: the engine is not installed."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class Rejected(Exception):
    """Control flow: a lift matched, but its precondition does not hold; the message says why.

    `at` is the variable the message is about where that is not the root of the match.
    """

    at: object = None


class NoMatch(Rejected):
    """Control flow: looked at closely, the sub-graph is not what the lift looks for, so there is nothing to report."""


class Declined(Exception):
    """Control flow: a schedule rule does not serve a function, a check no model; the message says why."""


class Stopped(Declined):
    """The same, because code that is not ours ended with an error of its own over the function."""
