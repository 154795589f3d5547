"""`halo-tvm <verb>`: find the verb, read its options, run it, end with one sentence and the right exit code."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from .. import __version__, config
from ..errors import HaloError, UnknownName
from ._flags import given_options, parser_of

INTERRUPTED = 130
BUG = 1


def verbs() -> list[str]:
    """Names of all verbs: the files of this package."""
    package = importlib.import_module(__package__)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except HaloError as error:
        return _say(f"halo-tvm: error: {_one_line(error)}", error.exit_code)
    except KeyboardInterrupt:
        return _say("halo-tvm: interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away; give Python's own flush at exit somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as bug:  # the process boundary: everything that is not a HaloError is our mistake
        if os.environ.get("HALO_TVM_LOG", "").lower() == "debug":
            raise
        what = f"{type(bug).__name__}: {_one_line(bug)[:300]}"
        return _say(
            f"halo-tvm: internal error: {what}: this is a bug, please report it with the output under "
            "HALO_TVM_LOG=debug",
            BUG,
        )


def _dispatch(argv: Sequence[str]) -> int:
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
    options = config.resolve(verb.CONFIG, given_options(parser, verb.CONFIG, argv[1:]))
    if options.announced:
        print(options, file=sys.stderr, flush=True)
    return verb.run(options)


def _load(verb: str) -> ModuleType:
    return importlib.import_module(f".{verb}", __package__)


def _overview() -> str:
    lines = [f"  {verb:<10} {_summary(verb)}" for verb in verbs()]
    return "\n".join(
        ["usage: halo-tvm <verb> [options]", "", "A compiler and auto-tuner for deep-learning models on Apache TVM.",
         "", *lines, "",
         "halo-tvm <verb> --help shows a verb's options.",
         "Environment: HALO_TVM_HOME (tuning logs, host profile), HALO_TVM_NUM_THREADS, "
         "HALO_TVM_LOG (debug, info, warning, error)."]
    )  # fmt: skip


def _summary(verb: str) -> str:
    """The first line of a verb's docstring, read without importing it: some verbs import TVM, which takes seconds."""
    source = pkgutil.get_data(__package__, f"{verb}.py") or b""
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _say(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)
    return code
