"""What Apple's compiler or GPU refuses and no compiler on another system does.

lint.py --clang CLANG --include FOLDER FILE...   reads kernels and their headers; exits with 1 if something is found
lint.py --clang CLANG --include FOLDER --bugs    shows that each rule finds its bug
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

GROUP_BYTES = 32 << 10  # threadgroup memory of every Apple GPU (Metal Feature Set Tables)
MOST_BUFFERS = 31  # argument table entries, likewise

SPACES = r"(?:device|constant|threadgroup|thread)"
TYPES = (r"(?:(?:float|half|uint|int|ushort|short|uchar|char|ulong|long|bool)[234]?|void|auto|"
         r"u?int(?:8|16|32|64)_t|size_t|kd_\w+_t|struct \w+)")
SIZES = {"float": 4, "half": 2, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


def without_comments(text):
    """Comments and macro definitions become spaces, so that line numbers stay."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    return re.sub(r"//[^\n]*|/\*.*?\*/|^#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.S | re.M)


def at(text, place):
    return text.count("\n", 0, place) + 1


def closing(text, start, pair):
    """The place behind what text[start] opens."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == pair[0]) - (text[place] == pair[1])
        if depth == 0:
            return place + 1
    return len(text)


def pointers(text, structs):
    """Pointers and references whose address space is not said."""
    types = TYPES[:-1] + "".join("|" + s for s in structs) + ")"
    for m in re.finditer(rf"((?:\b\w+\s+)*)\b{types}\s*(?:const\s*)?[*&](?![&=])", text):
        if not re.search(rf"\b{SPACES}\b", m.group(1)):
            yield at(text, m.end()), "a pointer or reference without an address space"


def kernels(text):
    """(place, name, arguments, begin and end of the body) of each KERNEL."""
    for m in re.finditer(r"\bKERNEL\s*\(", text):
        end = closing(text, m.end() - 1, "()")
        inside = text[m.end():end - 1]
        name = inside.split(",", 1)[0].strip()
        body = text.find("{", end)
        yield m.start(), name, inside, body, closing(text, body, "{}") if body >= 0 else end


def buffers(text):
    """Arguments that are not bound at 0, 1, ... in order, the struct last."""
    for place, name, inside, _, _ in kernels(text):
        found = re.findall(r"\b(C?BUF|PARM)\s*\(\s*[\w ]+,\s*\w+\s*,\s*(\d+)\s*\)", inside)
        if [int(i) for _, i in found] != list(range(len(found))):
            yield at(text, place), f"kernel {name} binds {[int(i) for _, i in found]}, not 0, 1, ..."
        if not found or [kind for kind, _ in found].index("PARM") != len(found) - 1:
            yield at(text, place), f"kernel {name} does not end with its one PARM"
        if len(found) > MOST_BUFFERS:
            yield at(text, place), f"kernel {name} has {len(found)} arguments; Metal binds {MOST_BUFFERS}"


def group_arrays(text):
    """TG_ARRAY outside a kernel: Metal has threadgroup variables in kernels alone."""
    bodies = [(begin, end) for _, _, _, begin, end in kernels(text)]
    for m in re.finditer(r"\bTG_ARRAY\s*\(", text):
        if not any(begin < m.start() < end for begin, end in bodies):
            yield at(text, m.start()), "TG_ARRAY outside a kernel"


def doubles(text):
    for m in re.finditer(r"\bdouble\b|\b\d+\.\d*(?:e[-+]?\d+)?(?![\w.])", text):
        yield at(text, m.start()), f"{m.group()} is of type double, which Metal lacks"


def size_of(llvm_type):
    """The bytes of an LLVM type made of arrays and vectors of scalars."""
    m = re.fullmatch(r"[\[<](\d+) x (.+)[\]>]", llvm_type.strip())
    return int(m.group(1)) * size_of(m.group(2)) if m else SIZES[llvm_type.strip()]


def group_memory(path, clang, include):
    """Kernels that share more than a threadgroup has; OpenCL's compiler says what each declares."""
    if path.suffix != ".metal":
        return
    ir = subprocess.run([clang, "-x", "cl", "-cl-std=clc++2021", "-target", "spir64", "-O0", "-S", "-emit-llvm",
                         f"-I{include}", "-o", "-", path], check=True, capture_output=True, text=True).stdout
    used = {}
    for length, rest, kind in re.findall(r"^@_ZZ(\d+)(\w+) = internal addrspace\(3\) global (\[.*?\]+|\w+) ", ir, re.M):
        kernel = rest[:int(length)]  # the mangled name begins with its length and name
        used[kernel] = used.get(kernel, 0) + size_of(kind)
    for kernel, n_bytes in used.items():
        if n_bytes > GROUP_BYTES:
            yield 1, f"kernel {kernel} shares {n_bytes} bytes; a threadgroup has {GROUP_BYTES}"


