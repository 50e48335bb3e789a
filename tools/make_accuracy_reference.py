"""Records the greedy answers of transformers in float32 to the questions of accuracy_items.py.

    python tools/make_accuracy_reference.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--output tests/data/accuracy.json]

Needs what make_smollm2_reference.py needs, whose reading of the file this uses. An answer ends at the end of text or with
the item's max_tokens. Recorded is, by the item's id,

    text    the answer, without the end of text
    ends    the length of `text` after each token; the end of text adds nothing
    gaps    the best logit minus the second best where each token was chosen
"""

import argparse
import hashlib
import json
import pathlib

import torch
import transformers

from accuracy_items import items
from gguf_reference import load_model
from make_smollm2_reference import build_tokenizer, render


@torch.no_grad()
def continue_together(model, prompts, n_tokens, eos):
    """[(ids, gaps)] of prompts of one length, each as if it were alone: nothing is padded."""
    ids, gaps, cache, new = [[] for _ in prompts], [[] for _ in prompts], None, torch.tensor(prompts)
    for _ in range(n_tokens):
        result = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        best = torch.topk(result.logits[:, -1], 2)
        new = best.indices[:, :1]
        for row, (mine, values) in enumerate(zip(ids, best.values)):
            if not mine or mine[-1] != eos:
                mine.append(int(new[row]))
                gaps[row].append(round(float(values[0] - values[1]), 5))
        if all(mine[-1] == eos for mine in ids):
            break
    return list(zip(ids, gaps))


def describe(tokenizer, ids, gaps):
    texts = [tokenizer.decode(ids[:i + 1], skip_special_tokens=True) for i in range(len(ids))]
    return {"text": texts[-1], "ends": [len(text) for text in texts], "gaps": gaps}


def answer_all(model, metadata, tokenizer):
    groups, answers = {}, {}
    for item in items():
        prompt = item["prompt"] if "prompt" in item else render(metadata, item["messages"])
        tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
        groups.setdefault((len(tokens), item["max_tokens"]), []).append((item["id"], tokens))
    for (_, n_tokens), group in groups.items():
        names, prompts = zip(*group)
        found = continue_together(model, prompts, n_tokens, metadata.get("tokenizer.ggml.eos_token_id"))
        answers |= {name: describe(tokenizer, *each) for name, each in zip(names, found)}
        print(f"{len(answers)} answers", flush=True)
    return {item["id"]: answers[item["id"]] for item in items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/data/accuracy.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    metadata, model = load_model(arguments.model)
    tokenizer = build_tokenizer(metadata)
    answers = answer_all(model, metadata, tokenizer)
    head = {"model": metadata.get("general.name"), "sha256": hashlib.sha256(arguments.model.read_bytes()).hexdigest(),
            "transformers": transformers.__version__}
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in answers.items()]
    text = json.dumps(head)[:-1] + ', "answers": {\n' + ",\n".join(lines) + "\n}}\n"
    arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
