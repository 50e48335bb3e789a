"""The command line, driven as a user drives it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests/models/smollm2/reference.json"


def one_sentence(result):
    """The error of a failed command: exit status 1 or 2 and one line on stderr."""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("csgl: memory:")]
    assert result.returncode in (1, 2), result.stderr
    assert len(lines) == 1 and lines[0].startswith("csgl: error: "), result.stderr
    return lines[0]


def test_version_and_help(csgl):
    version = csgl("--version").stdout.splitlines()
    assert re.fullmatch(r"csgl \d+\.\d+\.\d+", version[0])
    facts = dict(line.split(": ", 1) for line in version[1:])
    assert re.fullmatch(r"unknown|[0-9a-f]{7,40}(-dirty)?", facts["commit"])
    assert re.fullmatch(r"\w+ [\d.]+", facts["compiler"])
    assert facts["kernels"].split("; ")[0] == "scalar" and facts["this machine"] in facts["kernels"].split("; ")
    assert "generate" in csgl("--help").stdout
    text = csgl("generate", "--help").stdout
    for option in ("--model-path", "--temperature", "--stop", "--activations", "--kv-cache-dtype"):
        assert option in text


@pytest.mark.parametrize("arguments, word", [
    (("generate", "--no-such-option"), "--no-such-option"),
    (("generate", "--max-tokens", "many"), "--max-tokens"),
    (("generate", "--temperature", "-1"), "--temperature"),
    (("generate", "--activations", "int3"), "int3"),
    (("generate", "--max-tokens"), "needs a value"),
    (("generate", "a", "b"), "positional"),
    (("generate", "x"), "--model-path"),
    (("generate", "--model-path", "/no/such/model", "x"), "/no/such/model"),
    (("generate", "--model-path", "x", "--system", "y", "z"), "--chat"),
    (("generate", "--model-path", "x", "--logprobs", "3", "z"), "--json"),
    (("generate", "--model-path", "x", "--logit-bias", "nine=1", "z"), "--logit-bias"),
])
def test_wrong_command_lines_get_one_sentence(csgl, arguments, word):
    assert word in one_sentence(csgl(*arguments))


def test_unknown_command(csgl):
    result = csgl("fly")
    assert result.returncode == 2 and "fly" in result.stderr


@pytest.mark.parametrize("name, content, word", [
    ("empty.gguf", b"", "empty.gguf"),
    ("text.gguf", b"this is no model, only some text that is long enough for a header", "text.gguf"),
    ("cut.gguf", None, "cut.gguf"),
])
def test_damaged_files_get_one_sentence(csgl, model, tmp_path, name, content, word):
    path = tmp_path / name
    path.write_bytes(pathlib.Path(model).read_bytes()[:3_000_000] if content is None else content)
    assert word in one_sentence(csgl("generate", "--model-path", path, "x"))


def test_folders_without_a_model_get_one_sentence(csgl, tmp_path):
    assert str(tmp_path) in one_sentence(csgl("generate", "--model-path", tmp_path, "x"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"')
    assert "config.json" in one_sentence(csgl("generate", "--model-path", tmp_path, "x"))


def test_greedy_chat_is_the_reference(generate):
    reference = json.loads(REFERENCE.read_text())["chat"]
    out = generate("--chat", "--temperature", "0", "--activations", "float",
                   "What is the capital of France?")
    assert out["text"] == reference["text"] and "Paris" in out["text"]
    assert [token["id"] for token in out["tokens"]] == reference["answer"]
    assert out["usage"]["prompt_tokens"] == len(reference["tokens"])
    assert out["finish_reason"] == "stop"


def test_greedy_text_is_the_reference(generate):
    prompts = json.loads(REFERENCE.read_text())["prompts"]
    for prompt in prompts[:3]:
        out = generate("--temperature", "0", "--activations", "float", "--kv-cache-dtype", "f32",
                       "--max-tokens", "64", "--ignore-eos", prompt["text"])
        assert [token["id"] for token in out["tokens"]] == prompt["continuation"]
        assert out["text"] == prompt["continuation_text"]


def test_prompt_from_argument_file_and_stdin_are_one(generate, tmp_path):
    text = "Once upon a time"
    path = tmp_path / "prompt.txt"
    path.write_text(text)
    options = ("--temperature", "0", "--max-tokens", "12")
    answer = generate(*options, text)["text"]
    assert generate(*options, "--file", str(path))["text"] == answer
    assert generate(*options, stdin=text)["text"] == answer


def test_streams_the_same_text_as_json(csgl, generate, model):
    options = ("--temperature", "0", "--max-tokens", "20")
    result = csgl("generate", "--model-path", model, *options, "The sea")
    assert result.stdout == generate(*options, "The sea")["text"] + "\n"
    assert "tokens/s" in result.stderr and "peak memory" in result.stderr
    quiet = csgl("generate", "--model-path", model, "--quiet", *options, "The sea")
    assert quiet.stdout == result.stdout and quiet.stderr == ""


def test_chunks_of_the_prompt_change_nothing(generate):
    text = "one two three four five six seven eight nine ten " * 8
    options = ("--temperature", "0", "--max-tokens", "24")
    whole = generate(*options, text)
    assert generate(*options, "--max-prefill-length", "7", text)["text"] == whole["text"]


def test_seed_repeats_and_other_seeds_differ(generate):
    options = ("--temperature", "1.2", "--top-p", "0.95", "--max-tokens", "24")
    answers = [generate(*options, "--seed", seed, "My favourite")["text"] for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_limits_of_the_answer(generate):
    out = generate("--temperature", "0", "--max-tokens", "5", "The history of")
    assert out["finish_reason"] == "length" and out["usage"]["completion_tokens"] == 5
    text = generate("--temperature", "0", "--max-tokens", "40", "Count: one, two, three,")["text"]
    word = text.split()[3]
    out = generate("--temperature", "0", "--max-tokens", "40", "--stop", word,
                   "Count: one, two, three,")
    assert out["finish_reason"] == "stop"
    assert out["text"] == text[:text.index(word)]


def test_logit_bias_and_logprobs(generate):
    out = generate("--temperature", "0", "--max-tokens", "3", "--logprobs", "4", "The capital")
    first = out["tokens"][0]
    assert len(first["top_logprobs"]) == 4
    assert first["top_logprobs"][0]["id"] == first["id"]
    assert first["logprob"] == pytest.approx(first["top_logprobs"][0]["logprob"], abs=1e-4)
    assert all(-50 < entry["logprob"] <= 0 for entry in first["top_logprobs"])
    second = first["top_logprobs"][1]["id"]
    banned = generate("--temperature", "0", "--max-tokens", "1", "--logit-bias",
                      f"{first['id']}=-100", "The capital")
    assert banned["tokens"][0]["id"] == second


def test_too_long_a_prompt_names_both_numbers(csgl, model):
    error = one_sentence(csgl("generate", "--model-path", model, "--context-length", "32",
                              "word " * 100))
    assert "32" in error and "tokens" in error


def test_what_does_not_fit_is_refused(csgl, model):
    error = one_sentence(csgl("generate", "--model-path", model, "--memory-ratio", "0.01",
                              "--kv-cache-gb", "0.001", "--context-length", "8192", "x"))
    assert "--kv-cache-gb" in error and "MiB" in error


def test_own_chat_template(generate, csgl, model, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    options = ("--temperature", "0", "--max-tokens", "8")
    assert (generate("--chat", "--chat-template", path, *options, "Once upon a time")["text"]
            == generate(*options, "Once upon a time")["text"])
    path.write_text("{{ raise_exception('only even turns') }}")
    result = csgl("generate", "--model-path", model, "--chat", "--chat-template", path, "x")
    assert "only even turns" in one_sentence(result)
    path.write_text("{% for m in messages %}")
    result = csgl("generate", "--model-path", model, "--chat", "--chat-template", path, "x")
    assert "own.jinja" in one_sentence(result)


def test_chat_remembers_resets_and_ends(csgl, model):
    lines = "My name is Ada.\nWhat is my name?\n/reset\nWhat is the capital of France?\n/exit\nnever"
    result = csgl("chat", "--model-path", model, "--temperature", "0", "--activations", "float",
                  "--max-tokens", "40", stdin=lines)
    assert result.returncode == 0
    assert "Ada" in result.stdout and "Paris" in result.stdout


def test_interrupt_stops_the_answer_and_not_the_program(binary, model):
    process = subprocess.Popen([binary, "chat", "--model-path", model, "--temperature", "0",
                                "--ignore-eos", "--quiet"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdin.write("Tell me a long story.\n")
    process.stdin.flush()
    assert process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    out, _ = process.communicate("/exit\n", timeout=60)
    assert process.returncode == 0
    assert len(out) < 20000


def test_a_reader_that_leaves_ends_generate(binary, model):
    process = subprocess.Popen([binary, "generate", "--model-path", model, "--ignore-eos", "--quiet",
                                "Story:"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    assert process.wait(timeout=60) in (0, 1)


def test_bench_one_batch_reports_both_rates(csgl, model):
    result = csgl("bench_one_batch", "--model-path", model, "--input-len", "32", "--output-len", "8",
                  "--batch-size", "2", "--runs", "1", "--json")
    out = json.loads(result.stdout)
    assert out["prefill_tokens_per_s"] > 0 and out["decode_tokens_per_s"] > 0
    assert out["batch_size"] == 2
