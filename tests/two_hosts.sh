#!/bin/bash
# Two hosts on one machine: network and process namespaces that a pair of virtual interfaces joins. Runs a program of two
# ranks with one on each, and compares its tokens with those of the same program on this machine; then kills a host's
# ranks, or cuts the line, while nothing is to be done or in a call, and shows when and how the other one finds out; fails
# where that takes 10 s. Needs root, iproute2 and unshare.
#
#     tests/two_hosts.sh PYTHON OUT.rdu [kill | cut] [idle | busy]
set -eu
python=$1 artifact=$(realpath "$2")
line=(run "$artifact" --token-ids 3,1,4,1,5 --ignore-eos)
one=sscc-one-$$ two=sscc-two-$$
scratch=$(mktemp -d)
secret=$(head -c 32 /dev/urandom | base64)
trap 'ip netns del $one; ip netns del $two; rm -r "$scratch"' EXIT
ip netns add $one
ip netns add $two
ip link add veth0 netns $one type veth peer name veth0 netns $two
ip -n $one addr add 10.77.0.1/24 dev veth0
ip -n $two addr add 10.77.0.2/24 dev veth0
for host in $one $two; do
    ip -n $host link set lo up
    ip -n $host link set veth0 up
done

on() { # HOST NODE WORD ..: a rank's torchrun, which sees the processes of its host alone
    local host=$1 node=$2
    shift 2
    SSCC_RANKS_SECRET=$secret ip netns exec "$host" unshare --pid --fork --mount-proc --kill-child \
        "$python" -m torch.distributed.run --nnodes 2 --node-rank "$node" --nproc-per-node 1 --master-addr 10.77.0.1 \
        --master-port 29500 -m sscc.compiler.tools.commands.cli "$@"
}

on $two 1 "${line[@]}" --max-new-tokens 9 --json > "$scratch/other" 2>&1 &
on $one 0 "${line[@]}" --max-new-tokens 9 --json > "$scratch/hosts"
wait $!
"$python" -m sscc.compiler.tools.commands.cli "${line[@]}" --max-new-tokens 9 --json > "$scratch/here"
"$python" - "$scratch" <<'END'
import json, sys
hosts, here = (json.load(open(f"{sys.argv[1]}/{name}"))["tokens"] for name in ("hosts", "here"))
assert len(here) == 9 and hosts == here, (hosts, here)
print("two hosts give the tokens of one:", here)
END

serve=(serve "$artifact" --port 8000 --served-model-name two)
on $two 1 "${serve[@]}" > "$scratch/other" 2>&1 &
on $one 0 "${serve[@]}" > "$scratch/hosts" 2>&1 &
until grep -q serving "$scratch/hosts"; do sleep 0.2; done
post() { # prints how a request ended, and after how long
    ip netns exec $one "$python" - "$1" <<'END'
import json, sys, time, urllib.error, urllib.request
start, body = time.monotonic(), {"model": "two", "prompt": [3, 1, 4], "max_tokens": int(sys.argv[1]), "ignore_eos": True}
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
try:
    told = 200, urllib.request.urlopen(request).read().decode()
except urllib.error.HTTPError as error:
    told = error.code, error.read().decode()
print(f"a request ended after {time.monotonic() - start:.1f} s:", told[0], told[1][:200])
END
}
post 1
if [ "${4:-idle}" = busy ]; then
    while post 200 > "$scratch/post" && grep -q ": 200" "$scratch/post"; do :; done &
    asking=$!
    sleep 1
fi
if [ "${3:-kill}" = cut ]; then
    ip -n $two link set veth0 down
else
    ip netns pids $two | xargs kill -9
fi 2> "$scratch/killed"
ip netns exec $one "$python" - <<'END'
import sys, time, urllib.error, urllib.request
start = time.monotonic()
while (passed := time.monotonic() - start) < 10:
    try:
        urllib.request.urlopen("http://127.0.0.1:8000/health").read()
    except urllib.error.HTTPError as error:
        print(f"health after {passed:.1f} s:", error.code, error.read().decode())
        sys.exit()
    time.sleep(0.1)
sys.exit("a rank is gone, and nothing was said for 10 s")
END
if [ "${4:-idle}" = busy ]; then
    wait $asking
    cat "$scratch/post"
fi
(ip netns pids $one; ip netns pids $two) | xargs kill -9 2> "$scratch/killed" || true
wait
