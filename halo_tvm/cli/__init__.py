"""The command line: one file per verb, each with `CONFIG` (its options) and `run(config) -> exit code`."""
