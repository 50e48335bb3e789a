"""The HTTP API of csgl serve, over plain HTTP, with the default model."""

import json
import re
import time

import pytest
from serving import Server


@pytest.fixture(scope="module")
def server(binary, model):
    running = Server(binary, model, "--context-length", "2048", "--served-model-name", "org/small",
                     "--served-model-name", "alias")
    yield running
    assert running.stop() == 0


def text_of(reply):
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]["message"]["content"]


def test_a_chat_completion_has_openais_shape(server):
    answer = server.chat(seed=1).json
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "org/small"
    assert abs(answer["created"] - time.time()) < 60
    choice = answer["choices"][0]
    assert choice["index"] == 0 and choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    usage = answer["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert answer["timings"]["predicted_n"] == 12


def test_a_stream_says_the_same_one_event_a_token(server):
    whole = text_of(server.chat(max_tokens=24))
    reply = server.chat(max_tokens=24, stream=True, stream_options={"include_usage": True})
    events = reply.events()
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    pieces = [e["choices"][0]["delta"]["content"] for e in events if e["choices"]
              and e["choices"][0]["delta"].get("content")]
    assert "".join(pieces) == whole
    assert 20 <= len(pieces) <= 24
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 24
    assert len({e["id"] for e in events}) == 1


def test_completions_take_text_ids_and_lists(server):
    text = "The quick brown fox"
    ids = server.post("/tokenize", {"prompt": text}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["prompt"] == text
    expected = server.complete(text).json["choices"][0]["text"]
    assert server.complete(ids).json["choices"][0]["text"] == expected
    answer = server.complete([text, "The sea is", text], n=2, echo=True).json
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert [c["text"] for c in answer["choices"]][::2][0] == text + expected
    assert answer["choices"][4]["text"] == text + expected
    assert answer["usage"]["completion_tokens"] == 48


def test_a_streamed_completion_says_the_same(server):
    events = server.complete(stream=True).events()
    assert {e["object"] for e in events} == {"text_completion"}
    assert "".join(e["choices"][0]["text"] for e in events) == server.complete().json["choices"][0]["text"]


def test_logprobs_of_completions_lie_where_the_tokens_do(server):
    for prompt in ("The sea is", "Ein Märchen: 深い海"):
        choice = server.complete(prompt, logprobs=3, max_tokens=16, echo=False).json["choices"][0]
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 16
        for token, value, top, offset in zip(logprobs["tokens"], logprobs["token_logprobs"],
                                             logprobs["top_logprobs"], logprobs["text_offset"]):
            assert value <= 0 and len(top) == 3
            assert max(top.values()) == pytest.approx(value, abs=1e-5)  # greedy
            if not token.startswith("bytes:") and "�" not in choice["text"]:
                assert choice["text"].startswith(token, offset)


def test_echo_scores_the_prompt(server):
    """As the model scored the same tokens when it said them; ids are echoed too."""
    text = "Once upon a time, in a small house by the sea,"
    said = server.complete(text, logprobs=2, max_tokens=24).json["choices"][0]
    ids = server.post("/tokenize", {"prompt": text + said["text"]}).json["tokens"]
    for prompt in (text + said["text"], ids):
        answer = server.complete(prompt, logprobs=2, max_tokens=3, echo=True).json
        choice, logprobs = answer["choices"][0], answer["choices"][0]["logprobs"]
        assert choice["text"].startswith(text + said["text"])
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert {len(column) for column in logprobs.values()} == {len(ids) + 3}
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        for token, top, offset in zip(logprobs["tokens"], logprobs["top_logprobs"], logprobs["text_offset"]):
            assert choice["text"].startswith(token, offset)
            assert top is None or len(top) == 2
        scored = logprobs["token_logprobs"][len(ids) - 24:len(ids)]
        if logprobs["tokens"][len(ids) - 24:len(ids)] == said["logprobs"]["tokens"]:
            # Activations of 8 bits: the width of a step is part of the result.
            assert scored == pytest.approx(said["logprobs"]["token_logprobs"], abs=0.3)
        # A harness calls a continuation greedy when its tokens' logprobs are the largest.
        assert sum(value == max(top.values()) for value, top
                   in zip(scored, logprobs["top_logprobs"][len(ids) - 24:])) >= 22
        assert answer["usage"]["prompt_tokens"] == len(ids) and answer["usage"]["completion_tokens"] == 3


def test_a_streamed_echo_says_the_same(server):
    fields = {"prompt": ["The sea is", "The quick brown"], "logprobs": 1, "max_tokens": 2, "echo": True}
    whole = server.complete(**fields).json["choices"]
    events = server.complete(stream=True, **fields).events()
    for choice in whole:
        mine = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        values = [v for c in mine if c["logprobs"] for v in c["logprobs"]["token_logprobs"]]
        assert values[0] is None
        assert values[1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=0.3)


def test_logprobs_of_chats(server):
    choice = server.chat(logprobs=True, top_logprobs=2).json["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 12
    assert b"".join(bytes(e["bytes"]) for e in entries).decode() == choice["message"]["content"]
    assert all(len(e["top_logprobs"]) == 2 for e in entries)
    streamed = server.chat(logprobs=True, top_logprobs=2, stream=True).events()
    found = [entry["token"] for e in streamed for entry in (e["choices"][0]["logprobs"] or {}).get("content", [])]
    assert found == [e["token"] for e in entries]


def test_a_stop_string_ends_the_answer_before_it(server):
    whole = text_of(server.chat(max_tokens=40))
    stop = whole[len(whole) // 2:len(whole) // 2 + 4]
    answer = server.chat(max_tokens=40, stop=[stop, "\x01never"]).json
    assert answer["choices"][0]["message"]["content"] == whole[:whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 40


def test_a_seed_repeats_and_choices_differ(server):
    fields = {"temperature": 1.5, "seed": 7, "n": 3, "max_tokens": 24}
    first, second = server.chat(**fields).json, server.chat(**fields).json
    texts = [c["message"]["content"] for c in first["choices"]]
    assert texts == [c["message"]["content"] for c in second["choices"]]
    assert len(set(texts)) > 1
    assert [c["index"] for c in first["choices"]] == [0, 1, 2]


def test_a_prefix_is_reused(server):
    text = "A long story about a fisherman and his boat. " * 12
    first, second = server.complete(text).json, server.complete(text + "And").json
    n = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= n - 32
    server.post("/flush_cache", {})
    assert server.complete(text).json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    salted = server.complete(text, cache_salt="mine").json
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_prompt_that_does_not_fit_is_400(server):
    for reply in (server.complete("word " * 5000), server.chat("word " * 5000, stream=True)):
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert "2048" in reply.error["message"]


@pytest.mark.parametrize("fields, param", [
    ({"temperature": 3}, "temperature"),
    ({"n": 0}, "n"),
    ({"nonsense": 1}, "nonsense"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"logit_bias": {"999999999": 1}}, "logit_bias"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": 1}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
])
def test_bad_fields_are_named(server, fields, param):
    reply = server.chat(**fields)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error" and reply.error["message"]


@pytest.mark.parametrize("body", ["", "{", "[]", '{"messages": [', "\x00", '{"messages": "x"}'])
def test_bad_bodies_are_400(server, body):
    reply = server.post("/v1/chat/completions", body)
    assert reply.status == 400 and reply.error["message"]


def test_models_are_named_and_others_refused(server):
    assert [m["id"] for m in server.get("/v1/models").json["data"]] [:2] == ["org/small", "alias"]
    for name in ("org/small", "small", "alias"):
        assert server.chat(model=name).status == 200
        assert server.get("/v1/models/" + name).status == 200
    reply = server.chat(model="gpt-4o")
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found" and "org/small" in reply.error["message"]


def test_paths_and_methods(server):
    assert server.get("/nowhere").status == 404
    assert server.get("/v1/chat/completions").status == 405
    assert server.get("/version").json["version"]
    assert server.get("/v1").json == {"status": "ok"}
    assert server.get("/health").status == 200
    assert server.get("/get_model_info").json["context_length"] == 2048
    assert server.get("/get_server_info").json["internal_states"][0]["context_length"] == 2048
    reply = server.get("/version", **{"x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"


def test_generate_in_both_forms(server):
    lines = server.post("/generate", {"prompt": "The sea is", "max_tokens": 4, "ignore_eos": True}).body
    assert lines.endswith("data: [DONE]\n") and lines.startswith("data: ")
    answer = server.post("/generate", {"text": "The sea is",
                                       "sampling_params": {"max_new_tokens": 4, "temperature": 0}}).json
    assert answer["meta_info"]["completion_tokens"] == 4
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert answer["text"] == server.complete(max_tokens=4).json["choices"][0]["text"]


def wait_until_idle(server, seconds=5):
    end = time.time() + seconds
    while time.time() < end:
        if server.get("/health").json["running"] == 0:
            return True
        time.sleep(0.02)
    return False


def test_a_client_that_leaves_frees_its_row(server):
    for stream in (False, True):
        connection = server.connect()
        connection.request("POST", "/v1/completions",
                           json.dumps({"prompt": "Count:", "max_tokens": 1900, "ignore_eos": True,
                                       "stream": stream}))
        end = time.time() + 10
        while server.get("/health").json["running"] == 0 and time.time() < end:
            time.sleep(0.01)
        connection.close()
        assert wait_until_idle(server, 2)


def test_a_request_can_be_aborted_by_its_id(server):
    connection = server.connect()
    connection.request("POST", "/v1/completions",
                       json.dumps({"prompt": "Count:", "max_tokens": 1900, "ignore_eos": True}),
                       {"x-request-id": "to-abort"})
    end = time.time() + 10
    while server.get("/health").json["running"] == 0 and time.time() < end:
        time.sleep(0.01)
    assert server.post("/abort_request", {"rid": "to-abort"}).json == {"aborted": 1}
    reply = connection.getresponse()
    assert reply.status == 400 and json.loads(reply.read())["error"]["code"] == "request_aborted"
    assert wait_until_idle(server, 2)


def test_metrics_move(server):
    name = 'csgl_requests_total{endpoint="completions",outcome="length"}'
    before, tokens = server.metric(name), server.metric("csgl_generated_tokens_total")
    server.complete(max_tokens=5)
    assert server.metric(name) == before + 1
    assert server.metric("csgl_generated_tokens_total") == tokens + 5
    text = server.get("/metrics").body
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r'csgl_[a-z_]+(\{[^}]*\})? [0-9.e+-]+', line), line


def test_one_connection_serves_many_requests(server):
    connection = server.connect()
    for stream in (True, False, True):
        connection.request("POST", "/v1/completions",
                           json.dumps({"prompt": "The", "max_tokens": 2, "stream": stream}))
        reply = connection.getresponse()
        assert reply.status == 200 and reply.read()
    connection.close()


def test_the_page_asks_nobody_else(server):
    reply = server.get("/")
    assert reply.headers["content-type"].startswith("text/html")
    assert not re.search(r'(?:src|href)="(?!data:)', reply.body)
    assert not re.search(r"https?://", reply.body)
    assert 'lang="en"' in reply.body and "aria-live" in reply.body


def test_keys_are_asked_for(binary, model):
    server = Server(binary, model, "--api-key", "one", "--api-key", "two")
    try:
        assert server.get("/health").status == 200
        reply = server.get("/v1/models")
        assert reply.status == 401 and reply.error["code"] == "invalid_api_key"
        assert server.get("/v1/models", Authorization="Bearer three").status == 401
        assert server.get("/v1/models", Authorization="Bearer two").status == 200
    finally:
        server.stop()
