#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# run.sh BED [ROOT [OPTION...]] - test the units, the generator and the daemon in a real
# user manager. BED is user-manager.sh of the test bed; ROOT is the file system that it
# runs on: / or another release of Debian. Needs root. With ENGINE and ENGINE_VENV set,
# the unmodified vLLM engine connects too, with only the load format as an option.
# OPTIONs go to the tests, such as -test.run=TestCrash -crash.kills=500.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
bed=${1:?usage: run.sh BED [ROOT [OPTION...]]} root=${2:-/}
[ -x "$bed" ] || { echo "systemdtest: error: no user manager for tests at $bed" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "systemdtest: error: needs root, to start a user manager in a cgroup of its own" >&2; exit 1; }

stage=$(mktemp -d)
export WCT_NAME=wcache$$ WCT_ROOT=$root WCT_BIND=$stage WCT_STATE=/tmp/wcache-bed-$$
engine=${ENGINE:+$(realpath "$ENGINE")} venv=${ENGINE_VENV-}
[ "$root" = / ] || engine= # the engine is installed on this machine only
trap '"$bed" down >/dev/null || true; rm -rf "$stage"' EXIT

chmod 755 "$stage"
mkdir -p "$stage/units" "$stage/proc/driver/nvidia/gpus/0000:00:06.0"
cp "$top/bin/wcache" "$top/bin/wcache-generator" "$stage/"
cp "$top"/systemd/wcache* "$stage/units/"
cp -r "$top/testdata" "$stage/testdata"
go test -c -o "$stage/systemdtest" "$here"
# One simulated GPU, with the uuid that the engine on a CPU claims to have.
printf 'Model: \t\t pretended\nGPU UUID: \t GPU-00000000-0000-0000-0000-000000000000\nBus Location: \t 0000:00:06.0\nDevice Minor: \t 0\n' \
    >"$stage/proc/driver/nvidia/gpus/0000:00:06.0/information"
chmod -R a+rX "$stage"

"$bed" up
"$bed" exec --root sh -c "
    install -m 755 $stage/wcache $stage/wcache-generator /usr/bin/
    mkdir -p /usr/lib/systemd/user /usr/lib/systemd/user-generators
    install -m 644 $stage/units/wcache*.socket $stage/units/wcache*.service /usr/lib/systemd/user/
    ln -sf /usr/bin/wcache-generator /usr/lib/systemd/user-generators/wcache-generator
    chmod 755 /root"
"$bed" exec systemctl --version | head -n 1
"$bed" exec env WCACHE_BED="$stage" WCACHE_ENGINE="$engine" STOCK_ENGINE_VENV="$venv" VLLM_CACHE_ROOT=/tmp/vllm \
    "$stage/systemdtest" -test.v -test.timeout 10m "${@:3}" 2>&1 | tee "$stage/log" | grep -v '^=== ' || true
passed=$(grep -c '^--- PASS' "$stage/log" || true)
failed=$(grep -c '^--- FAIL' "$stage/log" || true)
if [ "$failed" != 0 ] || ! grep -q '^PASS$' "$stage/log"; then
    "$bed" exec journalctl --user -n 60 --no-pager -o cat >&2 || true
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && grep -q '^PASS$' "$stage/log"
