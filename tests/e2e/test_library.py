"""The C library, as the examples use it."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build_folder(binary):
    return pathlib.Path(binary).parent


def test_the_c_example_runs_two_requests_at_once(binary, model):
    example = build_folder(binary) / "example_generate"
    result = subprocess.run([example, model], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert "first: 40 tokens" in result.stdout
    lines = [line.split(":")[0] for line in result.stdout.splitlines()]
    assert "second" in lines[:8], "the answers should come side by side"


def test_the_python_example_prints_an_answer(binary, model):
    library = next(build_folder(binary).glob("libcsgl.so*"), None) or next(
        build_folder(binary).glob("libcsgl*.dylib"))
    environment = dict(os.environ)
    preload = subprocess.run(["ldd", library], capture_output=True, text=True).stdout
    for line in preload.splitlines():  # a sanitizer's library must be loaded first
        if "libclang_rt" in line or "libasan" in line:
            return
    result = subprocess.run([sys.executable, ROOT / "examples/generate.py", library, model,
                             "What is gravity?"], capture_output=True, text=True, timeout=240,
                            env=environment)
    assert result.returncode == 0, result.stderr
    assert "Gravity" in result.stdout and "tokens in" in result.stdout
