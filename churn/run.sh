#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# run.sh BED SEED MINUTES [OPTION...] - the churn: random engines beside kills, changed
# files and hostile clients. With root and BED, which is user-manager.sh of the test
# bed, against the units in a real user manager and a daemon by hand at once; else
# against the one by hand. SEED 0 is one by the clock. OPTIONs are the program's. With
# CHURN_LOGS set, the daemons' logs of a run that fails go into that folder.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
bed=${1:?usage: run.sh BED SEED MINUTES [OPTION...]} seed=${2:?} minutes=${3:?}
shift 3

stage=$(mktemp -d "${TMPDIR:-/tmp}/churn.XXXXXX")
chmod 755 "$stage"
mkdir "$stage/dir" "$stage/state"
go build -o "$stage/churn" "$here"
cp "$top/bin/wcache" "$top"/systemd/wcache* "$stage/"
churn=(nice "$stage/churn" -wcache "$stage/wcache" -dir "$stage/dir" -seed "$seed" -minutes "$minutes")
logs() { # COMMAND...: run it, and keep the logs if it fails
    "$@" && return
    local rc=$?
    [ -z "${CHURN_LOGS-}" ] || { mkdir -p "$CHURN_LOGS" && cp "$stage"/dir/*.log "$CHURN_LOGS/"; }
    return "$rc"
}
# A state folder on a file system of its own, so small that it can be filled.
disk=(mount -t tmpfs -o "size=2m,mode=700" tmpfs)

if [ "$(id -u)" != 0 ] || [ ! -x "$bed" ]; then
    echo "without root or a user manager for tests at $bed: a daemon by hand only"
    trap 'rm -rf "$stage"' EXIT
    own=(unshare --mount)
    [ "$(id -u)" = 0 ] || own+=(--map-root-user)
    if "${own[@]}" true 2>/dev/null; then
        logs "${own[@]}" sh -ec "${disk[*]} '$stage/state'; exec \"\$@\"" sh "${churn[@]}" -state "$stage/state" "$@"
    else
        echo "without mounts of its own: no disk is filled"
        logs "${churn[@]}" "$@"
    fi
    exit
fi

export WCT_NAME=churn$$ WCT_BIND=$stage WCT_STATE=/tmp/churn-bed-$$
finish() {
    local manager
    manager=$("$bed" pid 2>/dev/null) && kill -CONT "$manager" 2>/dev/null || true # a stopped one can't end
    "$bed" down >/dev/null || true
    rm -rf "$stage"
}
trap finish EXIT
"$bed" up
kept=/home/wctest/.local/state/wcache/host
"$bed" exec --root sh -ec "
    install -m 755 $stage/wcache /usr/bin/
    mkdir -p /usr/lib/systemd/user
    install -m 644 $stage/wcache*.socket $stage/wcache*.service /usr/lib/systemd/user/
    chown wctest: $stage/dir $stage/state"
"$bed" exec mkdir -p -m 700 "$kept"
"$bed" exec --root sh -ec "for d in $stage/state $kept; do ${disk[*]} \$d; chown wctest: \$d; done"
"$bed" exec systemctl --version | head -n 1
"$bed" exec systemctl --user enable --now wcache@host.socket
[ -z "${CHURN_LOGS-}" ] || "$bed" exec sh -c "exec journalctl --user -fqn all -o short-precise >$stage/dir/journal.log" &
logs "$bed" exec "${churn[@]}" -state "$stage/state" -unit wcache@host.service -unit-state "$kept" -manager "$("$bed" pid)" "$@"
