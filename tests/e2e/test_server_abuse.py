"""Nothing hangs: many requests at once, of which many are broken, too long, or left early.

CSGL_ABUSE_REQUESTS sets how many (200)."""

import concurrent.futures
import json
import os
import random
import resource
import socket
import time

import pytest
from serving import Server

N_REQUESTS = int(os.environ.get("CSGL_ABUSE_REQUESTS", "200"))
CLIENTS = 64


@pytest.fixture(scope="module")
def server(binary, model):
    running = Server(binary, model, "--context-length", "1024")
    yield running
    assert running.stop() == 0


def body_of(rng, **fields):
    return json.dumps({"prompt": f"Number {rng.randrange(10)}:", "max_tokens": rng.randrange(1, 16),
                       "ignore_eos": True, **fields}).encode()


def head_of(n, path="/v1/completions"):
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {n}\r\n\r\n".encode()


def open_socket(server):
    return socket.create_connection((server.host, server.port), timeout=60)


def read_status(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            break
        data += part
    return int(data.split()[1]) if data else 0


def good(server, rng):
    with open_socket(server) as s:
        body = body_of(rng, stream=rng.random() < 0.5)
        s.sendall(head_of(len(body)) + body)
        assert read_status(s) == 200


def leaves(server, rng):
    with open_socket(server) as s:
        body = body_of(rng, max_tokens=900, stream=rng.random() < 0.5)
        s.sendall(head_of(len(body)) + body)
        time.sleep(rng.random() * 0.3)


def too_long(server, rng):
    with open_socket(server) as s:
        body = body_of(rng, prompt="word " * 4000)
        s.sendall(head_of(len(body)) + body)
        assert read_status(s) == 400


def no_json(server, rng):
    with open_socket(server) as s:
        body = bytes(rng.randrange(256) for _ in range(200))
        s.sendall(head_of(len(body)) + body)
        assert read_status(s) == 400


def no_http(server, rng):
    with open_socket(server) as s:
        s.sendall(rng.choice([b"\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"POST / HTTP/9.9\r\n\r\n"]))
        time.sleep(rng.random() * 0.1)


def half(server, rng):
    with open_socket(server) as s:
        body = body_of(rng)
        whole = head_of(len(body)) + body
        s.sendall(whole[:rng.randrange(len(whole))])
        time.sleep(rng.random() * 0.3)


def huge(server, rng):
    with open_socket(server) as s:
        s.sendall(head_of(1 << 33))
        assert read_status(s) == 413


def junk_behind(server, rng):
    """A second request and junk while the first is pending."""
    with open_socket(server) as s:
        body = body_of(rng)
        s.sendall(head_of(len(body)) + body + head_of(len(body)) + body)
        try:
            for _ in range(rng.randrange(1, 40)):
                s.sendall(b"x" * 65536)
        except OSError:
            pass
        assert read_status(s) in (200, 0)


KINDS = [good] * 6 + [leaves] * 3 + [too_long, no_json, no_http, half, huge, junk_behind]


def test_abuse_leaves_nothing_behind(server):
    def one(seed):
        rng = random.Random(seed)
        rng.choice(KINDS)(server, rng)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for result in [pool.submit(one, seed) for seed in range(N_REQUESTS)]:
            result.result(timeout=300)
    end = time.time() + 10
    while time.time() < end and server.metric("csgl_requests_running") + server.metric("csgl_requests_waiting"):
        time.sleep(0.1)
    assert server.metric("csgl_requests_running") == 0
    assert server.metric("csgl_requests_waiting") == 0
    assert server.metric('csgl_kv_pages{state="used"}') == 0
    assert server.metric('csgl_process_restarts_total{role="frontend"}') == 0
    assert server.metric('csgl_process_restarts_total{role="scheduler"}') == 0
    assert server.complete().status == 200


def test_health_answers_at_once_while_the_machine_is_busy(server):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        busy = [pool.submit(server.complete, "word " * 900, max_tokens=100) for _ in range(16)]
        slowest = 0
        while not all(b.done() for b in busy):
            start = time.time()
            assert server.get("/health").status == 200
            slowest = max(slowest, time.time() - start)
            time.sleep(0.02)
        assert all(b.result().status == 200 for b in busy)
    assert slowest < 1, slowest  # 0.1 s on a machine of its own


def test_two_thousand_idle_connections_on_256_descriptors(binary, model, tmp_path):
    """Idle connections give way to a request, without a busy loop and without a refusal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this process may not open enough descriptors itself")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    limited = tmp_path / "csgl"
    limited.write_text(f'#!/bin/sh\nulimit -n 256\nexec {binary} "$@"\n')
    limited.chmod(0o755)
    server = Server(str(limited), model, "--context-length", "1024")
    idle = []
    try:
        for _ in range(2000):
            idle.append(open_socket(server))
        for _ in range(5):
            assert server.complete().status == 200
            assert server.get("/health").status == 200
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert server.stop() == 0
