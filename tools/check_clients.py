#!/usr/bin/env python3
"""Drives a running server with the clients that people use: openai, LangChain, LiteLLM, curl, lm-eval.

    csgl serve --model-path MODEL --port 1919 &
    tools/check_clients.py --url http://127.0.0.1:1919 [--lm-eval PYTHON_WITH_LM_EVAL] [--tokenizer FOLDER]

Each client that is installed must get an answer; the others are named as skipped. The public packages are not
needed to build or test csgl.
"""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

QUESTION = [{"role": "user", "content": "Name one colour."}]

TASK = """task: csgl_words
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 8
  temperature: 0
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


def check_openai(url):
    from openai import OpenAI
    client = OpenAI(base_url=url + "/v1", api_key="none")
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=12, temperature=0)
    parts = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=12, temperature=0,
                                           stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    return text


def check_langchain(url):
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(base_url=url + "/v1", api_key="none", model="csgl", max_tokens=12, temperature=0)
    chat.model_name = json.loads(read(url + "/v1/models"))["data"][0]["id"]
    streamed = "".join(part.content for part in chat.stream(QUESTION[0]["content"]))
    assert streamed == chat.invoke(QUESTION[0]["content"]).content
    return streamed


def check_litellm(url):
    import litellm
    model = json.loads(read(url + "/v1/models"))["data"][0]["id"]
    reply = litellm.completion(model="openai/" + model, api_base=url + "/v1", api_key="none",
                               messages=QUESTION, max_tokens=12, temperature=0)
    return reply.choices[0].message.content


def read(url):
    return subprocess.run(["curl", "-sf", url], capture_output=True, text=True, check=True).stdout


def check_curl(url):
    body = json.dumps({"messages": QUESTION, "max_tokens": 12, "temperature": 0})
    reply = subprocess.run(["curl", "-sf", url + "/v1/chat/completions", "-d", body],
                           capture_output=True, text=True, check=True).stdout
    return json.loads(reply)["choices"][0]["message"]["content"]


def check_lm_eval(url, python, tokenizer):
    """A task of our own, generated through local-completions."""
    words = ["one two three", "red green blue", "Monday Tuesday Wednesday"]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = folder / "words.jsonl"
        data.write_text("".join(json.dumps({"question": f"{word} " * 4 + " ".join(word.split()[:2]),
                                            "answer": word.split()[2]}) + "\n" for word in words))
        (folder / "task.yaml").write_text(TASK.format(data=data))
        model = json.loads(read(url + "/v1/models"))["data"][0]["id"]
        arguments = (f"model={model},base_url={url}/v1/completions,num_concurrent=2,max_retries=1,"
                     + (f"tokenizer={tokenizer}" if tokenizer else "tokenizer_backend=None"))
        result = subprocess.run([python, "-m", "lm_eval", "--model", "local-completions",
                                 "--model_args", arguments, "--tasks", "csgl_words",
                                 "--include_path", str(folder)], capture_output=True, text=True)
        assert result.returncode == 0 and "exact_match" in result.stdout, result.stderr[-2000:]
        return next(line for line in result.stdout.splitlines() if "exact_match" in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:1919")
    parser.add_argument("--lm-eval", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--tokenizer", help="a folder with tokenizer.json for lm-eval")
    arguments = parser.parse_args()
    for package, check in (("openai", check_openai), ("langchain_openai", check_langchain),
                           ("litellm", check_litellm), (None, check_curl)):
        if package and not importlib.util.find_spec(package):
            print(f"{package}: skipped, not installed")
            continue
        print(f"{package or 'curl'}: {check(arguments.url)!r}")
    has_lm_eval = subprocess.run([arguments.lm_eval, "-c", "import lm_eval"], capture_output=True)
    if has_lm_eval.returncode:
        print("lm_eval: skipped, not installed")
    else:
        print("lm_eval:", check_lm_eval(arguments.url, arguments.lm_eval, arguments.tokenizer))


if __name__ == "__main__":
    main()
