#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# verify.sh MODEL [DEVICE] - measure the time of digests and of wcache verify for a model
# directory, on a GPU by number or uuid, or on the host: each load and comparison five
# times, beside sha256sum of the same files. Run make build before. All files should be
# in the page cache; the first load may bring them there.
set -euo pipefail
model=$(realpath "${1:?usage: verify.sh MODEL [DEVICE]}") device=${2:-host}
wcache=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../bin/wcache
dir=$(mktemp -d) pid=
trap '[ -z "$pid" ] || kill "$pid"; wait; rm -rf "$dir"' EXIT
export WCACHE_SOCKET=$dir/s.sock HF_HUB_CACHE=$dir

serve() { # VERIFY
    [ -z "$pid" ] || { kill "$pid"; wait "$pid" || true; }
    printf 'verify = "%s"\n' "$1" >"$dir/wcache.toml"
    "$wcache" serve --listen "$WCACHE_SOCKET" --device "$device" --config "$dir/wcache.toml" --state "$dir/state" 2>>"$dir/log" &
    pid=$!
    for _ in $(seq 100); do
        "$wcache" status >/dev/null 2>&1 && return
        sleep 0.1
    done
    cat "$dir/log" >&2
    exit 1
}

# field NAME FILE - print the first number of this name in a JSON text.
field() { sed -n "s/^ *\"$1\": \([0-9.e-]*\),*$/\1/p" "$2" | head -n 1; }

show() { printf '%-44s %s s\n' "$1" "$2"; } # WHAT SECONDS...

loads() { # VERIFY
    local list=()
    serve "$1"
    for i in $(seq 6); do
        "$wcache" warm --json "$model" >"$dir/out"
        [ "$i" = 1 ] || list+=("$(field load_seconds "$dir/out")")
        [ "$i" = 6 ] || "$wcache" evict --all >/dev/null
    done
    show "load, verify = \"$1\"" "${list[*]}"
}

seconds() { # COMMAND...
    local begin end
    begin=$(date +%s.%N)
    "$@" >/dev/null
    end=$(date +%s.%N)
    echo "$begin $end" | awk '{printf "%.3f", $2 - $1}'
}

each() { # one process per file, at once
    local f pids=()
    for f in "$model"/*.safetensors; do
        sha256sum "$f" &
        pids+=($!)
    done
    wait "${pids[@]}"
}

printf '%s: %s files, %s bytes\n' "$model" "$(find -L "$model" -maxdepth 1 -name '*.safetensors' | wc -l)" "$(cat "$model"/*.safetensors | wc -c)"
loads load
loads off
list=()
for _ in $(seq 5); do
    "$wcache" verify --json >"$dir/out"
    list+=("$(field seconds "$dir/out")")
done
show 'wcache verify, memory and files' "${list[*]}"
show 'sha256sum, one file after the other' "$(seconds sha256sum "$model"/*.safetensors)"
show 'sha256sum, all files at once' "$(seconds each)"
serve idle
"$wcache" warm "$model" >/dev/null
known() { until [ "$(field digests "$dir/out")" = "$(field count "$dir/out")" ]; do "$wcache" status --json >"$dir/out"; sleep 0.02; done; }
"$wcache" status --json >"$dir/out"
show 'from a load to all digests, verify = "idle"' "$(seconds known)"
