"""What happens when a GPU fails, on the emulator: CSGL_EMULATOR_FAULT and CSGL_EMULATOR_MEMORY make it fail."""

import concurrent.futures
import json
import re
import time

import pytest

from serving import Server

CONFIG = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 300,
          "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def weights(csgl, tmp_path_factory):
    """The options for a tiny model on the emulator."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    options = ("--random-weights", str(folder), "--device", "emulator")
    result = csgl("generate", *options, "--max-tokens", "1", "a")
    if "has no emulator" in result.stderr:
        pytest.skip("this csgl has no emulator: it is built with -DCSGL_EMULATOR=ON")
    assert result.returncode == 0, result.stderr
    return options


def starts(server):
    """How often the scheduler was started."""
    return sum("started in" in line for line in server.lines)


def wait_for_second_start(server, seconds=30):
    end = time.time() + seconds
    while starts(server) < 2 or server.get("/health").status != 200:
        assert time.time() < end, server.lines
        time.sleep(0.05)


def test_a_fault_ends_requests_with_an_error_and_the_scheduler_comes_back(binary, weights, monkeypatch):
    # A step of this model takes some twenty dispatches: the first answer needs fewer than 400 in all, the
    # second more.
    monkeypatch.setenv("CSGL_EMULATOR_FAULT", "400")
    server = Server(binary, None, *weights, "--max-prefill-length", "64")
    try:
        first = server.complete("a", max_tokens=2)
        assert first.status == 200
        stream = server.complete("a", max_tokens=100, ignore_eos=True, stream=True)
        events = [json.loads(part[6:]) for part in stream.body.split("\n\n") if part.startswith("data: {")]
        assert len(events) > 2 and "dispatch 400 was to fail" in events[-1]["error"]["message"], stream.body
        wait_for_second_start(server)
        again = server.complete("a", max_tokens=2)
        assert again.json["choices"] == first.json["choices"]
        assert any("dispatch 400 was to fail" in line for line in server.lines), server.lines
        assert starts(server) == 2
    finally:
        assert server.stop() == 0


def test_a_fault_ends_the_requests_of_all_steps_under_way(binary, weights, monkeypatch):
    monkeypatch.setenv("CSGL_EMULATOR_FAULT", "2500")
    server = Server(binary, None, *weights, "--max-prefill-length", "64")
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            prompts = ["a", "one more", "and another one"]
            replies = list(pool.map(lambda prompt: server.complete(prompt, max_tokens=200, ignore_eos=True), prompts))
        assert [reply.status for reply in replies] == [500] * 3, [reply.body for reply in replies]
        assert all("dispatch 2500 was to fail" in reply.error["message"] for reply in replies)
        wait_for_second_start(server)
        assert server.complete("a", max_tokens=2).status == 200
    finally:
        assert server.stop() == 0


def test_a_model_that_does_not_fit_is_refused_with_figures(csgl, weights, monkeypatch):
    monkeypatch.setenv("CSGL_EMULATOR_MEMORY", str(128 << 10))
    result = csgl("generate", *weights, "--max-tokens", "1", "a")
    assert result.returncode != 0
    assert re.search(r"the weights need \d+ MiB.* may be used \(0 MiB available", result.stderr), result.stderr


def test_a_context_that_does_not_fit_is_refused_or_made_shorter(csgl, weights, monkeypatch):
    monkeypatch.setenv("CSGL_EMULATOR_MEMORY", str(24 << 20))
    options = (*weights, "--max-tokens", "1", "--kv-cache-dtype", "f32")
    result = csgl("generate", *options, "a")
    assert result.returncode == 0, result.stderr
    result = csgl("generate", *options, "--context-length", "262144", "a")
    assert result.returncode != 0
    assert re.search(r"262144 tokens needs 64 MiB and 2\d MiB are left; lower --context-length", result.stderr), result.stderr
