#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# fuzz.sh TIME - run each fuzz target of the module for TIME, one after another, and
# print its executions per minute. Fewer than 100,000 test little: the target reads a
# disk in its loop, or begins with inputs that are too long.
set -euo pipefail
time=${1:?usage: fuzz.sh TIME}
enough=100000
slow=0
printf '%-24s %-24s %12s %12s\n' package target executions 'per minute'
while read -r pkg; do
    for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
        # By default Go shortens each input that reaches new code for up to a minute,
        # and these executions don't count.
        out=$(go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x "$pkg" 2>&1) || { echo "$out"; exit 1; }
        read -r count rate < <(awk '
            /^fuzz: elapsed/ && match($0, /execs: [0-9]+/) { n = substr($0, RSTART + 7, RLENGTH - 7)
                if (match($0, /\([0-9]+\/sec/)) { r = substr($0, RSTART + 1, RLENGTH - 5); if (r > 0) { sum += r; k++ } } }
            END { print n + 0, k ? int(60 * sum / k) : 0 }' <<<"$out")
        note=
        if ((rate < enough)); then note='  fewer than 100,000'; slow=1; fi
        printf '%-24s %-24s %12d %12d%s\n' "${pkg#github.com/wcache/wcache/}" "$target" "$count" "$rate" "$note"
    done
done < <(go list ./...)
exit "$slow"
