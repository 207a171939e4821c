#!/usr/bin/env bash
# The demo (`make demo`) compiles a small real model twice and asks for a pass key that is hidden in an 814-token prompt.
# Both caches have 512 rows, too few for the prompt. With top-K the key is found, without top-K it is lost.
# Needs `sscc` on the PATH. Files are kept in .demo/ of the repository and reused by later runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Waiting threads sleep instead of spinning, which is many times faster if other programs run.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

prompt=examples/passkey.txt
key=48213

say() {
    printf '\n# %s\n' "$*" >&2
}

show() {
    echo "\$ $*" >&2
    "$@"
}

ask() {
    show sscc run "$1" --prompt-file "$prompt" --max-new-tokens 10 | tee .demo/answer.txt
}

say "A small real model: SmolLM2-135M-Instruct"
model=$(python examples/fetch_demo_model.py .demo)
echo "$model" >&2

say "512 rows per layer and KV head: 4 sinks, the 64 most recent tokens, and the 444 with most attention at the end"
show sscc compile "$model" --target rdu -o .demo/smollm2.rdu --max-context 1024 \
    --kv-sink 4 --kv-recent 64 --kv-topk 444 --save-golden --golden-prompt-file "$prompt" --golden-tokens 8

say "The pass key is about 500 tokens before the question"
ask .demo/smollm2.rdu
grep -q "$key" .demo/answer.txt || { say "FAILED: with top-K the answer must contain $key"; exit 1; }

say "Compare every layer's cache and selection, and the logits, with eager PyTorch"
show sscc run .demo/smollm2.rdu --check

say "512 rows without top-K: 12 sinks and the 500 most recent tokens (weights stay in the model's file)"
show sscc compile "$model" --target rdu -o .demo/streaming.rdu --max-context 1024 \
    --kv-sink 12 --kv-recent 500 --kv-topk 0 --weights reference
ask .demo/streaming.rdu
if grep -q "$key" .demo/answer.txt; then say "FAILED: without top-K the key cannot be in the cache"; exit 1; fi

say "The key was found with top-K and lost without: the demo succeeded"
