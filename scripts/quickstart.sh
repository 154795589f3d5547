#!/usr/bin/env bash
# From nothing to a tuned, validated GPT-2 and its report: make .venv, install (no torch), then tune for
# this CPU (2 minutes), compile, validate, compare with onnxruntime. Run it again as often as you like.
#     BUDGET=30s bash scripts/quickstart.sh     # shorter tuning
#     MODEL=mlp bash scripts/quickstart.sh      # another built-in model
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"

MODEL="${MODEL:-gpt2}"
BUDGET="${BUDGET:-2m}"
OUT="build/quickstart" # ignored by git
export HALO_TVM_HOME="${HALO_TVM_HOME:-$ROOT/$OUT/home}"

make_venv
install --editable .
mkdir -p "$OUT"

step() {
    printf '\n== python -m %s\n' "$*"
    "$PYTHON" -m "$@"
}

step halo_tvm.tune --model "$MODEL" --target cpu --budget "$BUDGET"
step halo_tvm.compile --model "$MODEL" --target cpu -o "$OUT/$MODEL.halo"
step halo_tvm.validate "$OUT/$MODEL.halo"
step halo_tvm.bench "$OUT/$MODEL.halo" --vs onnxruntime --json "$OUT/report.json" --markdown "$OUT/report.md"

printf '\n== the report (%s)\n' "$OUT/report.md"
cat "$OUT/report.md"
