"""Writes tests/data/tokenizer/: small tokenizers, a corpus of texts, and their ids by the `tokenizers` package.

    python tools/make_tokenizer_vectors.py --data DIR tests/data/tokenizer

DIR holds the real tokenizers: qwen3/tokenizer.json, smollm2/tokenizer.json, gpt-oss/tokenizer.json(.xz). One that is
missing keeps its vectors as they are. `--smollm2-gguf FILE` first writes DIR/smollm2/tokenizer.json from the
vocabulary of a GGUF file (needs the `gguf` package).

texts.bin:  "CSGLTXT1", n, then n times: bytes, the text (which need not be UTF-8).
NAME.vec:   "CSGLVEC1", blocks, then for each block of the sweep its number and hash; n, then n times: index of the text,
            flags of encoder.h, ids, each id, the hash of their text with and without special tokens.
Numbers are LEB128; a hash is the CRC-32 of ids (32 bits each) or of bytes, little endian. The sweep takes every
character of the planes that have any through a few contexts (see sweep_text), 1024 characters a block.
"""

import argparse
import json
import lzma
import pathlib
import random
import struct
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ADD_SPECIAL, PLAIN_SPECIAL = 1, 2
SWEEP_BLOCK = 1024

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[" + "\r\n" + r"]*|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+",
)

PROSE = [
    "The ferry left before dawn, and nobody on the quay could say who had untied it. It's the third time, she'd said; "
    "they'll blame us, we've no alibi, and I'm not going to lie. DON'T WAIT, IT'S LATE, WE'LL GO. Prices rose 12.5% in "
    "2023 (from 1,048,576 to 1,179,648), e.g. at 10:45 a.m.; see https://example.org/a?b=c&d=%20#top or mail x.y@z.io.",
    "die Straße führt über Öhringen nach Würzburg; où est-ce que l'été s'arrête ? ¿Dónde está el niño? "
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Съешь же ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "渡口的船在天亮之前就走了，没有人知道是谁解开了缆绳。价格在2023年上涨了百分之十二点五。她说：“这是第三次了！”",
    "夜明け前にフェリーが出た。誰がロープを解いたのか、岸壁の誰にも分からなかった。カタカナとひらがな、１２３４５。",
    "새벽이 오기 전에 배가 떠났고, 누가 밧줄을 풀었는지 아무도 말하지 못했다. 가격은 12.5% 올랐다.",
    "غادرت العبّارة قبل الفجر، ولم يعرف أحد من فكّ الحبل. الأسعار ارتفعت ١٢٫٥٪ في ٢٠٢٣.",
    "नाव भोर से पहले चली गई, और किसी को पता नहीं था कि रस्सी किसने खोली। कीमतें १२.५% बढ़ीं।",
    "เรือออกก่อนรุ่งสาง และไม่มีใครรู้ว่าใครแก้เชือก Tàu rời bến trước bình minh, không ai biết ai đã tháo dây.",
]

CODE = [
    "static int parse(const char *s, size_t n)\n{\n\tfor (size_t i = 0; i < n; i++) {\n\t\tif (s[i] == '\\\\')\n\t\t\treturn -1;\n\t}\n\treturn 0;\n}\n",
    "def f(x: int = 0x1F, *args, **kw) -> dict[str, list[float]]:\n    \"\"\"Doc.\"\"\"\n    return {k: [v ** 2 // 3 % 7] for k, v in kw.items() if v is not None}\n\n\n# ----- end -----\n",
    "<!DOCTYPE html>\r\n<html lang=\"en\">\r\n  <body class='a b'>&nbsp;&lt;x&gt;</body>\r\n</html>\r\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.name LIKE '%x''y%' GROUP BY 1 HAVING COUNT(*) >= 10;\n",
    "{\"key\": [1, 2.50, -3e-7, null, true], \"nested\": {\"a\": \"\\u00e9\\n\"}}\n",
    "HTTPServer parseXMLToJSON snake_case_name kebab-case-name CONSTANT_NAME camelCaseName x1y2z3 v1.2.3-rc4+build.5",
    "$ curl -sS 'https://h/p' | jq '.[] | select(.a>=1)' > /dev/null 2>&1 && echo \"ok: $?\"\n\n\n\n        deep\n\t\t\ttabs",
]

