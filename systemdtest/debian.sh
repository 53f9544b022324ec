#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# debian.sh DIR [RELEASE [PACKAGE...]] - install a Debian with systemd in DIR for the
# tests, by default trixie, which is Debian 13. Does nothing if it is complete. MIRROR
# names the archive; by default this machine's.
set -euo pipefail
dir=${1:?usage: debian.sh DIR [RELEASE [PACKAGE...]]} release=${2:-trixie}
include=systemd,dbus,dbus-user-session,procps
for package in "${@:3}"; do include+=,$package; done
[ -e "$dir/.complete" ] && exit 0
command -v debootstrap >/dev/null || { echo "debian.sh: error: debootstrap is missing" >&2; echo "debian.sh: hint: apt-get install debootstrap" >&2; exit 1; }
mirror=${MIRROR-$(sed -n 's/^deb \(\[[^]]*\] \)\?\(http[^ ]*\).*/\2/p; s/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1 || true)}
rm -rf "$dir"
mkdir -p "$dir"
# If debootstrap is older than the release, its script for sid serves.
script=/usr/share/debootstrap/scripts/$release
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
debootstrap --variant=minbase --include="$include" "$release" "$dir" ${mirror:+"$mirror"} "$script" >"$dir.log" 2>&1 ||
    { tail -n 20 "$dir.log" >&2; exit 1; }
touch "$dir/.complete"
