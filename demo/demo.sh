#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# demo.sh - one engine with wcache, on host memory: the engine's connection starts the
# service, which loads the model, hands it over, and keeps it for the next engine.
# The engine sends what a real vLLM 0.33.0 sent. All files are in one temporary
# folder, which is removed at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 077
unset NOTIFY_SOCKET JOURNAL_STREAM # they belong to the service that may have started this script

dir=$(mktemp -d "${TMPDIR:-/tmp}/wcache-demo.XXXXXX")
socket=$dir/host.sock
jobs=()
finish() {
    local rc=$?
    exec 3>&-
    for pid in "${jobs[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    if [ "$rc" != 0 ] && [ -s "$dir/log" ]; then
        echo "demo: error: the demo failed; the service's log:" >&2
        cat "$dir/log" >&2 || true
    fi
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { printf '\n\e[1m%s\e[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
# status N shows the status, and fails unless its exit status is N.
status() {
    local rc=0
    bin/wcache --gpu host --socket "$socket" status || rc=$?
    [ "$rc" = "$1" ]
}
# program names the program of the process that holds the socket.
program() { basename "$(readlink "/proc/$daemon/exe")"; }

go build -o "$dir/engine" ./demo/engine
engine=("$dir/engine" -socket "$socket" -request testdata/wire/0.33.0-get_state-llama-tp1r0.bin -layout testdata/layouts/llama-tp1r0.json)

# This service sees only the bundled model, and no configuration or cache of the user.
: >"$dir/wcache.toml"
service=("$PWD/bin/wcache" serve --device host --config "$dir/wcache.toml" --state "$dir/state" --root "$PWD/testdata/checkpoints/llama")
if activate=$(type -P systemd-socket-activate); then
    by="systemd-socket-activate"
    "$activate" --listen="$socket" --fdname=wcache -E HF_HUB_CACHE="$dir/none" "${service[@]}" 2>"$dir/log" &
else
    by="the demo, as systemd would"
    HF_HUB_CACHE=$dir/none "$dir/engine" -activate -socket "$socket" -- "${service[@]}" 2>"$dir/log" &
fi
daemon=$!
jobs+=("$daemon")
within() { # COMMAND...: wait until it succeeds, a minute at the most
    for _ in {1..3000}; do "$@" && return || sleep 0.02; done
    echo "demo: error: gave up after a minute: $*" >&2
    return 1
}
within test -S "$socket"

say "1. Before: $by holds a socket; asking for the status doesn't start the service"
status 3
echo "exit status 3; process $daemon is $(program)"

say "2. An engine starts: it connects, and sends the get_state that vLLM 0.33.0 sent for this model"
mkfifo "$dir/said" "$dir/stay"
"${engine[@]}" -watch testdata/wire/0.33.0-watch.bin <"$dir/stay" >"$dir/said" &
first=$!
jobs+=("$first")
exec 3>"$dir/stay"
cat "$dir/said"

say "3. During: the connection made process $daemon become $(program), and the engine is attached"
status 0

exec 3>&-
wait "$first"
say "4. The engine ended and starts again: the same weights, without a load"
"${engine[@]}" -rows 0

say "5. After: no engine, and the weights wait for the next one"
left() { bin/wcache --gpu host --socket "$socket" status --json | grep -q '"engines": \[\]'; }
within left # the kernel tells the service of the engine's end
status 0

kill "$daemon"
wait "$daemon"
say "6. The service was told to end, which freed the weights"
