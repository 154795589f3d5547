"""`halo-tvm <verb>`: find the verb, read its options, run it, end with one sentence and the right exit code."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import logging
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from .. import __version__, config
from ..errors import INTERRUPTED, HaloError, MissingPackage, UnknownName
from ..interrupts import noted
from ..text import one_line
from . import _missing
from ._flags import given_options, parser_of

BUG = 1


def verbs() -> list[str]:
    """Names of all verbs: the files of this package."""
    package = importlib.import_module(__package__)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def entry(argv: Sequence[str] | None = None) -> NoReturn:
    """`main` as a process: ends it with the exit code."""
    _any_text()
    code = main(argv)
    if code == INTERRUPTED:
        # No finalisation: an interrupt that a library met inside its own start-up would otherwise make
        # Python end the process by the signal instead of the exit code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with noted() as interrupts:
        try:
            code = _dispatch(argv)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # The reader of our output went away; give Python's own flush at exit somewhere to write.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt:
            return _say("halo-tvm: interrupted", INTERRUPTED)
        except HaloError as error:
            if interrupts:  # the linker, say, was interrupted with us
                return _say("halo-tvm: interrupted", INTERRUPTED)
            return _say(f"halo-tvm: error: {_one_line(error)}", error.exit_code)
        except Exception as bug:  # the process boundary: everything that is not a HaloError is our mistake
            if interrupts:  # TVM turns an interrupt inside one of our callbacks into an error of its own
                return _say("halo-tvm: interrupted", INTERRUPTED)
            if os.environ.get("HALO_TVM_LOG", "").lower() == "debug":  # noqa: TID251 - to show a bug, whatever else it broke
                raise
            what = f"{type(bug).__name__}: {_one_line(bug)[:300]}"
            return _say(
                f"halo-tvm: internal error: {what}: this is a bug, please report it with the output under "
                "HALO_TVM_LOG=debug",
                BUG,
            )


def _any_text() -> None:
    """What a terminal cannot show is written as its number; what is no text is refused by who reads it."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _dispatch(argv: Sequence[str]) -> int:
    if len(argv) > 1 and argv[0] == "help":
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if argv[0] == "--version":
        print(f"halo_tvm {__version__}")
        return 0
    if argv[0] not in verbs():
        raise UnknownName("command", argv[0], verbs())
    logging.basicConfig(
        level=config.environment().log.upper(), format="halo-tvm: %(levelname)s: %(message)s", stream=sys.stderr
    )
    verb = _load(argv[0])
    parser = parser_of(verb.CONFIG, f"halo-tvm {argv[0]}", inspect.getdoc(verb) or "")
    given = given_options(parser, verb.CONFIG, argv[1:])
    verbose = given.pop("verbose", False)
    options = config.resolve(verb.CONFIG, given)
    if verbose:
        print(options, file=sys.stderr, flush=True)
    try:
        _missing.check(options)
        return verb.run(options)
    except ImportError as error:
        package = _missing.package_missing(error)
        if package is None:
            raise
        raise MissingPackage(package, f"halo-tvm {argv[0]}", "pip install halo_tvm") from error


def _load(verb: str) -> ModuleType:
    return importlib.import_module(f".{verb}", __package__)


def _overview() -> str:
    lines = [f"  {verb:<10} {_summary(verb)}" for verb in verbs()]
    return "\n".join(
        [
            "usage: halo-tvm <verb> [options]",
            "",
            "A compiler and auto-tuner for deep-learning models on Apache TVM.",
            "",
            *lines,
            "",
            "halo-tvm <verb> --help shows a verb's options.",
            "Environment: HALO_TVM_HOME (tuning logs, host profile), HALO_TVM_NUM_THREADS, "
            "HALO_TVM_LOG (debug, info, warning, error).",
        ]
    )


def _summary(verb: str) -> str:
    """The first line of a verb's docstring, read without importing it: some verbs import TVM, which takes seconds."""
    source = pkgutil.get_data(__package__, f"{verb}.py") or b""
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


def _one_line(error: BaseException) -> str:
    return one_line(" ".join(str(error).split()))


def _say(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code