def lint(path, clang, include):
    text = without_comments(path.read_text())
    structs = re.findall(r"\bstruct\s+(\w+)\s*\{", text) + [r"kd_\w+"]
    found = [*pointers(text, structs), *buffers(text), *group_arrays(text), *doubles(text),
             *group_memory(path, clang, include)]
    return [f"{path}:{line}: {what}" for line, what in found]


ARGUMENTS = "CBUF(float, x, 0), BUF(float, out, 1), PARM(kd_no_args, p, 2)"
BUGS = {
    "": f"KERNEL(k, {ARGUMENTS})\n{{\n    TG_ARRAY(float, s, 8192);\n    s[TID] = 2.0f * x[TID];\n    out[TID] = s[TID];\n}}",
    "a pointer or reference without an address space":
        f"KD_INLINE float f(const float *x)\n{{\n    return *x;\n}}\nKERNEL(k, {ARGUMENTS})\n{{\n    out[TID] = x[TID];\n}}",
    "binds [0, 1, 1]": "KERNEL(k, CBUF(float, x, 0), BUF(float, out, 1), PARM(kd_no_args, p, 1))\n{\n    out[TID] = x[TID];\n}",
    "does not end with its one PARM":
        "KERNEL(k, CBUF(float, x, 0), PARM(kd_no_args, p, 1), BUF(float, out, 2))\n{\n    out[TID] = x[TID];\n}",
    "shares 32772 bytes":
        f"KERNEL(k, {ARGUMENTS})\n{{\n    TG_ARRAY(float, s, 8192);\n    TG_ARRAY(ushort, t, 2);\n    s[TID] = x[TID];\n    t[TID] = 0;\n    out[TID] = s[TID];\n}}",
    "TG_ARRAY outside a kernel": "KD_INLINE void f()\n{\n    TG_ARRAY(float, s, 8);\n}",
    "2.0 is of type double": f"KERNEL(k, {ARGUMENTS})\n{{\n    out[TID] = x[TID] * 2.0;\n}}",
}


def find_bugs(clang, include):
    """Each rule on a kernel with its bug, in a header where the compiler would find it too."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for expected, source in BUGS.items():
            is_compiled = expected == "" or "bytes" in expected
            path = pathlib.Path(folder) / ("bug.metal" if is_compiled else "bug.h")
            path.write_text(f'#include "kernels/kd.h"\n{source}\n')
            found = lint(path, clang, include)
            is_right = not found if expected == "" else len(found) >= 1 and expected in found[0]
            missed += not is_right
            print(("found: " if is_right else "MISSED: ") + (expected or "nothing, as there is nothing"), *found)
    return missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clang", required=True)
    parser.add_argument("--include", required=True)
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    if options.bugs:
        return 1 if find_bugs(options.clang, options.include) else 0
    found = [line for path in options.files for line in lint(path, options.clang, options.include)]
    print("\n".join(found) or f"{len(options.files)} files are clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
