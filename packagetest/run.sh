#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# run.sh BED DIST ROOT... - test the packages in DIST on each of the systems ROOT,
# which BED boots. BED is user-manager.sh of the test bed, and leaves every ROOT
# unchanged. Needs root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
bed=${1:?usage: run.sh BED DIST ROOT...} dist=${2:?} roots=("${@:3}")
[ -x "$bed" ] || { echo "packagetest: error: no system for tests at $bed" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "packagetest: error: needs root, to boot a system in a cgroup of its own" >&2; exit 1; }

stage=$(mktemp -d)
export WCT_NAME=wcpkg$$ WCT_BIND=$stage:ro WCT_STATE=/tmp/wcache-pkg-$$ WCT_BOOT=1
trap '"$bed" down >/dev/null || true; rm -rf "$stage"' EXIT

arch=$(dpkg --print-architecture)
mkdir "$stage/new"
cp "$dist"/*_"$arch".deb "$dist"/*."$(uname -m)".rpm "$stage/new/"
# The same program as an older version.
ARCHES=$arch "$top/packaging/build.sh" 0.0.9 "$stage/old" >/dev/null
cp -r "$top/testdata" "$stage/testdata"
go build -o "$stage/engine" "$top/demo/engine"
go test -c -o "$stage/packagetest" "$here"
chmod -R a+rX "$stage"

passed=0 failed=0
for root in "${roots[@]}"; do
    WCT_ROOT=$root "$bed" up
    sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release"
    rc=0
    WCT_ROOT=$root "$bed" exec --root env WCACHE_BED="$stage" "$stage/packagetest" -test.v -test.timeout 15m >"$stage/log" 2>&1 || rc=$?
    grep -v '^=== ' "$stage/log" || true
    passed=$((passed + $(grep -c '^--- PASS' "$stage/log" || true)))
    failed=$((failed + $(grep -c '^--- FAIL' "$stage/log" || true)))
    if [ "$rc" != 0 ]; then
        grep -q '^--- FAIL' "$stage/log" || failed=$((failed + 1))
        WCT_ROOT=$root "$bed" exec --root journalctl -n 60 --no-pager -o cat >&2 || true
    fi
    "$bed" down >/dev/null
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
