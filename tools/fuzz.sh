#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# fuzz.sh TIME - run each fuzz target of the module for TIME, one after another,
# and print its last line, which says how many executions there were.
set -euo pipefail
time=${1:?usage: fuzz.sh TIME}
go list ./... | while read -r pkg; do
    for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
        printf '%s %s: ' "${pkg#github.com/wcache/wcache/}" "$target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$pkg" | grep '^fuzz: elapsed' | tail -n 1
    done
done
