"""The benchmark, profiling and inspection commands, on tiny models."""

import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import pytest

from serving import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/models/qwen3_gqa8"
CONFIG = {"model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000,
          "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000,
          "tie_word_embeddings": True}
TIMES = [f"{part}_{what}_ms" for part in ("mean", "median", "p90", "p99") for what in ("ttft", "tpot", "itl", "e2e")]
SHAREGPT = [{"conversations": [{"from": "human", "value": f"Question number {i}: what is a tree made of?"},
                               {"from": "gpt", "value": "Of wood, of leaves and of a good deal of water."}]}
            for i in range(6)]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "small.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture(scope="module")
def server(binary, tmp_path_factory):
    """A server of random weights, so that no model has to be there."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    trace = folder / "trace.json"
    served = Server(binary, None, "--random-weights", str(folder), "--threads", "1", "--profile-output", str(trace))
    served.trace = trace
    yield served
    served.stop()


def lines_of(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def events_of(path):
    return json.loads(pathlib.Path(path).read_text())["traceEvents"]


# --- one batch ---------------------------------------------------------------------------------------------------

def test_one_batch_sweeps_and_appends_to_a_file(csgl, config, tmp_path):
    file = tmp_path / "out.jsonl"
    result = csgl("bench_one_batch", "--random-weights", config, "--batch-size", "1,3", "--input-len", "8,16",
                  "--output-len", "4", "--runs", "2", "--json", "--output-file", file)
    out = lines_of(result)
    assert [(line["batch_size"], line["input_len"]) for line in out] == [(1, 8), (1, 16), (3, 8), (3, 16)]
    assert all(line["prefill_tokens_per_s"] > 0 and line["median_itl_ms"] > 0 for line in out)
    assert [json.loads(line) for line in file.read_text().splitlines()] == out


def test_one_batch_profile_has_every_op_of_both_phases(csgl, config, tmp_path):
    trace = tmp_path / "trace.json"
    result = csgl("bench_one_batch", "--random-weights", config, "--quantization", "Q8_0", "--input-len", "8",
                  "--output-len", "5", "--runs", "1", "--profile", "--profile-output", trace)
    assert result.returncode == 0, result.stderr
    assert "of limit" in result.stdout and "GOP/s" in result.stdout
    events = events_of(trace)
    linears = [event for event in events if event["name"] == "linear" and event["tid"] == 0]
    # Four linears a layer and the head, once in prefill and in each step of decode.
    assert sum("prefill" in event["cat"] for event in linears) == 9
    assert sum("decode" in event["cat"] for event in linears) == 9 * 5
    assert all(event["args"]["bytes"] > 0 and event["dur"] >= 0 for event in linears)
    steps = [event for event in events if event.get("cat", "").startswith("step")]
    assert [step["name"] for step in steps] == ["prefill"] + ["decode"] * 5


def test_one_batch_profile_of_some_steps(csgl, config, tmp_path):
    trace = tmp_path / "trace.json"
    csgl("bench_one_batch", "--random-weights", config, "--input-len", "8", "--output-len", "6", "--runs", "1",
         "--json", "--profile", "--profile-start-step", "2", "--profile-steps", "3", "--profile-output", trace)
    assert sum(event.get("cat", "").startswith("step") for event in events_of(trace)) == 3


# --- random weights ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("quantization", ["bf16", "f16", "Q4_0", "q8_0", "Q4_K", "Q6_K", "MXFP4",
                                         "mlx_q4", "mlx_q8"])
def test_random_weights_generate_and_repeat(csgl, tmp_path, quantization):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 256}))
    command = ("generate", "--random-weights", tmp_path, "--quantization", quantization, "--temperature", "0",
               "--max-tokens", "6", "--json", "hello")
    first, second = (json.loads(csgl(*command).stdout) for _ in range(2))
    assert len(first["tokens"]) == 6 and first["tokens"] == second["tokens"]
    assert first["usage"]["prompt_tokens"] == 5  # bytes


def test_device_auto_says_what_it_chose(csgl, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    command = ("generate", "--random-weights", tmp_path, "--temperature", "0", "--max-tokens", "4", "--json", "hello")
    chosen = csgl(*command, "--device", "auto")
    assert chosen.returncode == 0, chosen.stderr
    said = [line for line in chosen.stderr.splitlines() if line.startswith("csgl: --device auto: ")]
    if said[-1] == "csgl: --device auto: the CPU":
        assert said[:-1] and all(": not " in line for line in said[:-1])  # why no GPU
        assert json.loads(chosen.stdout)["tokens"] == json.loads(csgl(*command).stdout)["tokens"]
    else:
        assert re.fullmatch(r"csgl: --device auto: (cuda|metal) .+", said[-1])
    int8 = csgl(*command, "--device", "auto", "--activations", "int8")
    assert int8.returncode == 0, int8.stderr
    if "metal" in said[-1]:  # has no kernels for it
        assert "csgl: --device auto: not metal, as --activations int8: " in int8.stderr
    else:
        assert said[-1] in int8.stderr.splitlines()


MOE = {**CONFIG, "model_type": "qwen3_moe", "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2,
       "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


@pytest.mark.parametrize("shape, word", [("moe", "moe_ffn"), ("recurrent", "gated_delta")])
def test_random_weights_of_other_families(csgl, tmp_path, shape, word):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MOE) if shape == "moe"
                    else (ROOT / "tests/models/qwen3_5_kernel2/config.json").read_text())
    result = csgl("bench_one_batch", "--random-weights", path, "--input-len", "8", "--output-len", "2", "--runs", "1",
                  "--profile", "--profile-output", tmp_path / "trace.json")
    assert result.returncode == 0, result.stderr
    assert word in result.stdout
    plan = lines_of(csgl("plan", path, "--json"))[0]
    assert plan["weight_bytes"] == sum(plan["layer_bytes"]) + plan["outside_bytes"]
    assert ("state_bytes" in plan) == (shape == "recurrent")


@pytest.mark.parametrize("arguments, word", [
    (("generate", "--random-weights", "/no/such.json", "x"), "/no/such.json"),
    (("generate", "--random-weights", "a", "--model-path", "b", "x"), "not both"),
    (("generate", "--model-path", "a", "--quantization", "bf16", "x"), "--random-weights"),
    (("bench_one_batch", "--model-path", "a", "--batch-size", "1,x"), "--batch-size"),
    (("bench_one_batch", "--model-path", "a", "--input-len", "0"), "--input-len"),
    (("bench_serving", "--base-url", "http://127.0.0.1:9", "--vocab-size", "9"), "127.0.0.1:9"),
    (("bench_ops", "fly"), "fly"),
    (("plan",), "MODEL"),
    (("plan", "/no/such"), "/no/such"),
])
def test_wrong_command_lines_get_one_sentence(csgl, arguments, word):
    result = csgl(*arguments)
    assert result.returncode in (1, 2)
    assert len(result.stderr.splitlines()) == 1 and word in result.stderr, result.stderr


def test_random_weights_of_an_unknown_type_list_the_types(csgl, config):
    result = csgl("generate", "--random-weights", config, "--quantization", "int3", "x")
    assert result.returncode == 1 and "Q4_0" in result.stderr


# --- offline -----------------------------------------------------------------------------------------------------

def offline(csgl, config, *arguments):
    return lines_of(csgl("bench_offline_throughput", "--random-weights", config, "--json", *arguments))[0]


def test_offline_throughput_counts_every_token(csgl, config):
    out = offline(csgl, config, "--num-prompts", "12", "--random-input-len", "32", "--random-output-len", "6")
    assert out["completed"] == 12
    assert out["total_input_tokens"] == 12 * 32 and out["total_output_tokens"] == 12 * 6
    assert out["output_throughput"] > 0 and out["p99_e2e_ms"] >= out["median_e2e_ms"] > 0


def test_offline_seed_repeats_lengths(csgl, config):
    options = ("--num-prompts", "9", "--random-input-len", "32", "--random-output-len", "6",
               "--random-range-ratio", "0.2", "--seed")
    one, same, other = (offline(csgl, config, *options, seed)["total_input_tokens"] for seed in ("1", "1", "2"))
    assert one == same != other


def test_shared_prefixes_come_from_the_cache_unless_it_is_off(csgl, config):
    options = ("--dataset-name", "generated-shared-prefix", "--num-prompts", "8", "--gsp-num-groups", "2",
               "--gsp-system-prompt-len", "64", "--gsp-question-len", "4", "--gsp-output-len", "2")
    assert offline(csgl, config, *options)["cached_tokens"] == 6 * 64
    assert offline(csgl, config, *options, "--disable-radix-cache")["cached_tokens"] == 0


def test_offline_reads_sharegpt(csgl, config, tmp_path):
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(SHAREGPT))
    out = offline(csgl, config, "--dataset-name", "sharegpt", "--dataset-path", path, "--num-prompts", "4")
    assert out["completed"] == 4 and out["total_output_tokens"] == 4 * len(SHAREGPT[0]["conversations"][1]["value"])
    path.write_text("[{]")
    result = csgl("bench_offline_throughput", "--random-weights", config, "--dataset-name", "sharegpt",
                  "--dataset-path", path)
    assert result.returncode == 1 and str(path) in result.stderr


def test_offline_profile(csgl, config, tmp_path):
    trace = tmp_path / "trace.json"
    offline(csgl, config, "--num-prompts", "3", "--random-input-len", "8", "--random-output-len", "8", "--profile",
            "--profile-start-step", "1", "--profile-steps", "2", "--profile-output", trace)
    assert sum(event.get("cat", "").startswith("step") for event in events_of(trace)) == 2


# --- a server ----------------------------------------------------------------------------------------------------

def test_serving_reports_every_time(csgl, server):
    out = lines_of(csgl("bench_serving", "--base-url", server.url, "--num-prompts", "6", "--random-input-len", "16",
                        "--random-output-len", "5", "--json"))[0]
    assert out["completed"] == 6 and out["failed"] == 0 and out["max_concurrent"] == 6
    assert out["total_input_tokens"] == 6 * 16 and out["total_output_tokens"] == 6 * 5
    assert all(out[name] > 0 for name in TIMES)


def test_serving_keeps_rate_and_concurrency(csgl, server):
    out = lines_of(csgl("bench_serving", "--base-url", server.url, "--num-prompts", "10", "--random-input-len", "4",
                        "--random-output-len", "2", "--request-rate", "20", "--json"))[0]
    assert 0.15 < out["duration_s"] < 3  # nine gaps of 50 ms on average
    out = lines_of(csgl("bench_serving", "--base-url", server.url + "/v1", "--num-prompts", "6",
                        "--random-input-len", "4", "--random-output-len", "8", "--max-concurrency", "2", "--json"))[0]
    assert out["max_concurrent"] == 2 and out["completed"] == 6


def test_serving_says_why_requests_fail(csgl, server):
    result = csgl("bench_serving", "--base-url", server.url, "--num-prompts", "2", "--random-input-len", "5000",
                  "--json")
    assert result.returncode == 1 and "400" in result.stderr and result.stdout == ""
    result = csgl("bench_serving", "--base-url", server.url, "--api", "chat")
    assert result.returncode == 1 and "--api completions" in result.stderr


def test_one_batch_server_sweeps(csgl, server):
    out = lines_of(csgl("bench_one_batch_server", "--base-url", server.url, "--batch-size", "1,4", "--input-len",
                        "12", "--output-len", "3", "--json"))
    assert [(line["batch_size"], line["total_input_tokens"]) for line in out] == [(1, 12), (4, 48)]


def test_profile_of_a_server_has_all_processes_on_one_clock(csgl, server):
    result = csgl("bench_serving", "--base-url", server.url, "--num-prompts", "3", "--random-input-len", "8",
                  "--random-output-len", "4", "--profile", "--json")
    assert result.returncode == 0 and str(server.trace.parent) in result.stderr
    path = json.loads(result.stderr[result.stderr.index("{"):])["file"]
    events = events_of(path)
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert set(names) == {"frontend", "detokenizer", "scheduler"}
    of = {name: [event for event in events if event["pid"] == pid] for name, pid in names.items()}
    requests = [event for event in of["frontend"] if event["name"] == "http request" and event["ph"] == "b"]
    assert len(requests) == 3
    assert sum(event["name"] == "tokenize" for event in of["detokenizer"]) == 3
    assert sum(event["name"] == "detokenize" for event in of["detokenizer"]) == 12
    stages = {event["name"] for event in of["scheduler"] if event.get("cat") == "request"}
    assert stages == {"queue", "prefill", "decode"}
    assert any(event["name"] == "linear" for event in of["scheduler"])
    begin = min(event["ts"] for event in requests)
    assert all(event["ts"] >= begin for event in of["scheduler"] if event["ph"] == "X")


def test_profile_of_so_many_steps_ends_by_itself(server):
    assert server.post("/start_profile", {"start_step": 1, "num_steps": 2}).status == 200
    assert server.post("/start_profile", {}).error["code"] == "profile_running"
    assert server.complete("abc", max_tokens=6).status == 200
    for _ in range(100):
        reply = server.post("/stop_profile", "")
        if reply.status == 409:
            break
    assert reply.error["code"] == "no_profile"
    newest = max(server.trace.parent.glob("trace*.json"), key=os.path.getmtime)
    assert sum(event.get("cat", "").startswith("step") for event in events_of(newest)) == 2
    assert server.post("/start_profile", {"output_dir": "/tmp"}).status == 400
    assert server.post("/start_profile", {"num_steps": -1}).status == 400


class Canned(http.server.BaseHTTPRequestHandler):
    """Another server: no usage, a comment, and one answer that breaks off."""
    requests = []

    def do_GET(self):
        body = b'{"data": [{"id": "canned"}]}' if self.path == "/v1/models" else b"{}"
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.requests.append((dict(self.headers), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b": hello\n\n" + b'data: {"choices": [{"text": "a"}]}\n\n' * 3)
        if len(self.requests) != 2:
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *arguments):
        pass


def test_serving_drives_servers_that_are_not_csgl(csgl):
    with http.server.HTTPServer(("127.0.0.1", 0), Canned) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        out = lines_of(csgl("bench_serving", "--base-url", f"http://127.0.0.1:{other.server_port}", "--num-prompts",
                            "3", "--random-input-len", "4", "--api-key", "secret", "--max-concurrency", "1",
                            "--json"))[0]
        other.shutdown()
    assert out["completed"] == 2 and out["failed"] == 1
    assert out["total_output_tokens"] == 6  # its events
    headers, body = Canned.requests[0]
    assert headers["Authorization"] == "Bearer secret"
    assert body["model"] == "canned" and len(body["prompt"]) == 4 and max(body["prompt"]) < 1000


# --- inspection --------------------------------------------------------------------------------------------------

def test_check_env_tells_the_machine(csgl):
    out = lines_of(csgl("check_env", "--json"))[0]
    assert out["memory_bytes"] > 1 << 28 and out["threads"] >= 1
    assert out["kernels"] and out["libzmq"] and out["nvidia_driver"]
    assert "processor" in csgl("show_config").stdout


def test_check_env_measures(csgl):
    out = lines_of(csgl("check_env", "--json", "--measure"))[0]
    assert out["read_huge_gb_per_s_one_thread"] > 0.1 and out["f32_gop_per_s_all_threads"] > 0.1


def test_plan_adds_up(csgl, config):
    out = lines_of(csgl("plan", config, "--json", "--quantization", "Q8_0"))[0]
    assert out["weight_bytes"] == sum(out["layer_bytes"]) + out["outside_bytes"]
    assert out["layers"] == 2 == len(out["layer_bytes"])
    embedding = CONFIG["vocab_size"] * CONFIG["hidden_size"] * 34 // 32
    assert out["outside_bytes"] >= 2 * embedding  # the head's own copy and the rows that are looked up
    beside = [out[part] for part in ("program_bytes", "text_bytes", "table_bytes")]
    assert min(beside) > 0 and out["beside_bytes"] == sum(beside)
    assert out["total_bytes"] == sum(out[part] for part in ("weight_bytes", "workspace_bytes", "kv_bytes", "beside_bytes"))
    more = lines_of(csgl("plan", config, "--json", "--quantization", "Q8_0", "--num-tokenizer", "2"))[0]
    assert more["program_bytes"] == out["program_bytes"] * 6 // 4 and more["text_bytes"] > out["text_bytes"]
    assert out["kv_bytes_per_token"] == 2 * 2 * 2 * 32 * 2  # layers, k and v, heads, dimensions, bf16
    assert out["longest_context"]["1"] == 1024
    narrow = lines_of(csgl("plan", config, "--json", "--kv-cache-gb", "0.0001"))[0]
    assert narrow["longest_context"]["1"] < 1024
    assert narrow["longest_context"]["2"] <= narrow["longest_context"]["1"] // 2 + 16


def test_plan_is_what_loading_takes(csgl):
    out = lines_of(csgl("plan", TINY, "--json"))[0]
    assert out["weights_from"] == "as in the files"
    text = csgl("plan", TINY).stdout
    assert "each of layers" in text and "longest context" in text


@pytest.mark.parametrize("op, arguments", [("linear", ("--n", "64", "--k", "128", "--quantization", "bf16")),
                                           ("linear", ("--n", "64", "--k", "256", "--quantization", "Q4_K")),
                                           ("moe", ("--n", "64", "--k", "128", "--num-experts", "4", "--top-k", "2")),
                                           ("gdn", ("--num-heads", "4", "--num-kv-heads", "2", "--head-dim", "32",
                                                    "--batch-size", "2")),
                                           ("attention", ("--context-len", "64", "--num-heads", "4",
                                                          "--num-kv-heads", "2", "--head-dim", "32"))])
def test_bench_ops(csgl, op, arguments):
    out = lines_of(csgl("bench_ops", op, "--rows", "1,3", "--runs", "1", "--json", *arguments))
    assert [line["rows"] for line in out] == [1, 3]
    assert all(line["us"] > 0 and line["of_limit"] > 0 for line in out)


# --- the plot ----------------------------------------------------------------------------------------------------

def test_plot_draws_svg(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n".join(json.dumps({"batch_size": n, "decode_tokens_per_s": 10 * n, "input_len": i})
                               for i in (1, 2) for n in (1, 2, 4)))
    out = tmp_path / "a.svg"
    subprocess.run([sys.executable, ROOT / "tools/plot_bench.py", lines, "--x", "batch_size", "--y",
                    "decode_tokens_per_s", "--by", "input_len", "--output", out], check=True)
    text = out.read_text()
    assert text.startswith("<svg") and text.count("<polyline") == 2