ODDITIES = [
    "", " ", "  ", "\n", "\r\n", "\r\r\n\n", "\t", "a", " a", "a ", "  a", "a  b", "a\n", "\na", " \n a", "a \r\n\r\n b", "a\u00a0b", "a\u0085b",
    "a\u200bb", "a\u3000\u3000b", "\u2028\u2029", "\v\f", "\x00\x01\x7f", "\ufeffa", "\ufffd", "\uffff\U0010ffff", "'s 'S 'ſ 't 'T 'RE 're 'Ll 'D'd''",
    "I'S it'ſ x'll'VE", "'", "''", "'x", " 's", "l'l", "12 123 1234 12345", "٠١٢٣٤٥ ५६७ １２３ Ⅷ ½ ² ①", "\U00011de3\U00016ff4 \U0001d7d8",
    "é e\u0301 e\u0301\u0316 e\u0316\u0301 a\u0328\u0301", "\u1100\u1161\u11a8 \uac00\u11a8 \uac00\u1161", "\u0958 \u2126 \u212b \ufb1d \u0f73 \u0344",
    "\u0301x", "q\u0307\u0323 q\u0323\u0307 \u1e0b\u0323", "\u0bc6\u0bbe \u1112\u1161\u11ab", "\U0001d15e\U0001d1bc", "\u09fe\u0897\u1df6 \U000113c5",
    "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ☺️", "ﬁ ﬀ ǅ ǆ Ǆ ʰ ª º ß ẞ İ ı", "AbcDEFghi ABCdef aBC ABc ǅungla HÉllo ÀÉÎõü Ωmega ʼn", "日本語ABCかなDEF 한글abc",
    "!!! ?!? ... --- === /// //a //\n /\n\n ;;\r\n", " !\n \"\n", "a/b/c //x\n/", "\u0300\u0301\u0302", "क्षि ක්‍ෂ م\u064e\u0651", "<|im_end|>", "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|><|endoftext|>", "x<|endoftext|>y", "<think>\n\n</think>\n\n<tool_call>{}</tool_call>", "<|im_end", "<|im_<|im_end|>", " <|endofprompt|> ",
    "[BOS] [bos] [STRIP]  x   [STRIP]", "a[STRIP]b [STRIP]\n\n\u3000[STRIP] ", "word wordy sword word. (word) wor_word word1 é_word e\u0301word", "cafe\u0301 café \u212aelvin Kelvin kelvin", "long longer longest", "[A][AB][ABC][ABCD", "  [LEFT]  [RIGHT]  ", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


def sweep_text(block):
    text = ""
    for c in range(block * SWEEP_BLOCK, (block + 1) * SWEEP_BLOCK):
        if not 0xD800 <= c < 0xE000:
            text += f"x{chr(c)}y {chr(c)}{chr(c)}1'{chr(c)} "
    return text


def corpus():
    chance = random.Random(20240607)
    texts = [t.encode() for t in PROSE + CODE + ODDITIES]
    words = [w for t in PROSE + CODE + ODDITIES for w in t.split(" ")]
    gaps = ["", "", " ", " ", "  ", "\n", "\r\n", "\t", " \n\n", "\u00a0", "\u0085"]
    interesting = [c for c in "aAbBzZsStT'\"!/.-_ \t\n\r1289éÉßſʰªǅʼ你日かア가\u1100\u1161\u11a8\u0301\u0316\u0345\u0f71\u0f72\u200b\u200d\u00a0\u0085½٣\U0001f44d\U0001f3fd"]
    for _ in range(300):
        n = chance.choice([1, 2, 3, 5, 8, 13, 30])
        texts.append("".join(chance.choice(words) + chance.choice(gaps) for _ in range(n)).encode())
    for _ in range(400):
        texts.append("".join(chance.choice(interesting) for _ in range(chance.choice([1, 2, 3, 4, 6, 10, 40]))).encode())
    for _ in range(150):
        points = [chance.randrange(0x20, chance.choice([0x250, 0x3000, 0x20000, 0x110000])) for _ in range(12)]
        texts.append("".join(chr(c) for c in points if not 0xD800 <= c < 0xE000).encode())
    for _ in range(150):
        texts.append(chance.randbytes(chance.choice([1, 2, 3, 4, 7, 20, 60])))
    for _ in range(100):
        broken = bytearray("".join(chance.choice(words) for _ in range(4)).encode() or b"x")
        for _ in range(chance.randrange(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        texts.append(bytes(broken))
    for unit in ("a", "ab", " ", "\n", "é", "的", "aB", "hello", "-", "\u0301"):
        texts.append((unit * 400).encode())
    return texts


def leb128(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def hash_bytes(data):
    return struct.pack("<I", zlib.crc32(data))


def hash_ids(ids):
    return hash_bytes(struct.pack(f"<{len(ids)}I", *ids))


def sweep_blocks():
    """Planes 0 to 3 and 14, and the last characters of all."""
    total = 0x110000 // SWEEP_BLOCK
    return [b for b in range(total) if b * SWEEP_BLOCK >> 16 in (0, 1, 2, 3, 14) or b == total - 1]


def write_vectors(path, tokenizer, texts):
    out = bytearray(b"CSGLVEC1")
    blocks = sweep_blocks()
    out += leb128(len(blocks))
    for block in blocks:
        out += leb128(block) + hash_ids(tokenizer.encode(sweep_text(block), add_special_tokens=False).ids)
    encodings = []
    for index, raw in enumerate(texts):
        text = raw.decode("utf-8", "replace")
        for flags in (0, ADD_SPECIAL, PLAIN_SPECIAL):
            tokenizer.encode_special_tokens = flags == PLAIN_SPECIAL
            ids = tokenizer.encode(text, add_special_tokens=flags == ADD_SPECIAL).ids
            if flags == 0:
                plain = ids
            if flags == 0 or ids != plain:
                encodings.append((index, flags, ids))
    tokenizer.encode_special_tokens = False
    out += leb128(len(encodings))
    for index, flags, ids in encodings:
        out += leb128(index) + leb128(flags) + leb128(len(ids)) + b"".join(map(leb128, ids))
        for skip in (False, True):
            out += hash_bytes(tokenizer.decode(ids, skip_special_tokens=skip).encode())
    path.write_bytes(out)
    print(f"{path}: {len(encodings)} encodings, {len(out)} bytes")


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False} | options)


def train(pre_tokenizer, normalizer, added, size, model=None):
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(PROSE + CODE, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(added)
    return tokenizer


def renumber(tree):
    """Ids without holes after a change of the vocabulary, the added tokens behind it as the package numbers them."""
    vocabulary = tree["model"]["vocab"]
    tree["model"]["vocab"] = {t: i for i, t in enumerate(sorted(vocabulary, key=vocabulary.get))}
    for i, token in enumerate(tree["added_tokens"]):
        token["id"] = len(vocabulary) + i
    ids = {token["content"]: token["id"] for token in tree["added_tokens"]}
    for processor in (tree["post_processor"] or {}).get("processors", []):
        for name, special in processor.get("special_tokens", {}).items():
            special["ids"] = [ids[name]]


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def small_tokenizers():
    """Every supported feature in a few small files: name, tokenizer.json as a tree."""
    special = [AddedToken(t, special=True, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    plain = [AddedToken(t, normalized=False) for t in ("<think>", "</think>", "[A]", "[AB]", "[ABCD")]
    flags = [
        AddedToken("[STRIP]", lstrip=True, rstrip=True, normalized=False),
        AddedToken("[LEFT]", lstrip=True, normalized=False, special=True),
        AddedToken("[RIGHT]", rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("\u212aelvin", normalized=True),
        AddedToken("long", normalized=True, single_word=True),
    ]

    qwen = train(pre_tokenizers.Sequence([isolated(QWEN2), byte_level()]), normalizers.NFC(), special + plain + flags, 600)
    qwen.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "small_qwen2", json.loads(qwen.to_str())

    qwen35 = train(pre_tokenizers.Sequence([isolated(QWEN35), byte_level()]), normalizers.Sequence([normalizers.NFC()]), special + plain, 500)
    yield "small_qwen35", json.loads(qwen35.to_str())

    llama = train(pre_tokenizers.Sequence([isolated(LLAMA3), byte_level()]), None, special + [AddedToken("[BOS]", special=True), AddedToken("[EOS]", special=True)], 500)
    template = processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", llama.token_to_id("[BOS]")), ("[EOS]", llama.token_to_id("[EOS]"))]
    )
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    tree = json.loads(llama.to_str())
    # A token that no merge makes comes out only because merges are ignored for whole pieces.
    tree["model"]["ignore_merges"] = True
    tree["model"]["vocab"] |= {"Ġferries": 900, "ferry": 901}
    renumber(tree)
    yield "small_llama3", tree

    o200k = train(pre_tokenizers.Sequence([isolated(O200K), byte_level()]), None, special, 500)
    tree = json.loads(o200k.to_str())
    tree["model"]["merges"] = [" ".join(pair) for pair in tree["model"]["merges"]]
    yield "small_o200k", tree

    steps = [isolated(pattern) for pattern in DEEPSEEK]
    deepseek = train(pre_tokenizers.Sequence([*steps, byte_level()]), normalizers.Sequence([]), special + plain, 500)
    yield "small_deepseek", json.loads(deepseek.to_str())

    smol = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), None, special, 500)
    yield "small_smollm", json.loads(smol.to_str())

    # Bytes without a token, a pattern without a matcher of its own, prefix spaces, every behavior.
    steps = [
        pre_tokenizers.Split("-", "removed"),
        pre_tokenizers.Split(Regex(r"[\p{P}\p{S}]"), "merged_with_previous"),
        pre_tokenizers.Split("e", "merged_with_next"),
        pre_tokenizers.Split(Regex(r"[^\s]+"), "contiguous", invert=True),
        pre_tokenizers.Split(Regex(r"o*"), "isolated"),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
    ]
    mixed = train(pre_tokenizers.Sequence(steps), None, special, 450)
    tree = json.loads(mixed.to_str())
    used = {t for pair in tree["model"]["merges"] for t in (*pair, "".join(pair))}
    tree["model"]["vocab"] = {t: i for t, i in tree["model"]["vocab"].items() if len(t) > 1 or t in used or t.isascii()}
    tree["model"]["vocab"]["<unk>"] = 900
    renumber(tree)
    tree["model"]["unk_token"] = "<unk>"
    for fuse in (False, True):
        tree["model"]["fuse_unk"] = fuse
        yield "small_fused" if fuse else "small_mixed", tree


def smollm2_from_gguf(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    tokens, merges, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type"))
    added = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kind == 3}
        for i, (t, kind) in enumerate(zip(tokens, types))
        if kind in (3, 4)
    ]
    steps = [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    model |= {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def read_real(folder):
    path = folder / "tokenizer.json"
    if path.exists():
        return path.read_text()
    packed = folder / "tokenizer.json.xz"
    return lzma.open(packed, "rt", encoding="utf-8").read() if packed.exists() else None


def main():
    parser = argparse.ArgumentParser(description="Generate the tokenizer's test vectors.")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("."), help="folder of the real tokenizers")
    parser.add_argument("--smollm2-gguf", help="GGUF file to take SmolLM2's vocabulary from")
    parser.add_argument("--only", nargs="*", help="write only the tokenizers of these names")
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    if arguments.smollm2_gguf:
        folder = arguments.data / "smollm2"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(smollm2_from_gguf(arguments.smollm2_gguf), ensure_ascii=False))

    texts = corpus()
    packed = b"CSGLTXT1" + leb128(len(texts)) + b"".join(leb128(len(t)) + t for t in texts)
    (arguments.output / "texts.bin").write_bytes(packed)
    for name, tree in small_tokenizers():
        if arguments.only and name not in arguments.only:
            continue
        (arguments.output / f"{name}.json").write_text(json.dumps(tree, ensure_ascii=False, separators=(",", ":")))
        write_vectors(arguments.output / f"{name}.vec", Tokenizer.from_str(json.dumps(tree)), texts)
    for name in ("qwen3", "smollm2", "gpt-oss"):
        if arguments.only and name not in arguments.only:
            continue
        text = read_real(arguments.data / name)
        if text:
            write_vectors(arguments.output / f"{name}.vec", Tokenizer.from_str(text), texts)
        else:
            print(f"{name}: no tokenizer.json in {arguments.data}, its vectors stay as they are")


if __name__ == "__main__":
    main()
