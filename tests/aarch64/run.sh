#!/bin/bash
# Runs the tiny model of tests/models/tiny on 64-bit Arm under qemu-user, and compares with this machine.
#
#     [KINDS="f32 bf16 int8 int4"] tests/aarch64/run.sh FOLDER [CPU ..]
#
# FOLDER is what make_root.sh makes first; CPU is qemu's name of one (cortex-a72 and neoverse-n1: without and with dot
# products). An artifact is compiled here for each type of weights. There, LLVM makes code of its schedule, goldens of
# eager PyTorch are replayed, and what is generated must be what this machine generates. The goldens are of the weights as
# they were, from which 4 bits are too far to be compared. Takes five minutes on an idle machine.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
folder=${1:?usage: $0 FOLDER [CPU ..]}
shift
models=("${@:-cortex-a72}")
[ $# -gt 0 ] || models+=(neoverse-n1)
"$here/make_root.sh" "$folder" >/dev/null
cd "$folder"
sscc=("$repo/.venv/bin/python" -m sscc.compiler.tools.commands.cli)

# Code is linked, and kept, by what is called cc.
mkdir -p tools
ln -sfn "$(command -v aarch64-linux-gnu-gcc)" tools/cc
on_arm() {
  local cpu=$1
  shift
  PATH=$PWD/tools:$PATH QEMU_MODEL=$cpu SSCC_CACHE=$PWD/cache-$cpu PYTHONPATH=$PWD/site PYTHONDONTWRITEBYTECODE=1 \
    ./arm-python "$@"
}

prompt=$(cd "$repo" && .venv/bin/python - <<'END'
from tests.models.tiny.task import fixed_queries
print(*fixed_queries(1, length=256)[0].prompt, sep=",")
END
)
failed=0
for kind in ${KINDS:-f32 bf16 int8 int4}; do
  case $kind in
    f32 | bf16) options=(--dtype "$kind" --save-golden) ;;
    int8) options=(--dtype bf16 --weights int8 --save-golden) ;;
    *) options=(--dtype bf16 --weights "$kind") ;;
  esac
  "${sscc[@]}" compile "$repo/tests/models/tiny" -o "$kind.rdu" "${options[@]}" -q
  expected=$("${sscc[@]}" run "$kind.rdu" --token-ids "$prompt" --max-new-tokens 16 --json 2>/dev/null | cut -d] -f1)
  for cpu in "${models[@]}"; do
    if [ -e "$kind.rdu/golden" ] && ! on_arm "$cpu" -m sscc.compiler.tools.commands.cli run "$kind.rdu" --check >log 2>&1; then
      cat log
      failed=1
    fi
    tokens=$(on_arm "$cpu" -m sscc.compiler.tools.commands.cli run "$kind.rdu" --token-ids "$prompt" --max-new-tokens 16 --json \
      2>log | cut -d] -f1) || cat log
    if [ -n "$tokens" ] && [ "$tokens" = "$expected" ]; then
      echo "$cpu, $kind: the tokens are those of this machine"
    else
      echo "$cpu, $kind: $tokens] is not $expected]"
      failed=1
    fi
  done
done
exit "$failed"
