#!/usr/bin/env bash
# From a fresh machine to an answer: installs what is missing, builds csgl, fetches the default model and
# asks it a question.
set -euo pipefail
cd "$(dirname "$0")/.."

question=${1:-What is gravity?}

scripts/install-deps.sh
cmake --preset release >/dev/null
cmake --build build/release --target csgl
model=$(scripts/fetch-model.sh)

echo
echo "> $question"
build/release/csgl generate --model-path "$model" --chat --temperature 0 --max-tokens 100 "$question"
echo
echo "Talk with it:  build/release/csgl chat --model-path $model"
