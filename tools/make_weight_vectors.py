"""Writes tests/data/weights/*.bin: random blocks of every weight encoding with the values that the public
`gguf` package dequantizes them to, for tests/unit/test_base_weight.c.

A file is little endian: u32 rows, u32 columns, the stored blocks row by row, then rows x columns f32.
Row 0 has ordinary scales, row 1 is random bits (any scale may be NaN, infinite or subnormal), row 2 walks
through the special scales. All NaNs are written as 0x7FC00000.

    python tools/make_weight_vectors.py
"""

from pathlib import Path

import gguf
import numpy as np

ROWS, COLUMNS = 3, 1280
# Name, offsets of the f16 scales inside a block.
ENCODINGS = {
    "F32": [],
    "F16": [],
    "BF16": [],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q6_K": [208],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q5_K": [0, 2],
    "IQ4_NL": [0],
    "MXFP4": [],
}
# Infinity, -0, NaN, largest subnormal, -infinity, NaN, zero, smallest subnormal and normal, 1, largest.
SPECIAL = [0x7C00, 0x8000, 0x7C01, 0x83FF, 0xFC00, 0xFE00, 0x0000, 0x0001, 0x0400, 0x3C00, 0x7BFF]

SPECIAL_EXPONENTS = [0, 1, 2, 3, 127, 128, 251, 252, 253, 254, 255]


def make(name, scale_offsets, random):
    block_columns, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    n_blocks = COLUMNS // block_columns
    blocks = random.integers(0, 256, (ROWS, n_blocks, block_bytes), dtype=np.uint8)
    for offset in scale_offsets:
        ordinary = random.normal(0, 0.02, n_blocks).astype("<f2")
        blocks[0, :, offset : offset + 2] = ordinary.view(np.uint8).reshape(n_blocks, 2)
        special = np.array([SPECIAL[(i + offset) % len(SPECIAL)] for i in range(n_blocks)], "<u2")
        blocks[2, :, offset : offset + 2] = special.view(np.uint8).reshape(n_blocks, 2)
    if name == "MXFP4":  # a byte that holds an exponent
        blocks[0, :, 0] = random.integers(116, 125, n_blocks)
        blocks[2, :, 0] = [SPECIAL_EXPONENTS[i % len(SPECIAL_EXPONENTS)] for i in range(n_blocks)]
    if name in ("F32", "F16", "BF16"):
        ordinary = random.normal(0, 0.02, COLUMNS).astype("<f4")
        if name == "F16":
            ordinary = ordinary.astype("<f2")
            blocks[2, : len(SPECIAL)] = np.array(SPECIAL, "<u2").view(np.uint8).reshape(-1, 2)
        if name == "BF16":
            ordinary = (ordinary.view("<u4") >> 16).astype("<u2")
        blocks[0] = ordinary.view(np.uint8).reshape(n_blocks, block_bytes)
    stored = blocks.reshape(ROWS, n_blocks * block_bytes)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name]).astype("<f4")
    values = np.where(np.isnan(values), np.float32(np.nan), values).astype("<f4")
    assert values.shape == (ROWS, COLUMNS)
    return np.array([ROWS, COLUMNS], "<u4").tobytes() + stored.tobytes() + values.tobytes()


def main():
    folder = Path(__file__).resolve().parent.parent / "tests" / "data" / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(20240229)
    for name, scale_offsets in ENCODINGS.items():
        (folder / f"{name}.bin").write_bytes(make(name, scale_offsets, random))


if __name__ == "__main__":
    main()
