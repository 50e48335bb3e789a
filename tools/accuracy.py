#!/usr/bin/env python3
"""Asks a served model the questions of accuracy_items.py and compares its answers with recorded ones.

    csgl serve --model-path "$(scripts/fetch-model.sh)" --port 1919 &
    python tools/accuracy.py [--base-url http://127.0.0.1:1919/v1] [--model NAME] [--api-key KEY] [--concurrency 8]
        [--limit N] [--reference tests/data/accuracy.json] [--least-identical SHARE] [--output FILE]

Any server with OpenAI's API is asked greedily; nothing but Python is needed. The recorded answers are those of transformers
in float32 for the default model (make_accuracy_reference.py). Of both the table says how many answers are right, by kind; of the
pair, how many are identical and how many others part at a near-tie: where the reference's two best logits differed by less than
four times 2e-4, the bar of the logits in float mode. With --reference none, or for another model, only the first column means
anything. With --least-identical the command fails when fewer answers than that share are identical or part at a near-tie.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import urllib.error
import urllib.request

from accuracy_items import KINDS, is_right, items

NEAR_TIE = 4 * 2e-4
TIMEOUT_S = 600


def call(arguments, path, body=None):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {arguments.api_key}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(arguments.base_url.rstrip("/") + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        sys.exit(f"accuracy.py: {path} was answered with {error.code}: {error.read().decode(errors='replace')[:300]}")
    except urllib.error.URLError as error:
        sys.exit(f"accuracy.py: {arguments.base_url} cannot be reached: {error.reason}")


def ask(arguments, item):
    body = {"model": arguments.model, "max_tokens": item["max_tokens"], "temperature": 0}
    if "prompt" in item:
        return call(arguments, "/completions", {**body, "prompt": item["prompt"]})["choices"][0]["text"]
    reply = call(arguments, "/chat/completions", {**body, "messages": item["messages"]})
    return reply["choices"][0]["message"]["content"] or ""


def parting(recorded, answer):
    """(token at which the answer parts from the recorded one, gap there), or None if they are the same."""
    text = recorded["text"]
    if answer == text:
        return None
    n_common = next((i for i, (a, b) in enumerate(zip(text, answer)) if a != b), min(len(text), len(answer)))
    at = next((i for i, end in enumerate(recorded["ends"]) if end > n_common), len(recorded["ends"]) - 1)
    return at, recorded["gaps"][at]


def judge(asked, answers, recorded):
    """The figures: by kind and over all."""
    rows = {}
    for kind in (*KINDS, "all"):
        mine = [item for item in asked if kind in (item["kind"], "all")]
        known = [item for item in mine if item["id"] in recorded]
        partings = [parting(recorded[item["id"]], answers[item["id"]]) for item in known]
        rows[kind] = {
            "n": len(mine),
            "right": sum(is_right(item, answers[item["id"]]) for item in mine),
            "n_recorded": len(known),
            "reference_right": sum(is_right(item, recorded[item["id"]]["text"]) for item in known),
            "identical": partings.count(None),
            "near_ties": sum(part is not None and part[1] < NEAR_TIE for part in partings),
            "gaps": sorted(part[1] for part in partings if part),
        }
    return rows


def share(n, of):
    return f"{100 * n / of:5.1f} %" if of else "      -"


def print_rows(rows):
    print(f"{'':12}{'items':>6}  {'right':>8}  {'reference':>9}  {'identical':>9}  {'near-ties':>9}  gap where others part")
    for kind, row in rows.items():
        others = [gap for gap in row["gaps"] if gap >= NEAR_TIE]
        gap = f"median {statistics.median(others):.3f}, most {others[-1]:.3f}" if others else ""
        print(f"{kind:12}{row['n']:6}  {share(row['right'], row['n']):>8}  "
              f"{share(row['reference_right'], row['n_recorded']):>9}  {share(row['identical'], row['n_recorded']):>9}  "
              f"{row['near_ties']:9}  {gap}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:1919/v1")
    parser.add_argument("--model", help="the first one of /models without it")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--limit", type=int, help="so many items, spread over all kinds")
    parser.add_argument("--reference", default=str(pathlib.Path(__file__).parent.parent / "tests/data/accuracy.json"))
    parser.add_argument("--least-identical", type=float, metavar="SHARE")
    parser.add_argument("--output", type=pathlib.Path, help="write answers and figures as JSON")
    arguments = parser.parse_args()
    if not arguments.model:
        arguments.model = call(arguments, "/models")["data"][0]["id"]
    recorded = {}
    if arguments.reference != "none":
        recorded = json.loads(pathlib.Path(arguments.reference).read_text(encoding="utf-8"))["answers"]
    asked = items()
    if arguments.limit:
        asked = asked[::max(1, len(asked) // arguments.limit)][:arguments.limit]
    with concurrent.futures.ThreadPoolExecutor(arguments.concurrency) as pool:
        answers = dict(zip((item["id"] for item in asked), pool.map(lambda item: ask(arguments, item), asked)))
    rows = judge(asked, answers, recorded)
    print_rows(rows)
    if arguments.output:
        arguments.output.write_text(json.dumps({"rows": rows, "answers": answers}, ensure_ascii=False, indent=1) + "\n")
    total = rows["all"]
    same = total["identical"] + total["near_ties"]
    if arguments.least_identical and same < arguments.least_identical * total["n"]:
        sys.exit(f"accuracy.py: {same} of {total['n']} answers are the reference's or part at a near-tie; "
                 f"at least {arguments.least_identical:.0%} are asked for")


if __name__ == "__main__":
    main()
