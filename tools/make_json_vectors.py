"""Writes tests/data/json/vectors.bin: documents with Python's verdict, for tests/unit/test_base_json.c.

A record is u8 accepted, u32 n, n bytes of document, u32 m, m bytes of expected text (little endian). Expected is
json.dumps(ensure_ascii=False) of what Python read, with numbers as they were written. Where csgl differs on
purpose, the judge is told so: NaN and the infinities are not JSON and are refused, lone surrogates become
U+FFFD, and a byte order mark is skipped. Objects with repeated keys and documents deeper than 128 levels are left to the C test.

    python tools/make_json_vectors.py
"""

import json
import random
import re
import struct
from pathlib import Path

MARK = "\ue0f1"  # encloses numbers on their way through json.dumps; no document contains it

# Documents that must be tried as they are; the mutations below start from these.
VALID = [
    b"null", b"true", b"false", b"0", b"-0", b"-1", b"10", b"1.5", b"-0.0", b"1e5", b"1E+05", b"1e-5", b"1.25e2",
    b"123456789012345678901234567890", b"1e400", b"0.1e-400", b'""', b'"a"', b'"a\\nb"', b'"\\"\\\\\\/\\b\\f\\n\\r\\t"',
    b'"\\u0041\\u00e9\\u4e2d"', b'"\\ud83d\\ude00"', b'"\\uD83D\\uDE00x"', b'"\\u0000"', b'"\\u001f\x7f"',
    b'"\\u2028\\u2029"', '"é中😀"'.encode(), b"[]", b"[ ]", b"[1]", b"[1, 2, 3]", b"[[], [[]], {}]", b"{}",
    b"{ }", b'{"a": 1}', b'{"a": {"b": [null, true, false]}}', b'{"": ""}', b'{"b": 1, "a": 2}', b' \t\r\n[ 1 , 2 ]\n ',
    b'{"role": "user", "content": "Hello, \\"world\\"!"}', b"\xef\xbb\xbf[1]",
    '{"messages": [{"role": "user", "content": "Grüße"}], "temperature": 0.7, "stream": true}'.encode(),
    b'{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": []}}}',
    b"[" * 100 + b"]" * 100, b'{"k":' * 60 + b"1" + b"}" * 60,
]
OTHERS = [
    b"", b" ", b"\xef\xbb\xbf", b"nul", b"nulll", b"True", b"NaN", b"Infinity", b"-Infinity", b"-NaN", b"[NaN]", b"+1", b"01",
    b"-01", b"-", b"--1", b".5", b"5.", b"1.e5", b"1e", b"1e+", b"1ee5", b"0x10", b"1_000", b"1,", b"'a'", b'"', b'"a', b'"\\"',
    b'"\\x41"', b'"\\u12"', b'"\\u12g4"', b'"\\U00000041"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"', b'"\\ud800\\ud800"',
    b'"\\ud800\\ud83d\\ude00"', b'"\\ud800\\n"', b'"\n"', b'"\t"', b'"\x00"', b'"\x1f"', b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'"\xf0\x9f\x98"', b"[", b"]", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1,,2]",
    b"{", b"}", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b"{a:1}", b"{'a':1}", b'{"a" 1}', b'{"a":1 "b":2}', b"{1:2}",
    b'{null:1}', b'{"a":}', b"[}", b"{]", b"[1}", b'{"a":1]', b"1 2", b"[] []", b"{}x", b"// c\n1", b"/* c */1", b"[1] // c",
    b"\x0b1", b"\x0c1", b"\xa01", b"\xc2\xa01", b"1\x00", b"\x001", b"[\x00]", b"tru", b"fals", b"truefalse", b"nulltrue",
    b'"a" "b"', b'["a" : 1]', b'{"a": 1, 2}', b'{"a", "b"}', b"\\u0031", b'"\\', b'"\\u', b'"\\ud83d\\u"', b'"\\ud83d\\', b"-1-1",
    b"1e5.5", b"00", b"0e", b"-e5", b"[1]]", b"{{}}", b'{"a": [}', b"\xfe\xff\x001", b"1\x00\x00\x00",
]


def refuse(word):
    raise ValueError(word)


def check_keys(pairs):
    if len(dict(pairs)) != len(pairs):
        raise KeyError("repeated key")
    return dict(pairs)


def judge(document):
    """(accepted, expected bytes), or None for documents that are left to the C test."""
    keep = lambda text: MARK + text + MARK  # noqa: E731
    try:
        text = document.decode("utf-8-sig")
        value = json.loads(
            text, parse_float=keep, parse_int=keep, parse_constant=refuse, object_pairs_hook=check_keys)
    except KeyError:
        return None
    except ValueError:
        return False, b""
    written = re.sub(f'"{MARK}([^"]*){MARK}"', r"\1", json.dumps(value, ensure_ascii=False))
    return True, re.sub("[\ud800-\udfff]", "\ufffd", written).encode()


def mutations(chooser, n):
    letters = b'{}[]",:\\/ \n\t0123456789.-+eEtrufalsnbxd\x00\x1f\x7f\x80\xbf\xc3\xe2\xed\xf0\xff'
    for _ in range(n):
        document = bytearray(chooser.choice(VALID[:-2]))
        for _ in range(chooser.choice([1, 1, 1, 2, 3])):
            at = chooser.randrange(len(document) + 1)
            kind = chooser.randrange(4)
            if kind == 0:
                document[at:at] = bytes([chooser.choice(letters)])
            elif kind == 1:
                document[at : at + 1] = bytes([chooser.choice(letters)])
            elif kind == 2:
                del document[at : at + chooser.randrange(1, 4)]
            else:
                other = chooser.choice(VALID[:-2])
                document[at:at] = other[chooser.randrange(len(other) + 1) :]
        yield bytes(document)


def main():
    chooser = random.Random(8259)
    documents = dict.fromkeys(VALID + OTHERS + list(mutations(chooser, 3000)))
    records, counts = [], [0, 0]
    for document in documents:
        verdict = judge(document)
        if verdict is None:
            continue
        accepted, expected = verdict
        counts[accepted] += 1
        records.append(struct.pack("<BI", accepted, len(document)) + document + struct.pack("<I", len(expected)) + expected)
    folder = Path(__file__).resolve().parent.parent / "tests" / "data" / "json"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vectors.bin").write_bytes(b"".join(records))
    print(f"{counts[1]} accepted, {counts[0]} refused")


if __name__ == "__main__":
    main()
