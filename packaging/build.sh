#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# build.sh VERSION [DIR] - build the .deb and .rpm of VERSION in DIR, by default dist,
# for the architectures in ARCHES; by default this machine's, and the other of
# amd64 and arm64 if there is a compiler for it. The same tree gives the same
# bytes, in any folder, for any user and at any time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VERSION=$(packaging/version.sh "${1:?usage: build.sh VERSION [DIR]}")
out=${2:-dist}
umask 022
# Without a repository, SOURCE_DATE_EPOCH has to be set to the last commit's time.
[ -n "${SOURCE_DATE_EPOCH-}" ] || SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export VERSION SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC

native=$(go env GOHOSTARCH)
compiler() {
    case $1 in
    "$native") echo gcc ;;
    amd64) echo x86_64-linux-gnu-gcc ;;
    arm64) echo aarch64-linux-gnu-gcc ;;
    *) echo "build.sh: error: no packages for $1" >&2; return 1 ;;
    esac
}

stage=dist/stage
rm -rf "$stage"
mkdir -p "$stage" "$out"
trap 'rm -rf "$stage"' EXIT

# Hardened as in distributions, except for -z now: go-nvml's functions belong to a
# library that is opened only if it exists. With -z now they would be looked up at the
# start, and without a driver the program would end with "undefined symbol".
export CGO_ENABLED=1 GOFLAGS='-mod=readonly -trimpath -buildvcs=false -buildmode=pie'
export CGO_CFLAGS='-O2 -g0 -D_FORTIFY_SOURCE=2 -fstack-protector-strong -Wno-deprecated-declarations'
export CGO_LDFLAGS='-Wl,-z,relro -Wl,-z,lazy'
built=()
for arch in ${ARCHES:-amd64 arm64}; do
    cc=$(compiler "$arch")
    if [ -z "${ARCHES-}" ] && ! type -P "$cc" >/dev/null; then
        echo "$arch: skipped, there is no $cc"
        continue
    fi
    CC=$cc GOARCH=$arch go build -ldflags "-s -w -linkmode=external -X main.version=$VERSION" -o "$stage/$arch/" ./cmd/...
    "${cc%gcc}objcopy" --remove-section=.comment "$stage/$arch/wcache"
    "${cc%gcc}objcopy" --remove-section=.comment "$stage/$arch/wcache-generator"
    built+=("$arch")
done

cp man/*.[1-9] CHANGELOG.md docs/containers.md THIRD-PARTY.txt "$stage/"
gzip -9n "$stage"/*.[1-9] "$stage"/*.md "$stage"/*.txt
# From a program for this machine, which may not be among the packaged ones.
[ -x "$stage/$native/wcache" ] || go build -o "$stage/$native/" ./cmd/wcache
for shell in bash fish zsh; do
    "$stage/$native/wcache" completion "$shell" >"$stage/wcache.$shell"
done
# The distribution's changelog has only this version; CHANGELOG.md has all.
cat >"$stage/changelog.yaml" <<END
- semver: "${VERSION/-/\~}-1"
  date: "$(date -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"
  packager: The wcache authors <wcache@users.noreply.github.com>
  deb: {urgency: medium, distributions: [unstable]}
  changes:
    - note: "Version ${VERSION/-/\~}, see the upstream changelog."
END

# nfpm for this machine, whatever architectures were built above.
nfpm=${NFPM:-$(GOFLAGS=-mod=readonly CGO_ENABLED=0 go tool -n -modfile=tools/nfpm/go.mod nfpm)}
for arch in "${built[@]}"; do
    for packager in deb rpm; do
        ARCH=$arch "$nfpm" package --packager "$packager" --target "$out/" | sed -n 's/^created package: //p'
    done
done
