"""Models with recurrent layers behind HTTP: what the cache keeps of their states, and what it saves."""

import json
import pathlib
import string
import time

import pytest
from serving import Server

MODELS = pathlib.Path(__file__).resolve().parents[2] / "tests/models"
HYBRIDS = ["gguf_qwen35", "gguf_qwen35moe", "gguf_qwen3next"]
PAGE = 16  # the default of --page-size
SYSTEM = "You know the tides of every harbour and answer in one short line, whatever you are asked for."
QUESTIONS = ["When is high water at noon?", "Which way does the current run?", "How deep is it there?"]


class Hybrid(Server):
    """A chat with a tiny model, whose answers are made of capitals: text of which the same ids are made again."""

    def __init__(self, binary, name, *options):
        super().__init__(binary, str(MODELS / name / "model.gguf"), "--activations", "float", "--kv-cache-dtype", "f32",
                         *options)
        self.capitals = {str(self.tokens(letter)[0]): 100 for letter in string.ascii_uppercase}

    def tokens(self, text):
        return self.post("/tokenize", {"prompt": text}).json["tokens"]

    def ask(self, messages, **fields):
        fields = {"max_tokens": 24, "temperature": 0, "logit_bias": self.capitals, **fields}
        reply = self.post("/v1/chat/completions", {"messages": messages, **fields})
        assert reply.status == 200, reply.body
        return reply


def chat(*texts):
    """Messages of the system, then of user and assistant in turn."""
    roles = ["system"] + ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts)]


def text_of(reply):
    return reply.json["choices"][0]["message"]["content"]


def cached_tokens(reply):
    return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(params=HYBRIDS)
def server(binary, request):
    running = Hybrid(binary, request.param)
    yield running
    assert running.stop() == 0


@pytest.fixture
def forgetful(binary, server, request):
    """The same model without a cache."""
    running = Hybrid(binary, request.node.callspec.params["server"], "--cache-type", "naive")
    yield running
    assert running.stop() == 0


def test_another_question_begins_behind_the_system_prompt(server, forgetful):
    n_system = len(server.tokens(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"))
    for i, question in enumerate(QUESTIONS):
        reply = server.ask(chat(SYSTEM, question))
        # The state is kept at a token, not at a page: nothing of the system prompt is computed again.
        assert cached_tokens(reply) == (n_system if i else 0)
        assert text_of(reply) == text_of(forgetful.ask(chat(SYSTEM, question)))
    assert server.metric('csgl_prefix_hit_tokens_total{kind="snapshot"}') == 2 * n_system


def test_a_turn_computes_its_own_tokens(server, forgetful):
    texts, known = [SYSTEM], 0
    for question in QUESTIONS:
        texts.append(question)
        computed = -server.metric("csgl_prefill_tokens_total")
        reply = server.ask(chat(*texts))
        computed += server.metric("csgl_prefill_tokens_total")
        usage = reply.json["usage"]
        assert computed == usage["prompt_tokens"] - cached_tokens(reply)
        assert computed <= usage["prompt_tokens"] - known + PAGE
        assert text_of(reply) == text_of(forgetful.ask(chat(*texts)))
        known = usage["total_tokens"]
        texts.append(text_of(reply))


def test_a_stream_from_a_state_says_the_same(server):
    whole = text_of(server.ask(chat(SYSTEM, QUESTIONS[0])))
    reply = server.ask(chat(SYSTEM, QUESTIONS[0]), stream=True, stream_options={"include_usage": True})
    events = reply.events()
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"]) == whole
    details = events[-1]["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] > events[-1]["usage"]["prompt_tokens"] - PAGE


def test_what_is_cancelled_gives_its_states_back(server, forgetful):
    connection = server.connect()
    body = {"messages": chat(SYSTEM, QUESTIONS[0]), "n": 64, "max_tokens": 256, "logit_bias": server.capitals,
            "stream": True, "temperature": 1, "seed": 1}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    reply = connection.getresponse()
    assert reply.status == 200 and reply.read(64)
    connection.close()
    reply.close()
    end = time.time() + 10
    while server.metric("csgl_requests_running") + server.metric("csgl_requests_waiting") and time.time() < end:
        time.sleep(0.01)
    assert server.metric("csgl_requests_running") == 0 and server.metric("csgl_requests_waiting") == 0
    assert server.metric("csgl_decode_tokens_total") < 64 * 256
    assert server.metric('csgl_state_slots{state="used"}') == 0
    reply = server.ask(chat(SYSTEM, QUESTIONS[0]))
    assert cached_tokens(reply) > reply.json["usage"]["prompt_tokens"] - PAGE
    assert text_of(reply) == text_of(forgetful.ask(chat(SYSTEM, QUESTIONS[0])))
