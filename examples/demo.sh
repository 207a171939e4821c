#!/usr/bin/env bash
# The demo (`make demo`): compiles a small real model twice and asks each for a pass key that an 814-token prompt hides.
# Both caches have 512 rows and cannot hold the prompt; the one with top-K finds the key, the one without has lost it.
# Needs `sscc` on the PATH; keeps everything in .demo/ of the repository, and may be run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Threads that wait for each other sleep instead of spinning: many times faster where other programs run too.
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

say "512 rows a layer and head: 4 sinks, the 64 newest tokens, and 444 that the prompt's end attends to most"
show sscc compile "$model" --target rdu -o .demo/smollm2.rdu --max-context 1024 \
    --kv-sink 4 --kv-recent 64 --kv-topk 444 --save-golden --golden-prompt-file "$prompt" --golden-tokens 8

say "The prompt says what the pass key is about 500 tokens before it asks"
ask .demo/smollm2.rdu
grep -q "$key" .demo/answer.txt || { say "FAILED: with top-K the answer must hold $key"; exit 1; }

say "Every layer's cache and selection, and the logits, against eager PyTorch"
show sscc run .demo/smollm2.rdu --check

say "The same 512 rows without top-K: sinks and the newest 500 tokens (weights stay in the model's file)"
show sscc compile "$model" --target rdu -o .demo/streaming.rdu --max-context 1024 \
    --kv-sink 12 --kv-recent 500 --kv-topk 0 --weights reference
ask .demo/streaming.rdu
if grep -q "$key" .demo/answer.txt; then say "FAILED: without top-K the key is not in the cache"; exit 1; fi

say "Found with top-K, lost without: the demo is done"
