"""A GPU from the command line to the server, against the CPU. CSGL_TEST_GPU names the device, as --device does."""

import concurrent.futures
import json
import math
import os

import pytest

from serving import Server

DEVICE = os.environ.get("CSGL_TEST_GPU", "")
CONFIG = {"model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000,
          "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000,
          "tie_word_embeddings": True}

pytestmark = pytest.mark.skipif(not DEVICE, reason="CSGL_TEST_GPU names no GPU")


@pytest.fixture(scope="module", params=["bf16", "mlx_q4", "Q8_0"])
def weights(request, tmp_path_factory):
    """The options for a model of made-up weights of each type."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return ("--random-weights", folder, "--quantization", request.param)


def generate(csgl, weights, device, cache):
    result = csgl("generate", *weights, "--device", device, "--activations", "float", "--kv-cache-dtype", cache,
                  "--temperature", "0", "--max-tokens", "12", "--json", "--logprobs", "2", "the way of a request")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("cache", ["f32", "int8"])
def test_tokens_and_logprobs_are_the_cpus(csgl, weights, cache):
    expected, got = generate(csgl, weights, "cpu", cache), generate(csgl, weights, DEVICE, cache)
    n_compared = 0
    for ours, theirs in zip(got["tokens"], expected["tokens"], strict=True):
        best, second = (top["logprob"] for top in theirs["top_logprobs"][:2])
        if ours["id"] != theirs["id"]:
            assert best - second < 4e-3, (ours, theirs)  # a near-tie: what follows has another past
            break
        assert math.isclose(ours["logprob"], theirs["logprob"], abs_tol=1e-3), (ours, theirs)
        n_compared += 1
    assert n_compared >= 1


def test_a_cache_that_a_gpu_has_not_is_refused(csgl, weights):
    result = csgl("generate", *weights, "--device", DEVICE, "--kv-cache-dtype", "int4", "--max-tokens", "1", "a")
    assert result.returncode != 0
    assert "a KV cache of int4 is not possible on the GPU; use f32, f16, bf16 or int8" in result.stderr


def test_a_server_answers(binary, weights):
    server = Server(binary, None, *map(str, weights), "--device", DEVICE)
    try:
        replies = [server.complete("the sea is") for _ in range(2)]
        assert [reply.status for reply in replies] == [200, 200]
        assert replies[0].json["choices"] == replies[1].json["choices"]
        assert replies[0].json["usage"]["completion_tokens"] == 8
    finally:
        assert server.stop() == 0


def answers(binary, weights, device, requests):
    """What a server makes of requests that run side by side, and its count of generated tokens."""
    server = Server(binary, None, *map(str, weights), "--device", device, "--activations", "float",
                    "--kv-cache-dtype", "f32", "--max-running-requests", "3")
    try:
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            replies = list(pool.map(lambda fields: server.complete(**fields), requests))
        assert [reply.status for reply in replies] == [200] * len(replies), [reply.body for reply in replies]
        return [reply.json for reply in replies], server.metric("csgl_decode_tokens_total")
    finally:
        assert server.stop() == 0


def is_near_tie(logprobs, place):
    best, second = sorted(logprobs["top_logprobs"][place].values(), reverse=True)[:2]
    return best - second < 4e-3


def test_answers_side_by_side_are_the_cpus(binary, weights):
    # What ends early, what draws with penalties, and what does neither: with rows of all kinds in its steps a GPU
    # draws the same tokens, and counts those of the answers alone.
    prompts = ["the sea is", "a request on its way", "a request on its way home", "one", "so many words", "and more"]
    requests = [{"prompt": prompt, "max_tokens": 20, "logprobs": 2} for prompt in prompts]
    [first, *_], _ = answers(binary, weights, "cpu", requests[:1])
    requests += [{"prompt": prompts[0], "max_tokens": 20, "logprobs": 2, "stop": first["choices"][0]["text"][9:11]},
                 {"prompt": prompts[1], "max_tokens": 1, "logprobs": 2},
                 {"prompt": prompts[2], "max_tokens": 20, "logprobs": 2, "presence_penalty": 1.5},
                 {"prompt": prompts[3], "max_tokens": 20, "logprobs": 2, "temperature": 1, "seed": 7},
                 {"prompt": prompts[4], "max_tokens": 4, "logprobs": 2, "echo": True}]
    expected, _ = answers(binary, weights, "cpu", requests)
    got, n_decoded = answers(binary, weights, DEVICE, requests)
    n_same = 0
    for ours, theirs in zip(got, expected, strict=True):
        (ours, n_ours), (theirs, n_theirs) = [(a["choices"][0], a["usage"]["completion_tokens"]) for a in (ours, theirs)]
        pairs = zip(ours["logprobs"]["tokens"], theirs["logprobs"]["tokens"])
        different = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if different is None:
            assert (ours["text"], ours["finish_reason"], n_ours) == (theirs["text"], theirs["finish_reason"], n_theirs)
            n_same += 1
        else:
            assert is_near_tie(theirs["logprobs"], different), (ours, theirs)
    assert n_same >= len(requests) - 2
    assert n_decoded == sum(answer["usage"]["completion_tokens"] - 1 for answer in got)


def test_batches_are_measured(csgl, weights):
    result = csgl("bench_one_batch", *weights, "--device", DEVICE, "--input-len", "6", "--output-len", "3",
                  "--batch-size", "1,4", "--runs", "1", "--json")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["batch_size"] for line in lines] == [1, 4]
    assert all(line["prefill_tokens_per_s"] > 0 and line["median_itl_ms"] > 0 for line in lines)


def test_a_profile_of_some_steps_has_their_ops(csgl, weights, tmp_path):
    trace = tmp_path / "trace.json"
    result = csgl("bench_offline_throughput", *weights, "--device", DEVICE, "--num-prompts", "3", "--random-input-len",
                  "8", "--random-output-len", "8", "--profile", "--profile-start-step", "1", "--profile-steps", "2",
                  "--profile-output", trace)
    assert result.returncode == 0, result.stderr
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event.get("cat", "").startswith("step")]
    embeds = [event for event in events if event.get("name") == "embed"]
    assert len(steps) == len(embeds) == 2
