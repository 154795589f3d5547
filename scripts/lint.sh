#!/usr/bin/env bash
# Layout and lint (ruff), who imports whom (import-linter), types (mypy): their settings are in pyproject.toml.
# Prints what is wrong and ends with 1. `scripts/lint.sh --fast` leaves the types out.
# PYTHON is the interpreter whose environment has the extra "lint": .venv's, if it is not set.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BIN=$(dirname "${PYTHON:-.venv/bin/python}")
failed=0
"$BIN/ruff" check --quiet . || failed=1
"$BIN/ruff" format --quiet --check . || { echo "these files have another layout than ruff format's"; failed=1; }
imports=$("$BIN/lint-imports" 2>&1) || { echo "$imports" | sed -n '/^Contracts/,$p'; failed=1; }
if [ "${1:-}" != --fast ]; then "$BIN/mypy" --no-error-summary || failed=1; fi
exit $failed
