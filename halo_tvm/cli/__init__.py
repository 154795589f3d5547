"""The command line: one file per verb, each with `CONFIG` (its options) and `run(config) -> exit code`."""

from ._main import entry, main

__all__ = ["entry", "main"]
