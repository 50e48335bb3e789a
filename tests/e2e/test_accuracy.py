"""Answers of the default model to questions of several kinds are those that transformers gave."""

import pathlib
import subprocess
import sys

from serving import Server

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/accuracy.py"


def test_answers_are_the_references(binary, model):
    server = Server(binary, model, "--activations", "float", "--kv-cache-dtype", "f32")
    try:
        result = subprocess.run([sys.executable, TOOL, "--base-url", server.url + "/v1", "--limit", "64", "--concurrency", "8",
                                 "--least-identical", "0.98"], text=True, capture_output=True, timeout=240)
        assert result.returncode == 0, result.stdout + result.stderr
        assert len(result.stdout.splitlines()) == 6
    finally:
        assert server.stop() == 0
