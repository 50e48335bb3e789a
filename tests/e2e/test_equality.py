"""Greedy answers do not depend on what else the server does."""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import threading
import urllib.request

import pytest

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "tests/models/smollm2/reference.json"

# Sixteen prompts of many lengths.
PROMPTS = [entry["text"] for entry in json.loads(REFERENCE.read_text())["prompts"]]
PROMPTS += [prompt * 6 for prompt in PROMPTS[:6]]


class Server:
    def __init__(self, binary, model, *options):
        self.process = subprocess.Popen([binary, "serve", "--model-path", model, "--port", "0",
                                         "--activations", "float", "--kv-cache-dtype", "f32",
                                         *options], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "ready on" in line:
                self.url = re.search(r"http://\S+", line).group(0)
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def answer(self, prompt, n=32):
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)

    def text(self, prompt):
        return self.answer(prompt)["choices"][0]["text"]

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as reply:
            for line in reply.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        raise KeyError(name)

    def together(self):
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            return list(pool.map(self.text, PROMPTS))


@pytest.fixture
def serve(binary, model):
    servers = []

    def start(*options):
        servers.append(Server(binary, model, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.process.terminate()
        server.process.wait()


@pytest.fixture(scope="module")
def alone(binary, model):
    """Each prompt's answer from a server that does nothing else and keeps nothing."""
    server = Server(binary, model, "--cache-type", "naive")
    texts = [server.text(prompt) for prompt in PROMPTS]
    server.process.terminate()
    server.process.wait()
    return texts


def differing(texts, alone):
    return sum(a != b for a, b in zip(texts, alone))


# More than one sequence in ten that diverges fails; fewer do so at near-ties.
ALLOWED = len(PROMPTS) // 10


def test_beside_fifteen_others(serve, alone):
    assert differing(serve().together(), alone) <= ALLOWED


def test_in_mixed_steps(serve, alone):
    server = serve("--schedule-policy", "mixed", "--max-prefill-length", "48")
    assert differing(server.together(), alone) <= ALLOWED


def test_after_a_prefix_hit(serve, alone):
    server = serve()
    for prompt in PROMPTS:
        server.text(prompt)
    hits_before = server.metric("csgl_cache_hit_tokens_total")
    assert differing([server.text(prompt) for prompt in PROMPTS], alone) <= ALLOWED
    assert server.metric("csgl_cache_hit_tokens_total") > hits_before + 100


def test_in_small_chunks(serve, alone):
    server = serve("--max-prefill-length", "7")
    assert differing([server.text(prompt) for prompt in PROMPTS], alone) <= ALLOWED


def test_after_preemptions(serve, alone):
    server = serve("--num-pages", "24", "--context-length", "320", "--cache-type", "radix")
    assert differing(server.together(), alone) <= ALLOWED
    assert server.metric("csgl_preemptions_total") > 0
