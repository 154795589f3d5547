#!/usr/bin/env bash
# Make .venv, install the package with its test extra, run the tests. Arguments go to pytest:
#     bash scripts/test.sh tests/cli -k doctor
# Without arguments: lint, then every test, on two processes where the machine has the cores.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"

make_venv
# torch first and alone, by its exact version: resolved together with the rest, pip may choose a far larger GPU build.
install "torch==2.13.0"
install --editable ".[test,lint]"

# Cross-linking for ARM is tested where its compiler is; CI machines get it.
if [ -n "${CI:-}" ] && ! command -v aarch64-linux-gnu-g++ >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++-aarch64-linux-gnu; } >/dev/null 2>&1 ||
        echo "g++-aarch64-linux-gnu could not be installed: the ARM link test will be skipped" >&2
fi

if [ $# = 0 ]; then
    bash scripts/lint.sh
    # Each process spins threads of its own: more of them than two only wait for each other.
    if [ "$(nproc)" -ge 2 ]; then set -- -n 2 --dist worksteal; fi
fi
# CI has the time for the tests of the full models, and says which take it.
if [ -n "${CI:-}" ]; then set -- --slow --durations=60 "$@"; fi
exec "$PYTHON" -m pytest -q "$@"
