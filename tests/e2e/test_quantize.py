"""csgl quantize, and models that were quantized."""

import json
import pathlib
import struct

import pytest

MODELS = pathlib.Path(__file__).resolve().parents[2] / "tests/models"


def tensors(path):
    """The header of a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length])


def test_a_folder_in_the_format_of_mlx(csgl, tmp_path):
    out = tmp_path / "out"
    result = csgl("quantize", str(MODELS / "qwen3_mha"), str(out), "--bits", "8", "--group-size", "32")
    assert result.returncode == 0 and result.stdout == f"{out}\n" and result.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    config = json.loads((out / "config.json").read_text())
    original = json.loads((MODELS / "qwen3_mha/config.json").read_text())
    assert config["quantization"] == config["quantization_config"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    assert {key: config[key] for key in original} == original
    header = tensors(out / "model.safetensors")
    assert header["__metadata__"] == {"format": "mlx"}
    assert header["lm_head.weight"]["dtype"] == "U32" and header["lm_head.scales"]["dtype"] == "BF16"
    assert header["model.norm.weight"] == {**header["model.norm.weight"], "dtype": "BF16", "shape": [64]}


def test_shards_and_their_index(csgl, tmp_path):
    out = tmp_path / "out"
    assert csgl("quantize", str(MODELS / "qwen3_mha"), str(out), "--shard-gb", "3e-5", "--quiet").returncode == 0
    weight_map = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    for name in set(weight_map.values()):
        assert {key for key, file in weight_map.items() if file == name} == tensors(out / name).keys() - {"__metadata__"}
    assert len(set(weight_map.values())) > 1
    for name in (*set(weight_map.values()), "model.safetensors.index.json"):
        assert (out / name).stat().st_size < 60000


@pytest.mark.parametrize("arguments, word", [
    ((), "which model"),
    (("a",), "which model"),
    (("a", "b", "c"), "positional"),
    (("--bits", "9", "a", "b"), "--bits"),
    (("--mode", "mxfp4", "a", "b"), "mxfp4"),
    (("--bits", "7", str(MODELS / "qwen3_mha"), "OUT"), "7 bits"),
    (("--group-size", "48", str(MODELS / "qwen3_mha"), "OUT"), "groups of 48"),
    ((str(MODELS / "qwen3_mha"), str(MODELS)), "exists already"),
    ((str(MODELS / "mlx_q4_g64"), "OUT"), "quantized already"),
    ((str(MODELS / "gpt_oss_mxfp4"), "OUT"), "quantized already"),
    ((str(MODELS / "gguf_f16/model.gguf"), "OUT"), "GGUF"),
    ((str(MODELS / "qwen3_mha"), "no/such/folder/OUT"), "no/such/folder"),
])
def test_what_cannot_be_done_gets_one_sentence(csgl, tmp_path, arguments, word):
    out = tmp_path / "OUT"
    result = csgl("quantize", *(str(out) if argument == "OUT" else argument for argument in arguments))
    assert result.returncode in (1, 2) and word in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_quantized_model_is_not_quantized_again(csgl, model):
    result = csgl("generate", "--model-path", model, "--quantization", "mlx_q4", "--max-tokens", "1", "x")
    assert result.returncode == 1 and "quantized already" in result.stderr


def test_both_ways_run_the_same_weights(csgl, tmp_path):
    out = tmp_path / "out"
    assert csgl("quantize", str(MODELS / "qwen3_mha"), str(out), "--quiet").returncode == 0
    lengths = ("--input-len", "8", "--output-len", "4", "--json", "--runs", "1")
    for arguments in (("--model-path", str(out)), ("--model-path", str(MODELS / "qwen3_mha"), "--quantization", "mlx_q4")):
        result = csgl("bench_one_batch", *arguments, *lengths)
        assert result.returncode == 0, result.stderr
