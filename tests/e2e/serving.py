"""A running `csgl serve` for tests, and plain HTTP to it."""

import http.client
import json
import re
import signal
import subprocess
import threading


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def events(self):
        """The data of server-sent events, without [DONE], which must come last."""
        parts = [part for part in self.body.split("\n\n") if part and not part.startswith(":")]
        assert all(part.startswith("data: ") for part in parts), self.body
        assert parts[-1] == "data: [DONE]"
        return [json.loads(part[6:]) for part in parts[:-1]]


class Server:
    def __init__(self, binary, model, *options):
        """`model` None: the options say what is served."""
        model_options = ("--model-path", model) if model else ()
        self.process = subprocess.Popen([binary, "serve", *model_options, "--port", "0", *options],
                                        stderr=subprocess.PIPE, text=True)
        self.lines = []
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        assert ready.wait(120), self.lines
        self.host, port = re.search(r"http://([^:/\s]+):(\d+)", self.lines[-1]).groups()
        self.port = int(port)
        self.url = f"http://{self.host}:{self.port}"

    def _read(self, ready):
        for line in self.process.stderr:
            self.lines.append(line)
            if "ready on" in line:
                ready.set()

    def connect(self, timeout=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        connection = self.connect()
        data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request(method, path, data, headers or {})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return Reply(reply.status, reply.headers, text)

    def get(self, path, **headers):
        return self.request("GET", path, None, headers)

    def post(self, path, body, **headers):
        return self.request("POST", path, body, headers)

    def chat(self, text="Tell me about the sea.", **fields):
        fields = {"max_tokens": 12, "temperature": 0, **fields}
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def complete(self, prompt="The sea is", **fields):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields})

    def metric(self, name):
        """The value of one line of /metrics; its name with its labels."""
        for line in self.get("/metrics").body.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"/metrics has no {name}")

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
