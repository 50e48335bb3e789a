"""Records what transformers computes in float32 for SmolLM2-135M-Instruct, read from a GGUF file.

    python tools/make_smollm2_reference.py --model SmolLM2-135M-Instruct.Q4_1.gguf
        [--text tests/data/perplexity.txt] [--output tests/models/smollm2]

Needs torch, transformers==5.17.0, tokenizers, gguf, numpy, jinja2. The weights are dequantized into the Llama
class without further rounding; the tokenizer is rebuilt from the vocabulary and merges of the file with
SmolLM2's pre-tokenizer; chats are rendered with the file's own template as transformers does.

reference.json:
    model           name and sha256 of the GGUF file
    prompts         ten of {"text", "messages" (chats only), "tokens", "continuation", "gaps", "continuation_text"}:
                    the greedy continuation runs for 64 tokens and does not stop at EOS; gaps[i] is the best
                    logit minus the second best where continuation[i] was chosen
    chat            the answer to one question, until EOS (included in "answer") or 64 tokens; "text" is without EOS
    perplexity      of the text as one sequence: the first token is not scored, nll_sum is in nats
"""

import argparse
import hashlib
import json
import math
import pathlib
import re

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

from gguf_reference import load_model

N_CONTINUED = 64
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type

QUESTION = "What is the capital of France?"

PROMPTS = [
    "The history of the lighthouse begins with",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55,",
    "中国的首都是北京。北京是一座",
    "Dear Ms. O'Neill,\n\nThank you for your letter of 12 March 2024. I'm afraid that we can't",
    "#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 10; i++) {\n",
    [{"role": "user", "content": "Explain in one sentence why the sky is blue."}],
    [{"role": "system", "content": "You are a pirate. Answer like one."},
     {"role": "user", "content": "How do I boil an egg?"}],
    [{"role": "user", "content": "Translate to French: \"Where is the train station?\""},
     {"role": "assistant", "content": "\"Où est la gare ?\""},
     {"role": "user", "content": "And now to German, please."}],
    [{"role": "user", "content": "What is 17 + 25? Reply with 🙂 and the number.\n\n  - no words\n  - no units  "}],
]


def build_tokenizer(metadata):
    """SmolLM2's tokenizer: byte-level BPE, digits one by one, control tokens found in the raw text."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([
        AddedToken(token, normalized=False, special=True)
        for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN])
    return tokenizer


def render(metadata, messages):
    template = metadata.get("tokenizer.chat_template")
    rendered, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True)
    return rendered[0]


@torch.no_grad()
def continue_greedily(model, tokens, n_tokens, eos=None):
    """(ids, gaps between the two best logits); stops after `eos` if one is given."""
    ids, gaps, cache, new = [], [], None, tokens
    while len(ids) < n_tokens and (not ids or ids[-1] != eos):
        result = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        best = torch.topk(result.logits[0, -1], 2)
        ids.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        new = ids[-1:]
    return ids, gaps


def record_prompt(model, metadata, tokenizer, prompt):
    chat = {} if isinstance(prompt, str) else {"messages": prompt}
    text = prompt if isinstance(prompt, str) else render(metadata, prompt)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    ids, gaps = continue_greedily(model, tokens, N_CONTINUED)
    return {**chat, "text": text, "tokens": tokens, "continuation": ids, "gaps": gaps,
            "continuation_text": tokenizer.decode(ids, skip_special_tokens=False)}


def record_chat(model, metadata, tokenizer):
    messages = [{"role": "user", "content": QUESTION}]
    prompt = render(metadata, messages)
    tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    ids, gaps = continue_greedily(model, tokens, N_CONTINUED, eos)
    return {"messages": messages, "prompt": prompt, "tokens": tokens, "eos": eos, "answer": ids, "gaps": gaps,
            "text": tokenizer.decode(ids, skip_special_tokens=True)}


@torch.no_grad()
def record_perplexity(model, tokenizer, path):
    text = path.read_text(encoding="utf-8")
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1]
    scores = torch.log_softmax(logits.double(), dim=-1)
    nll = -scores.gather(1, torch.tensor(tokens[1:])[:, None]).sum().item()
    n_scored = len(tokens) - 1
    return {
        "text": path.name,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "n_tokens": len(tokens),
        "n_scored": n_scored,
        "nll_sum": nll,
        "perplexity": math.exp(nll / n_scored),
        "tokens_sha256": hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in tokens)).hexdigest(),
        "tokens": tokens,
    }


def write_json(path, value):
    """Indented JSON with each list of numbers on one line, so that a diff stays readable."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    text = re.sub(r"\[\n[\s\d.,e-]*\]", lambda numbers: re.sub(r"\n\s*", " ", numbers[0])
                  .replace("[ ", "[").replace(" ]", "]"), text)
    path.write_text(text + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path("tests/data/perplexity.txt"))
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models/smollm2"))
    arguments = parser.parse_args()
    metadata, model = load_model(arguments.model)
    tokenizer = build_tokenizer(metadata)
    reference = {
        "model": {"name": metadata.get("general.name"),
                  "sha256": hashlib.sha256(arguments.model.read_bytes()).hexdigest()},
        "prompts": [record_prompt(model, metadata, tokenizer, prompt) for prompt in PROMPTS],
        "chat": record_chat(model, metadata, tokenizer),
        "perplexity": record_perplexity(model, tokenizer, arguments.text),
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output / "reference.json", reference)
    print(reference["chat"]["text"])
    print({key: value for key, value in reference["perplexity"].items() if key != "tokens"})


if __name__ == "__main__":
    main()
