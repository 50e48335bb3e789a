"""The life and death of csgl serve's processes."""

import json
import os
import pathlib
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest
from serving import Server


class Watched(Server):
    """A server whose processes are watched."""

    def children(self):
        """Process ids by role."""
        roles = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except (OSError, IndexError):
                    continue
                if parent == self.process.pid and b"--role" in words:
                    roles[words[words.index(b"--role") + 1].decode()] = int(entry.name)
        return roles

    def status(self, path):
        """The HTTP status, or 0 when nobody answers within two seconds."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def ask(self, text="Count:", timeout=60, **fields):
        body = {"prompt": text, "max_tokens": 8, "temperature": 0, **fields}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.load(reply)

    def wait_until_healthy(self, seconds):
        end = time.time() + seconds
        while time.time() < end:
            if self.status("/health") == 200:
                return True
            time.sleep(0.05)
        return False


@pytest.fixture
def serve(binary, model):
    servers = []

    def start(*options):
        servers.append(Watched(binary, model, *options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def open_stream(server):
    """A streaming request that goes on for long: its socket, after the first token."""
    body = json.dumps({"prompt": "Once", "stream": True, "ignore_eos": True, "max_tokens": 4000})
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
                       b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body.encode()))
    text = b""
    while b"data: " not in text:
        text += connection.recv(4096)
    return connection


@pytest.mark.parametrize("role", ["scheduler", "detokenizer", "frontend"])
def test_a_killed_child_is_noticed_and_comes_back(serve, role):
    server = serve()
    before = server.ask()["choices"][0]["text"]
    stream = open_stream(server)
    os.kill(server.children()[role], signal.SIGKILL)
    killed = time.time()
    rest = b""
    stream.settimeout(5)
    try:
        while chunk := stream.recv(65536):
            rest += chunk
            if b"[DONE]" in rest:
                break
    except ConnectionResetError:
        assert role == "frontend"
    assert time.time() - killed < 2
    if role != "frontend":
        assert b'"error"' in rest
    assert server.wait_until_healthy(10)
    assert server.ask()["choices"][0]["text"] == before
    assert server.get("/metrics").body.count("csgl_") > 5
    assert server.stop() == 0


def test_while_a_child_is_away_new_requests_get_503(serve):
    server = serve()
    os.kill(server.children()["scheduler"], signal.SIGKILL)
    time.sleep(0.05)
    codes = set()
    end = time.time() + 20
    while time.time() < end:
        try:
            server.ask(timeout=20)
            break
        except urllib.error.HTTPError as error:
            codes.add(error.code)
            assert error.headers["Retry-After"]
            assert "error" in json.load(error)
            time.sleep(0.02)
    assert codes <= {503}
    assert server.ask()["choices"]


def test_children_end_when_the_supervisor_is_killed(serve):
    server = serve()
    pids = server.children().values()
    assert len(pids) == 3
    server.process.kill()
    server.process.wait()
    end = time.time() + 5
    alive = set(pids)
    while alive and time.time() < end:
        alive = {pid for pid in alive if os.path.exists(f"/proc/{pid}")
                 and "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]}
        time.sleep(0.05)
    assert not alive


def test_interrupt_lets_the_running_request_end(serve):
    server = serve("--drain-seconds", "20")
    stream = open_stream(server)
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert server.process.poll() is None
    try:
        server.ask()
        raise AssertionError("a new request was taken while stopping")
    except urllib.error.HTTPError as error:
        assert error.code == 503
    stream.settimeout(1)
    assert stream.recv(10)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 0


def test_a_port_in_use_is_named(serve, csgl, model):
    server = serve()
    port = server.url.rsplit(":", 1)[1]
    result = csgl("serve", "--model-path", model, "--port", port)
    assert result.returncode == 1
    assert port in result.stderr and str(server.process.pid) in result.stderr


def test_a_model_that_cannot_be_loaded_ends_the_start(csgl, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    result = csgl("serve", "--model-path", tmp_path / "x.gguf", "--port", "0", timeout=30)
    assert result.returncode == 1
    assert "x.gguf" in result.stderr


def test_own_tokenizers_serve_too(serve):
    server = serve("--num-tokenizer", "2")
    assert len(server.children()) >= 4 - 1
    texts = {server.ask("One, two,")["choices"][0]["text"] for _ in range(4)}
    assert len(texts) == 1


@pytest.mark.parametrize("arguments, word", [
    (("--tp-size", "2"), "--tensor-parallel-size"),
    (("--spec-algo", "dflash"), "speculative"),
    (("--shell-mode",), "csgl chat"),
    (("--page-size", "12"), "power of two"),
])
def test_flags_that_cannot_be_honoured_are_refused(csgl, model, arguments, word):
    result = csgl("serve", "--model-path", model, *arguments, timeout=30)
    assert result.returncode in (1, 2) and word in result.stderr
