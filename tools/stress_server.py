#!/usr/bin/env python3
"""Clients that behave well and badly at once; afterwards the server must be as it was.

    tools/stress_server.py --binary build/release/csgl --model MODEL [--requests 2000] [--minutes 0]

Starts a server and sends requests at concurrency 64: whole answers, streams, disconnects at random
moments, over-long prompts, huge bodies, slow readers, invalid JSON, a lone CRLF, a second request and 60 MB
of junk while an answer is pending, half a header and half a body held open, a reader that never reads.
Valid requests must get 200, bad ones a 4xx with a JSON error; at the end nothing may run or wait, no page may
be held, and memory must not grow once the KV pool (0.25 GiB here) has been filled. --minutes repeats for so
long.
"""

import argparse
import asyncio
import collections
import json
import pathlib
import random
import re
import subprocess
import threading
import time
import urllib.request

CONCURRENCY = 64


def http(path, body, extra=b""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s"
            b"Content-Length: %d\r\n\r\n" % (path.encode(), extra, len(data))) + data


async def read_reply(reader, limit=60):
    """Status and body of one answer (chunked or with a length)."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limit)
    status = int(head.split()[1])
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = b""
        while True:
            size = int(await asyncio.wait_for(reader.readline(), limit), 16)
            body += (await asyncio.wait_for(reader.readexactly(size + 2), limit))[:size]
            if size == 0:
                return status, body
    n = int(re.search(rb"content-length: (\d+)", lower).group(1))
    return status, await asyncio.wait_for(reader.readexactly(n), limit)


class Stress:
    def __init__(self, port, seed):
        self.port = port
        self.draw = random.Random(seed)
        self.seen = collections.Counter()
        self.problems = []
        self.seconds = []  # of whole answers

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)

    def completion(self, stream=False, n=None):
        words = " ".join(self.draw.choice(["sea", "sky", "sun", "rain"]) for _ in range(20))
        return {"prompt": words, "max_tokens": n or self.draw.randrange(1, 24), "stream": stream,
                "ignore_eos": True}

    def expect(self, name, is_right, detail):
        self.seen[name] += 1
        if not is_right:
            self.problems.append(f"{name}: {detail}")

    async def whole(self):
        start = time.perf_counter()
        reader, writer = await self.connect()
        writer.write(http("/v1/completions", self.completion()))
        status, body = await read_reply(reader)
        self.seconds.append(time.perf_counter() - start)
        self.expect("whole", status == 200 and json.loads(body)["choices"], (status, body[:200]))
        writer.close()

    async def stream(self):
        reader, writer = await self.connect()
        writer.write(http("/v1/completions", self.completion(stream=True)))
        status, body = await read_reply(reader)
        self.expect("stream", status == 200 and body.endswith(b"data: [DONE]\n\n"),
                    (status, body[-200:]))
        writer.close()

    async def disconnect(self):
        reader, writer = await self.connect()
        writer.write(http("/v1/completions", self.completion(stream=self.draw.random() < 0.7, n=400)))
        await writer.drain()
        await asyncio.sleep(self.draw.random() * 0.5)
        writer.transport.abort() if self.draw.random() < 0.5 else writer.close()
        self.seen["disconnect"] += 1

    async def refused(self, name, request, codes):
        reader, writer = await self.connect()
        writer.write(request)
        try:
            status, body = await read_reply(reader)
            self.expect(name, status in codes and "error" in json.loads(body),
                        (status, body[:200]))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self.expect(name, name == "huge body", repr(error))
        writer.close()

    async def too_long(self):
        await self.refused("too long", http("/v1/completions", {"prompt": "word " * 20000}), {400})

    async def huge_body(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
        await self.refused("huge body", head + b"x" * 1000, {413})

    async def invalid(self):
        bad = self.draw.choice([b"{", b"[]", b'{"prompt": 3.5}', b'{"prompt": "x", "n": -1}', b"\xff\xfe",
                                b'{"prompt": "x", "nonsense": 1}', b'{"messages": "x"}', b""])
        await self.refused("invalid", http("/v1/completions", bad), {400})

    async def lone_crlf(self):
        reader, writer = await self.connect()
        writer.write(b"\r\n" + http("/v1/completions", self.completion()))
        status, _ = await read_reply(reader)
        self.expect("lone CRLF", status == 200, status)
        writer.close()

    async def second_request(self):
        reader, writer = await self.connect()
        writer.write(http("/v1/completions", self.completion()) * 2)
        codes = [(await read_reply(reader))[0] for _ in range(2)]
        self.expect("pipelined", codes == [200, 200], codes)
        writer.close()

    async def junk(self):
        reader, writer = await self.connect()
        writer.write(http("/v1/completions", self.completion(n=40)))
        try:
            for _ in range(60):
                writer.write(b"\x00junk" * 200000)
                await asyncio.wait_for(writer.drain(), 30)
        except (ConnectionError, asyncio.TimeoutError):
            pass
        self.seen["junk"] += 1
        writer.transport.abort()

    async def half(self):
        whole = http("/v1/completions", self.completion())
        reader, writer = await self.connect()
        writer.write(whole[:self.draw.randrange(1, len(whole) - 1)])
        await asyncio.sleep(1 + self.draw.random() * 2)
        self.seen["half"] += 1
        writer.close()

    async def slow_reader(self):
        reader, writer = await self.connect()
        writer.write(http("/v1/completions", self.completion(stream=True, n=30)))
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            piece = await asyncio.wait_for(reader.read(200), 60)
            if not piece:
                break
            data += piece
            await asyncio.sleep(0.005)
        self.expect("slow reader", b"[DONE]" in data, data[-100:])
        writer.close()

    async def never_reads(self):
        reader, writer = await self.connect()
        reader._transport.pause_reading()
        writer.write(http("/v1/completions", self.completion(stream=True, n=300)))
        await asyncio.sleep(2)
        self.seen["never reads"] += 1
        writer.transport.abort()

    async def one(self):
        kinds = [(self.whole, 30), (self.stream, 25), (self.disconnect, 20), (self.invalid, 8),
                 (self.slow_reader, 4), (self.too_long, 3), (self.huge_body, 2), (self.lone_crlf, 3),
                 (self.second_request, 3), (self.half, 3), (self.never_reads, 1), (self.junk, 0.5)]
        kind = self.draw.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
        try:
            await kind()
        except Exception as error:  # any failure is a finding, whatever its kind
            self.problems.append(f"{kind.__name__}: {error!r}")

    async def run(self, n):
        gate = asyncio.Semaphore(CONCURRENCY)

        async def guarded():
            async with gate:
                await self.one()

        await asyncio.gather(*(guarded() for _ in range(n)))


def figures(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines()
            if line and not line.startswith("#")}


def memory(pid):
    """Resident bytes of the supervisor's children."""
    total = 0
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    total += int((entry / "statm").read_text().split()[1]) * 4096
            except (OSError, IndexError):
                pass
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/csgl")
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    process = subprocess.Popen([arguments.binary, "serve", "--model-path", arguments.model, "--port", "0",
                                "--max-queue", "512", "--kv-cache-gb", "0.25"], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "ready on" in line:
            port = int(re.search(r":(\d+)\s*$", line).group(1))
            break
    log = []
    threading.Thread(target=lambda: log.extend(process.stderr), daemon=True).start()
    begin, sizes, problems, seen, seed = time.time(), [], [], collections.Counter(), arguments.seed
    seconds = []
    while not sizes or time.time() - begin < arguments.minutes * 60:
        stress = Stress(port, seed)
        asyncio.run(stress.run(arguments.requests))
        problems += stress.problems
        seen += stress.seen
        seconds += stress.seconds
        seed += 1
        for _ in range(100):
            now = figures(port)
            if now["csgl_requests_running"] + now["csgl_requests_waiting"] == 0:
                break
            time.sleep(0.1)
        sizes.append(memory(process.pid))
    if len(sizes) > 3 and sizes[-1] > sizes[len(sizes) // 2] * 1.02:
        problems.append("memory grew in the second half")
    print(f"{sum(seen.values())} requests in {time.time() - begin:.0f} s:", dict(seen))
    seconds.sort()
    print(f"whole answers: median {seconds[len(seconds) // 2]:.1f} s, longest {seconds[-1]:.1f} s")
    print("memory after each round, MiB:", [size >> 20 for size in sizes])
    for name in ("csgl_requests_running", "csgl_requests_waiting", "csgl_kv_pages{state=\"used\"}"):
        print(name, now[name])
        if now[name] != 0:
            problems.append(f"{name} is {now[name]} at the end")
    process.terminate()
    process.wait()
    for line in log[:10] + problems[:20]:
        print(line.rstrip() if isinstance(line, str) else line)
    raise SystemExit(f"{len(problems)} problems" if problems else 0)


if __name__ == "__main__":
    main()
