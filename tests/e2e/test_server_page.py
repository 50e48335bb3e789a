"""The chat page in headless Chromium, driven through chromedriver's HTTP interface."""

import http.client
import json
import shutil
import socket
import subprocess
import time

import pytest
from serving import Server

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of element references in WebDriver
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Browser:
    def __init__(self, driver, width=1000):
        self.port = free_port()
        self.process = subprocess.Popen([driver, f"--port={self.port}"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        end = time.time() + 20
        while True:
            try:
                value = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
                    "goog:loggingPrefs": {"browser": "ALL"},
                    "goog:chromeOptions": {"args": ["--headless=new", "--no-sandbox", "--disable-gpu",
                                                    "--disable-dev-shm-usage", f"--window-size={width},800"]}}}})
                break
            except ConnectionError:
                assert time.time() < end
                time.sleep(0.1)
        self.session = "/session/" + value["sessionId"]

    def _call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, json.dumps(body) if body is not None else None)
        reply = json.loads(connection.getresponse().read())
        connection.close()
        if isinstance(reply["value"], dict) and "error" in reply["value"]:
            raise RuntimeError(reply["value"]["message"])
        return reply["value"]

    def open(self, url):
        self._call("POST", self.session + "/url", {"url": url})

    def run(self, script):
        return self._call("POST", self.session + "/execute/sync", {"script": script, "args": []})

    def find(self, css):
        return self._call("POST", self.session + "/element", {"using": "css selector", "value": css})[ELEMENT]

    def keys(self, css, text):
        self._call("POST", f"{self.session}/element/{self.find(css)}/value", {"text": text})

    def click(self, css):
        self._call("POST", f"{self.session}/element/{self.find(css)}/click", {})

    def log(self):
        return self._call("POST", self.session + "/se/log", {"type": "browser"})

    def wait(self, script, seconds=60):
        end = time.time() + seconds
        while not self.run("return " + script):
            assert time.time() < end, f"{script}: {self.run('return document.body.innerText')}"
            time.sleep(0.05)

    def close(self):
        try:
            self._call("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait(20)


@pytest.fixture(scope="module")
def driver():
    path = shutil.which("chromedriver")
    if not path:
        pytest.skip("chromedriver is not installed")
    return path


@pytest.fixture(scope="module")
def server(binary, model):
    running = Server(binary, model, "--served-model-name", "small", "--context-length", "2048")
    yield running
    running.stop()


@pytest.fixture
def browser(driver):
    running = Browser(driver)
    yield running
    running.close()


def answers(browser):
    return browser.run("return [...document.querySelectorAll('.assistant > .text')].map(e => e.textContent)")


IS_IDLE = "!document.getElementById('send').hidden && document.querySelector('.assistant')"


def test_a_chat_by_keyboard(browser, server):
    browser.open(server.url)
    browser.wait("document.getElementById('model').textContent === 'small'")
    assert browser.run("return document.activeElement.id") == "question"
    browser.run("document.getElementById('temperature').value = 0; document.getElementById('limit').value = 16")
    browser.keys("#question", "Tell me about the sea." + ENTER)
    browser.wait(IS_IDLE)
    first = answers(browser)
    assert len(first) == 1 and first[0]
    figures = browser.run("return document.querySelector('.figures').textContent")
    assert "16 out" in figures and "tokens/s" in figures
    assert browser.run("return document.activeElement.id") == "question"
    browser.keys("#question", "And the sky?" + ENTER)
    browser.wait("document.querySelectorAll('.figures').length === 2")
    assert len(answers(browser)) == 2
    expected = server.chat("Tell me about the sea.", max_tokens=16).json["choices"][0]["message"]["content"]
    assert first[0].strip() == expected.strip()
    browser.click("#fresh")
    assert answers(browser) == []
    assert [entry for entry in browser.log() if entry["level"] == "SEVERE"] == []


def test_an_answer_streams_and_can_be_stopped(browser, server):
    browser.open(server.url)
    browser.wait("document.getElementById('model').textContent")
    browser.run("document.getElementById('limit').value = 1500")
    browser.keys("#question", "Write a very long story." + ENTER)
    browser.wait("document.querySelector('.assistant > .text')?.textContent.length > 20")
    if browser.run("return document.getElementById('stop').hidden"):
        pytest.skip("the model ended its answer at once")
    browser.keys("body", ESCAPE)
    browser.wait(IS_IDLE, 5)
    end = time.time() + 3
    while server.get("/health").json["running"] and time.time() < end:
        time.sleep(0.05)
    assert server.get("/health").json["running"] == 0


def test_errors_are_shown_and_the_question_kept(browser, server):
    browser.open(server.url)
    browser.wait("document.getElementById('model').textContent")
    browser.run("document.getElementById('temperature').value = 7")
    browser.keys("#question", "Hello" + ENTER)
    browser.wait("document.querySelector('[role=alert]')")
    assert "temperature" in browser.run("return document.querySelector('[role=alert]').textContent")
    assert browser.run("return document.getElementById('question').value") == "Hello"


def test_reasoning_is_folded_and_text_cannot_act(browser, server):
    browser.open(server.url)
    browser.run("""
        const events = [{reasoning_content: 'I think'}, {content: '<b>bold</b>\\n```c\\nint x;\\n```\\nend'}];
        const text = events.map(d => 'data: ' + JSON.stringify({choices: [{delta: d}]}) + '\\n\\n').join('');
        window.fetch = async () => new Response(text + 'data: [DONE]\\n\\n');""")
    browser.keys("#question", "Hello" + ENTER)
    browser.wait(IS_IDLE)
    assert browser.run("return document.querySelector('.thought').open") is False
    assert browser.run("return document.querySelector('.thought .text').textContent") == "I think"
    assert browser.run("return document.querySelector('.assistant > .text b')") is None
    assert browser.run("return document.querySelector('.assistant pre').textContent") == "int x;"


def test_controls_have_names_and_fit_a_phone(driver, server):
    browser = Browser(driver, 500)
    try:
        browser.open(server.url)
        unnamed = browser.run("""
            return [...document.querySelectorAll('input, select, textarea, button')].filter(e =>
                !(e.labels?.length) && !e.textContent.trim()).map(e => e.id)""")
        assert unnamed == []
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.run("return document.getElementById('log').getAttribute('aria-live')") == "polite"
        assert browser.run("return getComputedStyle(document.documentElement).colorScheme") is not None
    finally:
        browser.close()


def test_a_key_is_asked_for(browser, binary, model):
    server = Server(binary, model, "--served-model-name", "small", "--api-key", "secret")
    try:
        browser.open(server.url)
        browser.wait("!document.getElementById('key-row').hidden")
        assert browser.run("return document.activeElement.id") == "key"
        browser.keys("#key", "secret" + TAB)
        browser.wait("document.getElementById('model').textContent === 'small'")
    finally:
        server.stop()


def test_the_page_asks_nobody_else(server):
    page = server.get("/").body
    assert "<script>" in page
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
