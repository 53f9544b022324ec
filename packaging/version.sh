#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# version.sh WORD - print a version that .deb and .rpm can carry and sort, from the
# output of "git describe --tags --always --dirty", or from a version as written:
#
#   v1.2.3                 1.2.3
#   v1.2.3-rc1             1.2.3-rc1            packaged as 1.2.3~rc1, before 1.2.3
#   v1.2.3-14-gabcdef0     1.2.3+14.gabcdef0    after 1.2.3
#   abcdef0                0.1.0-dev81          no tag yet: the number of commits
set -euo pipefail
word=${1:?usage: version.sh WORD}
next=0.1.0 # the first release

more=
case $word in *-dirty) word=${word%-dirty} more=dirty ;; esac
if [[ $word =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?\+[0-9A-Za-z.]+$ ]]; then
    version=$word # an earlier output of this script
elif [[ $word =~ ^v?([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?)(-([0-9]+)-(g[0-9a-f]+))?$ ]]; then
    version=${BASH_REMATCH[1]}
    more=${BASH_REMATCH[3]:+${BASH_REMATCH[4]}.${BASH_REMATCH[5]}}${BASH_REMATCH[3]:+${more:+.}}$more
elif [[ $word =~ ^[0-9a-f]{4,40}$ || $word = unknown ]]; then
    version=$next-dev$(git rev-list --count HEAD 2>/dev/null || echo 0)
else
    echo "version.sh: error: \"$word\" is not a version" >&2
    echo "version.sh: hint: 1.2.3, or 1.2.3-rc1 for a candidate" >&2
    exit 1
fi
echo "$version${more:++$more}"
