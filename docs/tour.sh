#!/usr/bin/env bash
# The tour of README.md: runs its commands and prints each with what it says, stdout and stderr together.
#
#     docs/tour.sh [FOLDER] > tour.txt
#
# Run `make demo` first: it installs sscc and obtains the model. FOLDER (default: .demo/tour) takes about 2.1 GB.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$root/.venv/bin:$PATH"
folder=${1:-$root/.demo/tour}
model=$(python "$root/examples/fetch_demo_model.py" "$root/.demo")
mkdir -p "$folder"
cd "$folder"
folder=$PWD
cp "$model" "$root/examples/passkey.txt" .

rm -f .started
export started=$folder/.started # the id of what a command line left running in the background
trap stop EXIT

# Prints a command line as a person would type it, what it says, and an exit code that is not 0.
show() {
    echo "\$ $1"
    bash -c "trap 'test -z \"\$!\" || echo \"\$!\" > \"\$started\"' EXIT"$'\n'"$1" 2>&1 || echo "(exit code $?)"
    echo
}

# Ends what was left running; by force where it has not ended after a minute.
stop() {
    test -f "$started" || return 0
    local id
    id=$(cat "$started")
    rm "$started"
    kill -INT "$id" 2> /dev/null || return 0
    for _ in $(seq 300); do
        kill -0 "$id" 2> /dev/null || return 0
        sleep 0.2
    done
    kill -KILL "$id"
}

show 'sscc run SmolLM2-135M-Instruct.Q4_1.gguf --prompt "Write one sentence about the sea."'
show 'sscc pack SmolLM2-135M-Instruct.Q4_1.gguf -o model.pt'
show 'sscc compile model.pt --target rdu'
show 'sscc compile model.pt --target rdu -o small.rdu --kv-budget 256 --max-context 2048 --save-golden --dump-ir-dir ir'
show 'sscc run small.rdu --prompt-file passkey.txt --max-new-tokens 8'
show 'sscc compile model.pt --target rdu -o int8.rdu --kv-budget 256 --max-context 2048 --weights int8'
show 'sscc run int8.rdu --prompt-file passkey.txt --max-new-tokens 8'
show 'sscc compile model.pt --target rdu -o served.rdu --kv-budget 256 --max-context 2048 --batch 4 --dtype bf16 --prefill-chunk 64 -q'
question='{"model": "served", "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
show 'sscc serve served.rdu --port 8000 & sleep 5'
show "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' -d '$question'"
stop
show 'sscc compile model.pt --target rdu -o window.rdu --kv-budget 256 --kv-topk 0 --max-context 2048 --weights reference'
show 'sscc run window.rdu --prompt-file passkey.txt --max-new-tokens 8'
show 'sscc run small.rdu --prompt-file passkey.txt --max-new-tokens 8 --json 2>/dev/null | tail -n 1'
show 'sscc run small.rdu --check'
show 'sscc compile model.pt --target rdu -o three.rdu --tp 3 --kv-budget 256 --max-context 2048 2>&1 | tail -n 3'
show 'sscc run three.rdu --prompt-file passkey.txt --max-new-tokens 8'

show 'sscc inspect small.rdu | grep -v ^assumed'
show 'sscc report small.rdu --ir-dir ir --prompt-file passkey.txt'
cp "$root/benchmarks/configs/llama-3.1-8b.json" .
show 'sscc compile llama-3.1-8b.json --no-weights -o llama.rdu --kv-budget 4096 --batch 16 -q'
show "sscc inspect llama.rdu | grep -E '^(HBM|launches|decode|bound|modelled|roofline)'"
show 'sscc compile llama-3.1-8b.json --no-weights -o plain.rdu --kv-budget 4096 --batch 16 -O0 -q'
show "sscc inspect plain.rdu | grep -E '^(launches|modelled)'"

show 'ls ir'
show 'grep -m 1 kv.self_attention ir/00-import.mlir | cut -c 1-110'
show 'grep -m 1 linalg.matmul ir/01-lower-torch.mlir | cut -c 1-110'
show "grep '\"kv\.' ir/05-thread-cache.mlir | tail -5 | cut -c 1-108"
show "grep 'call @decode' ir/08-merge-equal-kernels.mlir | cut -c 1-99 | sed -n '1,3p;31,32p'"
show "grep 'call @decode' ir/09-kernel-looping.mlir | cut -c 1-99"
show "sscc opt ir/11-form-stages.mlir --ir-function 'decode.layer.*' | grep -o 'df.stage = .*\"'"
show "sscc opt ir/05-thread-cache.mlir --pass-pipeline='build-entries,outline-kernels{granularity=layer}' -o out.mlir"
show 'sscc opt --explain merge-equal-kernels | head -4'
show 'sscc bisect ir/06-build-entries.mlir --checkpoint model.pt --prompt-tokens 300 --steps 1'

show "grep -A 200 'KERNEL decode.layer' small.rdu/schedule.txt | grep -E 'KERNEL|pipeline| stage .*(_proj|attention)' | cut -c 1-110"
show "python -c '
from sscc.ir.schedule import Program, launches
program = Program.from_json(open(\"small.rdu/schedule.json\").read())
calls = list(launches(program.entry(\"decode\").body))
(pipeline,) = next(kernel for kernel in program.kernels if kernel.name == calls[1].kernel).body
print([call.kernel for call in calls], pipeline.upper, len(pipeline.stages), pipeline.buffers[-1], sep=\"\\n\")
'"

show 'sscc compile model.pt --target rdu --kv-budget 20'
