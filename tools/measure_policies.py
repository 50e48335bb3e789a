#!/usr/bin/env python3
"""Inter-token latency and throughput of the two scheduling policies, side by side in one run.

    tools/measure_policies.py --binary build/release/csgl --model MODEL [--runs 5]

Eight clients stream for some rounds each: 512 random tokens in, 128 out, a new prompt as soon as an answer
ends. The policies alternate; printed are medians over the runs of p99 and median latency and tokens a second.
"""

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import threading
import time

CLIENTS, INPUT, OUTPUT, ROUNDS = 8, 512, 128, 2


def start(binary, model, policy):
    process = subprocess.Popen([binary, "serve", "--model-path", model, "--port", "0",
                                "--schedule-policy", policy], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "ready on" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(re.search(r":(\d+)\s*$", line).group(1))
    raise SystemExit("the server did not start")


def client(port, seed, gaps, firsts):
    draw = random.Random(seed)
    for _ in range(ROUNDS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        body = {"prompt": [draw.randrange(100, 40000) for _ in range(INPUT)], "stream": True,
                "max_tokens": OUTPUT, "ignore_eos": True, "temperature": 0}
        start_time = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        last = None
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            if last is None:
                firsts.append(now - start_time)
            else:
                gaps.append(now - last)
            last = now
        connection.close()


def measure(binary, model, policy, seed):
    process, port = start(binary, model, policy)
    gaps, firsts = [], []
    threads = [threading.Thread(target=client, args=(port, seed * 100 + i, gaps, firsts))
               for i in range(CLIENTS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    process.terminate()
    process.wait()
    gaps.sort()
    return {"p99 ms": gaps[int(len(gaps) * 0.99)] * 1e3, "median ms": statistics.median(gaps) * 1e3,
            "max ms": gaps[-1] * 1e3, "ttft ms": statistics.median(firsts) * 1e3,
            "tokens/s": CLIENTS * ROUNDS * OUTPUT / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/csgl")
    parser.add_argument("--model", required=True)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    results = {"prefill-first": [], "mixed": []}
    for run in range(arguments.runs):
        for policy, list_of in results.items():
            list_of.append(measure(arguments.binary, arguments.model, policy, run))
    for policy, list_of in results.items():
        figures = ", ".join(f"{key} {statistics.median(r[key] for r in list_of):.1f}"
                            for key in list_of[0])
        print(f"{policy:14s} {figures}")


if __name__ == "__main__":
    main()
