#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# lint.sh DIR - check the packages in DIR, and the files that go into them, against the
# rules of distributions. Errors and warnings fail; the few exceptions are in
# lintian-overrides and rpmlint.toml, each with its reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=${1:?usage: lint.sh DIR}
for tool in lintian rpmlint cpio mandoc shellcheck systemd-analyze objdump; do
    type -P "$tool" >/dev/null || missing="${missing-} $tool"
done
if [ -n "${missing-}" ]; then
    echo "lint.sh: error: missing:$missing" >&2
    echo "lint.sh: hint: apt-get install lintian rpmlint cpio mandoc shellcheck systemd binutils" >&2
    exit 1
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
step() { printf '%s\n' "$*"; }
fail() { echo "lint.sh: error: $*" >&2; exit 1; }

step "shellcheck, of every script"
# SC2015: every "a && b || c" is intended.
git grep -lzE '^#!/bin/(ba)?sh$' | xargs -0 shellcheck --exclude=SC2015

step "mandoc -T lint"
mandoc -T lint -W warning man/*.[1-9]

step "lintian"
# lintian may run as root here: it runs nothing from the packages.
lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$dir"/*.deb

step "rpmlint"
# Only with lint-bin/cpio in PATH, which says why.
PATH=$PWD/packaging/lint-bin:$PATH rpmlint --config packaging/rpmlint.toml "$dir"/*.rpm >"$tmp/rpmlint" 2>&1 || { cat "$tmp/rpmlint"; exit 1; }
grep '[0-9] errors, 0 warnings' "$tmp/rpmlint" || { cat "$tmp/rpmlint"; exit 1; }

arch=$(dpkg --print-architecture)
for deb in "$dir"/*_"$arch".deb; do
    root=$tmp/root
    dpkg-deb -x "$deb" "$root"
    units=$root/usr/lib/systemd/user

    step "systemd-analyze verify"
    mkdir -m 700 "$tmp/run"
    sed -i "s|=/usr/bin/|=$root/usr/bin/|" "$units"/wcache*
    # An unknown key gives a line of output, and still exit status 0.
    said=$(XDG_RUNTIME_DIR=$tmp/run systemd-analyze --user --man=no verify \
        "$units"/wcache@host.socket "$units"/wcache-draft@host.socket "$units"/wcache@host.service 2>&1) && [ -z "$said" ] || fail "$said"
    grep -ohE 'man:[^ ]+\([1-9]\)' "$units"/wcache* | sort -u | while read -r page; do
        page=${page#man:} section=${page: -2:1}
        [ -e "$root/usr/share/man/man$section/${page%(*}.$section.gz" ] || fail "a unit names $page, and the package has no such page"
    done

    step "symbols"
    # Both packages depend on this version; nfpm doesn't look at symbols.
    objdump -T "$root/usr/bin/wcache" "$root/usr/lib/systemd/user-generators/wcache-generator" |
        grep -oE 'GLIBC_[0-9.]+' | sort -Vu >"$tmp/symbols"
    newest=$(tail -n 1 "$tmp/symbols")
    [ "$(printf 'GLIBC_2.34\n%s\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.34 ] || fail "the programs need $newest, and the packages depend on 2.34"
    bash -n "$root/usr/share/bash-completion/completions/wcache"
    rm -rf "$root" "$tmp/run"
done
echo "no complaints"
