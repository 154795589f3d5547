# Sourced by the other scripts: a virtual environment in .venv, and pip that tries twice.
# Sets ROOT (the repository) and PYTHON (the environment's interpreter).

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
PYTHON="$ROOT/.venv/bin/python"
# Byte code is kept whatever the caller's environment says: tests start hundreds of processes, and each would compile
# TVM's sources and ours again, 2 s of processor time every time.
unset PYTHONDONTWRITEBYTECODE

make_venv() {
    local candidate
    if [ -x "$PYTHON" ] && "$PYTHON" -c 'import pip' 2>/dev/null; then return; fi
    for candidate in python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "making .venv with $candidate" >&2
            "$candidate" -m venv --clear .venv
            return
        fi
    done
    echo "error: Python 3.11 or newer is needed, and none was found on the path: install it" >&2
    exit 5
}

install() {
    "$PYTHON" -m pip install --quiet --no-compile "$@" || {
        echo "pip failed, trying once more" >&2
        "$PYTHON" -m pip install --quiet --no-compile "$@"
    }
}
