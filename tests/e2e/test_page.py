"""The chat page in a real browser. Skipped where Selenium or Chromium is missing (Debian: python3-selenium,
chromium-driver)."""

import shutil
import time

import pytest

from serving import Server

webdriver = pytest.importorskip("selenium.webdriver")
if not shutil.which("chromedriver"):
    pytest.skip("chromedriver is not installed", allow_module_level=True)


@pytest.fixture
def browser():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        driver = webdriver.Chrome(options=options)
    except Exception as error:
        pytest.skip(f"Chromium does not start: {error}")
    yield driver
    driver.quit()


@pytest.fixture
def serve(binary, model):
    servers = []

    def start(*options):
        servers.append(Server(binary, model, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()


def element(browser, name):
    return browser.find_element("id", name)


def wait_for(condition, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("what was waited for did not come")


def ask(browser, text):
    question = element(browser, "question")
    question.clear()
    question.send_keys(text)
    element(browser, "send").click()


def log_text(browser):
    return element(browser, "log").text


def test_a_conversation(serve, browser):
    server = serve("--activations", "float")
    browser.get(server.url + "/")
    assert "csgl" in wait_for(lambda: "csgl" in browser.title and browser.title)
    browser.execute_script("document.getElementById('settings').open = true;"
                           "document.getElementById('temperature').value = '0';")
    ask(browser, "What is the capital of France?")
    wait_for(lambda: "Paris" in log_text(browser))
    wait_for(lambda: element(browser, "send").is_displayed())
    assert "tok" in log_text(browser)  # the figures under the answer
    element(browser, "fresh").click()
    wait_for(lambda: "Paris" not in log_text(browser))


def test_stop_ends_the_answer(serve, browser):
    server = serve()
    browser.get(server.url + "/")
    ask(browser, "Write a very long story about the sea, with many chapters.")
    wait_for(lambda: element(browser, "stop").is_displayed())
    wait_for(lambda: len(log_text(browser)) > 100)
    element(browser, "stop").click()
    wait_for(lambda: element(browser, "send").is_displayed())
    length = len(log_text(browser))
    time.sleep(0.5)
    assert len(log_text(browser)) == length
    wait_for(lambda: "csgl_requests_running 0" in server.request("GET", "/metrics").body, 5)


def test_a_key_is_asked_for(serve, browser):
    server = serve("--api-key", "secret")
    browser.get(server.url + "/")
    wait_for(lambda: element(browser, "key").is_displayed())
    element(browser, "key").send_keys("secret\t")
    ask(browser, "Say one word.")
    wait_for(lambda: len(log_text(browser)) > 20)


def test_nothing_is_loaded_from_elsewhere_and_a_phone_fits(serve, browser):
    server = serve()
    browser.set_window_size(375, 700)
    browser.get(server.url + "/")
    time.sleep(0.5)
    urls = [line for entry in browser.get_log("performance")
            for line in [entry["message"]] if '"Network.requestWillBeSent"' in line]
    assert urls and all(server.url in line or "data:" in line for line in urls)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= browser.execute_script("return window.innerWidth")
    for name in ("question", "system", "temperature"):  # every field has a label
        assert browser.find_elements("css selector", f"label[for={name}]") or browser.execute_script(
            "return document.getElementById(arguments[0]).closest('label') !== null", name)
    assert element(browser, "log").get_attribute("aria-live") == "polite"
