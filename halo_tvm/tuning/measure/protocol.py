"""What the tuner and its measurement processes say to each other: JSON objects, one a line, over pipes."""

from __future__ import annotations


class Failed(Exception):
    """Control flow: a request failed in a known way; `kind` is the error class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# Error classes; they are the outcome of a record about a failure.
BUILD_ERROR = "build_error"
DECLINED = "declined"
WRONG_RESULT = "wrong_result"
TIMEOUT = "timeout"
CRASH = "crash"
OUT_OF_MEMORY = "out_of_memory"
FILE_TOO_LARGE = "file_too_large"
RUN_ERROR = "run_error"

# Requests, by their "op". Every request has one reply: {"ok": true, ...} or {"error": class, "message": text}.
# Lines with neither are notes on the way to it.

# To a builder
TASK = "task"  # key, ir, rule, target, cores, vector_math
# key, path, decision (null: unscheduled), timed (null: the form that ships) -> special, build_s, device (of a GPU)
BUILD = "build"

# To the runner
OPEN = "open"  # key, ir, sizes, outputs, weights, seed, l3_bytes -> evicted: keys of tasks that made room
LOAD = "load"  # key, label, path, check: null | REFERENCES | BY_DEFAULT
PREPARE = "prepare"  # key, plain, default: labels; checked: [[dims, by_default]] -> reference results are ready
PROBE = "probe"  # key, label, size -> us
RACE = "race"  # key, labels, size, rounds, number -> us {label: samples}, reference_us. Notes {"turn": label}
DROP = "drop"  # key, labels -> forgotten

# Whose results a loaded library is compared with
REFERENCES = "references"  # those that PREPARE made, at the sizes Task.checked
BY_DEFAULT = "default"  # the default's, at the timed sizes

DEFAULT_ID = 0  # the default's id in every task

SLOWER = "slower"  # no error: a candidate so slow at its first run that timing it more is a waste
