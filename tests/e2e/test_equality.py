"""Greedy answers do not depend on what else the server does."""

import concurrent.futures
import json
import pathlib

import pytest
from serving import Server

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "tests/models/smollm2/reference.json"

# Sixteen prompts of many lengths.
PROMPTS = [entry["text"] for entry in json.loads(REFERENCE.read_text())["prompts"]]
PROMPTS += [prompt * 6 for prompt in PROMPTS[:6]]


class Greedy(Server):
    """A server in the mode in which answers are compared."""

    def __init__(self, binary, model, *options):
        super().__init__(binary, model, "--activations", "float", "--kv-cache-dtype", "f32", *options)

    def text(self, prompt):
        body = {"prompt": prompt, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
        return self.request("POST", "/v1/completions", body).json["choices"][0]["text"]

    def together(self):
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            return list(pool.map(self.text, PROMPTS))


@pytest.fixture
def serve(binary, model):
    servers = []

    def start(*options):
        servers.append(Greedy(binary, model, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.process.terminate()
        server.process.wait()


@pytest.fixture(scope="module")
def alone(binary, model):
    """Each prompt's answer from a server that does nothing else and keeps nothing."""
    server = Greedy(binary, model, "--cache-type", "naive")
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
