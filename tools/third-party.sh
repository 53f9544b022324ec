#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# third-party.sh - write THIRD-PARTY.txt: the notices of all that is compiled into
# the programs. With --check, compare it instead. Needs no network if the modules are
# downloaded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export GOOS=linux GOFLAGS=-mod=readonly
rule=$(printf '%.0s=' {1..80})

title() { printf '\n%s\n%s\n' "$rule" "$1"; [ $# -lt 2 ] || printf '%s\n' "${@:2}"; printf '%s\n\n' "$rule"; }

# text FILE prints it without spaces at the ends of lines and empty lines at its end.
text() { sed 's/[ \t\r]*$//' "$1" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'; }

modules() {
    local arch
    for arch in amd64 arm64; do
        GOARCH=$arch CGO_ENABLED=1 go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/...
    done | LC_ALL=C sort -u
}

write() {
    local path version dir file any
    cat <<END
Third-party notices

wcache itself is under the MIT licence, see LICENSE. Its programs have other
people's work compiled into them, whose notices follow. This file is written by
tools/third-party.sh.
END
    title 'Go: the standard library and the runtime' 'https://go.dev/LICENSE'
    text "$(go env GOROOT)/LICENSE"
    while read -r path version dir; do
        title "$path $version"
        any=
        for file in "$dir"/LICENSE* "$dir"/COPYING* "$dir"/NOTICE*; do
            [ -f "$file" ] || continue
            text "$file"
            any=1
        done
        [ "$any" ] || { echo "third-party: error: $path has no licence" >&2; return 1; }
        # The header's licence asks for its notice.
        if [ -f "$dir/pkg/nvml/nvml.h" ]; then
            title "$path $version: pkg/nvml/nvml.h"
            awk '/^ \* Copyright/ { on = 1 } on && /\*\// { exit } on { sub(/^ \* ?/, ""); sub(/[ \t\r]+$/, ""); print }' "$dir/pkg/nvml/nvml.h"
        fi
    done < <(modules)
    title 'SLEEF, whose powf layout/powf.go follows' 'https://sleef.org' 'Copyright Naoki Shibata and contributors'
    text tools/third-party-sleef.txt
}

case ${1-} in
'')
    write >THIRD-PARTY.txt.new
    mv THIRD-PARTY.txt.new THIRD-PARTY.txt
    ;;
--check)
    write | diff -u THIRD-PARTY.txt - >&2 || {
        echo "third-party: error: THIRD-PARTY.txt is not current" >&2
        echo "third-party: hint: make third-party" >&2
        exit 1
    }
    ;;
*)
    echo "usage: ${0##*/} [--check]" >&2
    exit 2
    ;;
esac
