#!/usr/bin/env bash
# The demo (`make demo`): compiles a small real model and runs a prompt that is longer than its KV budget.
# Needs `sscc` on the PATH; keeps everything in .demo/ of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

show() {
    echo "\$ $*" >&2
    "$@"
}

model=$(python examples/fetch_demo_model.py .demo)
show sscc compile "$model" --target rdu -o .demo/smollm2.rdu --kv-budget 512 --max-context 2048 --save-golden
show sscc run .demo/smollm2.rdu --prompt-file examples/passkey.txt --max-new-tokens 16
show sscc run .demo/smollm2.rdu --check
