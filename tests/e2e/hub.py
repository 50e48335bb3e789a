"""A small Hugging Face hub and ModelScope on this machine that can be told to misbehave."""

import collections
import hashlib
import http.server
import json
import re
import ssl
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"

Seen = collections.namedtuple("Seen", "method path host range token")


class File:
    """Large files are named by their SHA-256 and live "on another host", as on the hub."""

    def __init__(self, data, is_large=False):
        self.data, self.is_large = data, is_large
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.blob_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.etag = self.sha256 if is_large else self.blob_id
        self.listed_bytes = len(data)
        self.sent = data  # what a GET answers with
        self.is_chunked = False


class Hub:
    """`repos`: {repo: {name: File}}. Faults are attributes that a test sets."""

    def __init__(self):
        self.repos, self.seen, self.commit = {}, [], COMMIT
        self.statuses = []  # answered in turn before anything else works; (status, headers)
        self.needs_token = None
        self.drop_after = None  # bytes of a large file's body that one connection carries
        self.drops_left = 1 << 30
        self.has_ranges = True
        self.range_shift = 0
        self.range_status = 206
        self.seconds_a_chunk = 0.0
        self.redirect_to = None
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # clients that went away
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.scheme = "http"
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def use_tls(self, certificate):
        """From here on https alone; `certificate` is a PEM file with its key, for 127.0.0.1 and localhost."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.scheme = "https"
        self.url = f"https://127.0.0.1:{self.port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def requests(self, method=None, part=""):
        return [seen for seen in self.seen if method in (None, seen.method) and part in seen.path]

    # --- answers

    def answer(self, h):
        self.seen.append(Seen(h.command, h.path, h.headers.get("Host", ""), h.headers.get("Range"),
                              h.headers.get("Authorization")))
        if self.statuses:
            status, headers = self.statuses.pop(0)
            return self.plain(h, status, b"no", headers)
        path = urllib.parse.unquote(urllib.parse.urlparse(h.path).path)
        if path.startswith("/elsewhere/"):
            return self.send_file(h, self.repos[path.split("/", 3)[2].replace("--", "/")][path.split("/", 3)[3]])
        if self.needs_token and h.headers.get("Authorization") != f"Bearer {self.needs_token}":
            return self.plain(h, 401, b"no")
        if path.startswith(("/api/v1/models/", "/models/")):
            return self.answer_modelscope(h, path)
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = self.repos.get((listing or resolve).group(1)) if listing or resolve else None
        if repo is None or (resolve and resolve.group(3) not in repo):
            return self.plain(h, 404, b"no")
        if listing:
            return self.plain(h, 200, json.dumps(self.listing(repo)).encode())
        return self.resolve(h, resolve.group(1), resolve.group(3), repo[resolve.group(3)])

    def listing(self, repo):
        siblings = []
        for name, file in repo.items():
            entry = {"rfilename": name, "size": file.listed_bytes, "blobId": file.blob_id}
            if file.is_large:
                entry["lfs"] = {"sha256": file.sha256, "size": file.listed_bytes, "pointerSize": 134}
                entry["blobId"] = "0" * 40  # the pointer's
            siblings.append(entry)
        return {"id": "x", "sha": self.commit, "siblings": siblings}

    def answer_modelscope(self, h, path):
        listing = re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)/repo/files", path)
        resolve = re.fullmatch(r"/models/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = self.repos.get((listing or resolve).group(1)) if listing or resolve else None
        if repo is None or (resolve and resolve.group(3) not in repo):
            return self.plain(h, 404, b'{"Code": 10010205001, "Success": false, "Data": null}')
        if resolve:
            file = repo[resolve.group(3)]
            if not file.is_large:
                return self.send_file(h, file)
            target = f"/elsewhere/{resolve.group(1).replace('/', '--')}/{resolve.group(3)}"
            return self.plain(h, 302, b"", {"Location": f"http://localhost:{self.port}{target}"})
        files = [{"Path": "folder", "Type": "tree", "Size": 0, "Sha256": ""}]
        files += [{"Path": name, "Name": name, "Type": "blob", "Size": file.listed_bytes, "Sha256": file.sha256,
                   "IsLFS": file.is_large, "Revision": "0" * 40} for name, file in repo.items()]
        answer = {"Code": 200, "Success": True, "Data": {"Files": files}}
        return self.plain(h, 200, json.dumps(answer).encode())

    def resolve(self, h, repo, name, file):
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{file.etag}"'}
        if not file.is_large:
            return self.plain(h, 200, file.sent, headers)
        # The same server under another name: another host as far as HTTP is concerned.
        target = self.redirect_to or f"{self.scheme}://localhost:{self.port}/elsewhere/{repo.replace('/', '--')}/{name}"
        headers |= {"ETag": '"of-the-redirect"', "X-Linked-Etag": f'"{file.etag}"',
                    "X-Linked-Size": str(len(file.data)), "Location": target}
        return self.plain(h, 302, b"Found. Redirecting", headers)

    def plain(self, h, status, body, headers=None):
        h.send_response(status)
        for name, value in (headers or {}).items():
            h.send_header(name, value)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        if h.command != "HEAD":
            h.wfile.write(body)

    def send_file(self, h, file):
        start = 0
        if self.has_ranges and h.headers.get("Range"):
            start = int(re.fullmatch(r"bytes=(\d+)-", h.headers["Range"]).group(1))
            if start >= len(file.sent):
                return self.plain(h, 416, b"no")
            h.send_response(self.range_status)
            shifted = start + self.range_shift
            h.send_header("Content-Range", f"bytes {shifted}-{len(file.sent) - 1}/{len(file.sent)}")
        else:
            h.send_response(200)
        body = file.sent[start:]
        if file.is_chunked:
            h.send_header("Transfer-Encoding", "chunked")
        else:
            h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        drops = self.drop_after is not None and self.drops_left > 0
        if drops:
            self.drops_left -= 1
            body = body[:self.drop_after]
        for at in range(0, len(body), 16384):
            piece = body[at:at + 16384]
            h.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if file.is_chunked else piece)
            h.wfile.flush()
            time.sleep(self.seconds_a_chunk)
        if drops:
            h.close_connection = True
            h.connection.close()
        elif file.is_chunked:
            h.wfile.write(b"0\r\n\r\n")
