#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# reproducible.sh VERSION - build the packages in dist again under other conditions, and
# compare: from a copy of the tree in another folder without a git repository, with
# another umask, time zone and language, and with an empty build cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(packaging/version.sh "${1:?usage: reproducible.sh VERSION}")
NFPM=$(CGO_ENABLED=0 go tool -n -modfile=tools/nfpm/go.mod nfpm) # a tool, so it needn't be reproducible
export NFPM
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

umask 077
mkdir -p "$tmp/elsewhere/wcache"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --ignore-failed-read -cf - |
    tar -C "$tmp/elsewhere/wcache" --no-same-permissions -xf -
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) GOCACHE=$tmp/cache TZ=Pacific/Auckland LC_ALL=C.UTF-8 \
    "$tmp/elsewhere/wcache/packaging/build.sh" "$version" "$tmp/dist" >/dev/null
sums() { (cd "$1" && sha256sum -- *.deb *.rpm); }
diff <(sums dist) <(sums "$tmp/dist") || { echo "reproducible.sh: error: two builds of one tree differ" >&2; exit 1; }
sums dist
echo "equal, byte for byte"
