#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# debian.sh DIR - a Debian 13 with systemd in DIR, for the tests. Quick when it is
# there. MIRROR names the archive; by default that of this machine.
set -euo pipefail
dir=${1:?usage: debian.sh DIR}
[ -e "$dir/.complete" ] && exit 0
command -v debootstrap >/dev/null || { echo "debian.sh: error: debootstrap is missing" >&2; echo "debian.sh: hint: apt-get install debootstrap" >&2; exit 1; }
mirror=${MIRROR-$(sed -n 's/^deb \(\[[^]]*\] \)\?\(http[^ ]*\).*/\2/p; s/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1 || true)}
rm -rf "$dir"
mkdir -p "$dir"
# From the oldest still supported release on, debootstrap knows trixie as sid's script.
script=/usr/share/debootstrap/scripts/trixie
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
debootstrap --variant=minbase --include=systemd,dbus,dbus-user-session,procps trixie "$dir" ${mirror:+"$mirror"} "$script" >"$dir.log" 2>&1 ||
    { tail -n 20 "$dir.log" >&2; exit 1; }
touch "$dir/.complete"
