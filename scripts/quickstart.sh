#!/usr/bin/env bash
# From a fresh machine to an answer: installs what is missing, builds csgl, fetches the default model,
# serves it on http://127.0.0.1:1919, asks it a question and stays up until Ctrl-C (--once: ends instead).
set -euo pipefail
cd "$(dirname "$0")/.."

once=no
[ "${1:-}" = --once ] && once=yes && shift
question=${1:-What is gravity?}
port=${CSGL_PORT:-1919}

scripts/install-deps.sh
cmake --preset release >/dev/null
cmake --build build/release --target csgl
model=$(scripts/fetch-model.sh)

build/release/csgl serve --model-path "$model" --port "$port" &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

# Waits until the server is ready, asks, prints the answer as it comes.
python3 - "$port" "$question" "$server" <<'PYTHON'
import http.client, json, os, sys, time
port, question, server = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for _ in range(600):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        if response.status == 200:
            break
    except OSError:
        pass
    try:
        os.kill(server, 0)
    except ProcessLookupError:
        sys.exit("csgl: the server ended; its message is above")
    time.sleep(0.1)
else:
    sys.exit("csgl: the server was not ready within a minute")
body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 100,
        "stream": True}
connection.request("POST", "/v1/chat/completions", json.dumps(body),
                   {"Content-Type": "application/json"})
print(f"\n> {question}")
for line in connection.getresponse():
    if line.startswith(b"data: {"):
        choices = json.loads(line[6:])["choices"]
        if choices:
            print(choices[0]["delta"].get("content") or "", end="", flush=True)
print("\n")
PYTHON

if [ $once = no ]; then
    echo "csgl stays up on http://127.0.0.1:$port: a chat page there, OpenAI's API under /v1. Ctrl-C ends it."
    wait $server
fi
