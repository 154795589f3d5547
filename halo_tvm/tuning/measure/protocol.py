"""What the tuner and its measurement worker say to each other: JSON objects, one a line, over pipes."""

from __future__ import annotations

# Error classes; they are the outcome of a record about a failure.
BUILD_ERROR = "build_error"
DECLINED = "declined"
WRONG_RESULT = "wrong_result"
TIMEOUT = "timeout"
CRASH = "crash"
OUT_OF_MEMORY = "out_of_memory"
RUN_ERROR = "run_error"

# Requests, by their "op". Every request has one reply: {"ok": true, ...} or {"error": class, "message": text}.
# While a race runs, {"turn": id} lines say whose code is about to run.
# a task: key, ir, rule, target, cores, default, sizes, checked, outputs, weights, seed, l3_bytes, compare, probe,
# vector_math
OPEN = "open"
BUILD = "build"  # a candidate: id, decision -> checked and run once: first_us
RACE = "race"  # ids, size, rounds, number -> us {id: samples}; every round takes the ids in turn
DROP = "drop"  # ids -> forgotten
DEFAULT_ID = 0  # the default's id in every task

SLOWER = "slower"  # no error: a candidate so slow at its first run that timing it more is a waste
