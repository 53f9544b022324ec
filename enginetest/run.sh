#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# run.sh ENGINE VENV - test the unmodified vLLM client, on a CPU, against wcache serve:
# each line of cases.jsonl is one rank of a model, which has to come from wcache
# and to equal what vLLM's own disk loader makes of it, bit for bit. Then which.py
# tests that each engine gets its own model among models that look alike or change.
#
# ENGINE is the folder of the engine's test bed (install.sh, run.sh, python); VENV is the
# folder where vLLM is or will be installed: about 10 GB, once.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
engine=${1:?usage: run.sh ENGINE VENV} venv=${2:?usage: run.sh ENGINE VENV}

"$here/install.sh" "$engine" "$venv"

dir=$(mktemp -d)
trap 'kill "${daemon-}" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
chmod 700 "$dir"
socket=$dir/host.sock

# Several of the checkpoints have equal headers and different weights on purpose. Among
# those with the same architecture and equal rope parameters, only one is a root.
checkpoints=$top/testdata/checkpoints
roots=()
for m in $(jq -r '.model' "$here/cases.jsonl" | sort -u); do roots+=(--root "$checkpoints/$m"); done
"$top/bin/wcache" serve --listen "$socket" --state "$dir/state" "${roots[@]}" 2>"$dir/daemon.log" &
daemon=$!
for _ in $(seq 1200); do [ -S "$socket" ] && break; sleep 0.05; done

jq -c --arg socket "$socket" --arg root "$checkpoints" '.model = $root + "/" + .model | .socket = $socket' "$here/cases.jsonl" >"$dir/batch"
STOCK_ENGINE_VENV=$venv "$engine/run.sh" engine --batch "$dir/batch" --jobs 2 >"$dir/results" 2>"$dir/engine.log" || true

jq -r '
    (if .ok and .loader == "ipc" and .watch == "held" and .mapped.tensors > 0 then "ok  " else "FAIL" end) + "  " + .id
    + "  tensors \(.tensors)  aliases \(.aliases)  mapped \(.mapped.bytes // 0) bytes  get_state \(.get_state_ms) ms  cos_sin_cache \(.cos_sin_cache_ulp // 0) ulp"
    + (if .difference_count > 0 then "\n      " + (.differences | join("\n      ")) else "" end)
    + (if .error then "\n      " + .error else "" end)' "$dir/results" | sort -k2
good=$(jq -s '[.[] | select(.ok and .loader == "ipc" and .watch == "held" and .mapped.tensors > 0)] | length' "$dir/results")
all=$(wc -l <"$here/cases.jsonl")
if [ "$good" != "$all" ]; then
    tail -n 40 "$dir/daemon.log" "$dir/engine.log" >&2
fi
"$top/bin/wcache" --socket "$socket" status
echo "$good passed, $((all - good)) failed"

mkdir "$dir/which"
status=0
HF_HOME=$dir/hf STOCK_ENGINE_VENV=$venv "$engine/python" "$here/which.py" "$top/bin/wcache" "$checkpoints/llama" "$dir/which" 2>"$dir/which.log" || status=$?
[ "$status" = 0 ] || tail -n 40 "$dir/which.log" >&2
[ "$good" = "$all" ] && [ "$status" = 0 ]
