#!/bin/bash
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
#
# install.sh ENGINE VENV - install the unmodified vLLM in VENV: about 10 GB, once. ENGINE
# is the folder of the engine's test bed. Quick if vLLM is installed already.
set -euo pipefail
engine=${1:?usage: install.sh ENGINE VENV} venv=${2:?usage: install.sh ENGINE VENV}

fail() {
    echo "enginetest: error: $1" >&2
    [ -z "${2-}" ] || echo "enginetest: hint: $2" >&2
    exit 1
}

[ -x "$engine/run.sh" ] || fail "no engine test bed in $engine" "make test-engine ENGINE=DIR"
need=12 # GB, with pip's temporary files
if ! compgen -G "$venv/lib/python3.*/site-packages/vllm-*.dist-info" >/dev/null; then
    mkdir -p "$venv"
    free=$(($(df --output=avail -B1000000000 "$venv" | tail -n 1)))
    [ "$free" -ge "$need" ] || fail "vLLM needs $need GB in $venv, and $free GB are free" "make test-engine ENGINE_VENV=DIR, on a larger disk"
    echo "enginetest: installing vLLM in $venv, once; this takes some minutes"
fi
"$engine/install.sh" "$venv" || fail "vLLM can't be installed in $venv"
