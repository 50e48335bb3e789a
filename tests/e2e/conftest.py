"""Fixtures of the end-to-end tests: the binary and the default model."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def binary():
    path = os.environ.get("CSGL_BINARY", str(ROOT / "build/release/csgl"))
    assert os.path.exists(path), f"{path} is not built"
    return path


@pytest.fixture(scope="session")
def model():
    path = os.environ.get("CSGL_TEST_MODEL", "")
    if not path or not os.path.exists(path):
        pytest.skip("the default model is not there: scripts/fetch-model.sh fetches it")
    return path


@pytest.fixture(scope="session")
def csgl(binary):
    """Runs csgl with arguments; returns the finished process."""

    def run(*arguments, stdin="", timeout=240):
        return subprocess.run([binary, *map(str, arguments)], input=stdin, text=True, timeout=timeout,
                              capture_output=True)

    return run


@pytest.fixture(scope="session")
def generate(csgl, model):
    """Runs `csgl generate --json` on the default model; returns the parsed object."""

    def run(*arguments, stdin=""):
        result = csgl("generate", "--model-path", model, "--json", *arguments, stdin=stdin)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run
