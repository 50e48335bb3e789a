"""Writes tests/data/weights/mlx_dequantize.bin and mlx_quantize.bin: what mlx.core makes of codes, and of floats, for
tests/unit/test_base_weight_apart.c.

    python tools/make_mlx_vectors.py

Needs mlx and numpy. Files are little endian and hold records until they end. Each begins with six u32: encoding (0 affine,
1 E2M1, 2 E4M3), level type (0 f32, 1 f16, 2 bf16, 3 E8M0, 4 E4M3), bits, group, rows, columns. Then come

    mlx_dequantize.bin   codes, scales, affine: biases; values f32 (levels were cast to f32 before)
    mlx_quantize.bin     floats of the level type, codes, scales, biases
"""

from pathlib import Path

import mlx.core as mx
import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "weights"
LEVELS = [(0, mx.float32), (1, mx.float16), (2, mx.bfloat16)]
AFFINE = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
MODES = {"mxfp4": (1, 3, 4, 32), "mxfp8": (2, 3, 8, 32), "nvfp4": (1, 4, 4, 16)}


def raw(array):
    """The bytes of any array of mlx."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array).tobytes()


def header(*fields):
    return np.array(fields, "<u4").tobytes()


def dequantize_affine(bits, group, kind, dtype, random):
    rows, columns = 2, 256
    words = mx.array(random.integers(0, 1 << 32, (rows, columns * bits // 32), dtype=np.uint32))
    scales, biases = (mx.array(random.normal(0, 0.02, (rows, columns // group)).astype("f4")).astype(dtype) for _ in range(2))
    values = mx.dequantize(words, scales.astype(mx.float32), biases.astype(mx.float32), group, bits)
    return header(0, kind, bits, group, rows, columns) + raw(words) + raw(scales) + raw(biases) + raw(values)


def dequantize_mode(mode, random):
    """Every scale there is."""
    encoding, kind, bits, group = MODES[mode]
    columns = 256 * group
    words = mx.array(random.integers(0, 1 << 32, (1, columns * bits // 32), dtype=np.uint32))
    scales = mx.arange(256).astype(mx.uint8).reshape(1, 256)
    values = mx.dequantize(words, scales, None, group, bits, mode, dtype=mx.float32)
    return header(encoding, kind, bits, group, 1, columns) + raw(words) + raw(scales) + raw(values)


def quantize(bits, group, kind, dtype, random):
    """Ordinary rows, and groups that are zero, equal, of one sign, tiny, or mostly one value."""
    values = random.normal(0, 0.05, (3, 256)).astype("f4")
    groups = values[1:].reshape(-1, 32)
    for i, change in enumerate((lambda v: 0 * v, lambda v: 0 * v + 3, lambda v: 0 * v - 0.3, np.abs, lambda v: -np.abs(v),
                                lambda v: v * 1e-8, lambda v: np.where(np.arange(32) == 5, v, 0), lambda v: v + 100)):
        groups[i] = change(groups[i])
    source = mx.array(values).astype(dtype)
    words, scales, biases = mx.quantize(source, group, bits)
    return header(0, kind, bits, group, *source.shape) + raw(source) + raw(words) + raw(scales) + raw(biases)


def main():
    mx.set_default_device(mx.cpu)
    random = np.random.default_rng(20261130)
    records = [dequantize_affine(*shape, *LEVELS[i % 3], random) for i, shape in enumerate(AFFINE)]
    records += [dequantize_mode(mode, random) for mode in MODES]
    (FOLDER / "mlx_dequantize.bin").write_bytes(b"".join(records))
    records = [quantize(*shape, *level, random) for shape in AFFINE for level in LEVELS]
    (FOLDER / "mlx_quantize.bin").write_bytes(b"".join(records))


if __name__ == "__main__":
    main()
