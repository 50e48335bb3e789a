"""What nvcc makes of a kernel for the GPUs that csgl is built for: no spills, few registers, wide loads.

cuda_gate.py --nvcc NVCC --include FOLDER --limits FILE KERNELS   exits with 1 if a limit is broken
cuda_gate.py --nvcc NVCC --include FOLDER --bugs                  shows that each limit finds its bug
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ARCHITECTURES = ["80", "90a", "120"]
DEFAULTS = {"registers": 128, "load": 1}  # 128 registers a thread: 512 threads of an SM's 65536


def read_limits(path):
    """{kernel: {"registers": most, "load": bytes that its widest load of global memory must have}}"""
    limits = {}
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            limits[words[0]] = {"registers": int(words[1]), "load": int(words[2])}
    return limits


def loads_of(ptx):
    """{kernel: the widest load of global memory in bytes} of a file of PTX."""
    widest = {}
    for name, body in re.findall(r"\.entry (\w+)\(.*?^\{(.*?)^\}", ptx, re.S | re.M):
        widths = [int(n or 1) * int(bits) // 8 for n, bits in
                  re.findall(r"\bld\.global[.\w:]*?(?:\.v(\d))?\.[bufs](\d+)\b", body)]
        widest[name] = max(widths, default=0)
    return widest


def compile_kernels(source, nvcc, include, architectures):
    """[(architecture, kernel, {"registers": n, "spilled": bytes, "load": bytes})] of a file."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
        done = subprocess.run([nvcc, "-x", "cu", "-std=c++17", "-O3", "-fatbin", *codes, "-Xptxas", "-v", "-keep",
                               "-keep-dir", folder, f"-I{include}", f"-I{include}/kernels", "-o", f"{folder}/out",
                               source], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        loads = {}
        for a in architectures:  # nvcc puts the architecture into a file's name where there are several
            kept = pathlib.Path(folder).glob(f"*compute_{a}*.ptx" if len(architectures) > 1 else "*.ptx")
            loads[a] = loads_of("\n".join(path.read_text() for path in kept))
        for name, architecture, spilled, registers in re.findall(
                r"entry function '(\w+)' for 'sm_(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers",
                done.stderr, re.S):
            found.append((architecture, name, {"registers": int(registers), "spilled": int(spilled),
                                               "load": loads[architecture].get(name, 0)}))
    return found


def broken(measured, limits):
    """A sentence a limit that a kernel breaks."""
    for architecture, name, m in measured:
        most = limits.get(name, DEFAULTS)
        if m["spilled"]:
            yield f"{name} on sm_{architecture} spills {m['spilled']} bytes"
        if m["registers"] > most["registers"]:
            yield f"{name} on sm_{architecture} uses {m['registers']} registers; its limit is {most['registers']}"
        if m["load"] < most["load"] and name in limits:
            yield f"{name} on sm_{architecture} loads {m['load']} bytes at once; it should load {most['load']}"


HEAD = '#include "kernels/kd.h"\n'
ARGUMENTS = "CBUF(float, x, 0), BUF(float, out, 1), PARM(kd_no_args, p, 2)"
BUGS = {
    "": f"KERNEL(k, {ARGUMENTS})\n{{\n    out[TID] = x[TID];\n}}",
    "spills": f"KERNEL(k, {ARGUMENTS})\n{{\n    float v[300];\n"
              "    KD_UNROLL for (uint i = 0; i < 300; i++) v[i] = 0.0f;\n"
              "    for (uint j = 0; j < p.unused; j++) {\n"
              "        KD_UNROLL for (uint i = 0; i < 300; i++) v[i] = v[i] * x[j] + x[i];\n    }\n"
              "    KD_UNROLL for (uint i = 0; i < 300; i++) out[i * 64u + TID] = v[i];\n}",
    "its limit is 8": f"KERNEL(k, {ARGUMENTS})\n{{\n    float s = 0.0f;\n"
                      "    for (uint i = TID; i < 4096; i += 32u) s += x[i] * x[i + 7u];\n    out[TID] = s;\n}",
    "it should load 16": f"KERNEL(k, {ARGUMENTS})\n{{\n"
                         "    for (uint i = 0; i < 4; i++) out[TID * 4u + i] = x[TID * 4u + i] + x[0];\n}",
}


def find_bugs(nvcc, include):
    missed = 0
    for expected, source in BUGS.items():
        limits = {"k": {"registers": 8 if "limit" in expected else 255, "load": 16 if "load" in expected else 4}}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bug.metal"
            path.write_text(f"{HEAD}{source}\n")
            found = list(broken(compile_kernels(path, nvcc, include, ARCHITECTURES[:1]), limits))
        is_right = not found if expected == "" else len(found) >= 1 and all(expected in line for line in found)
        missed += not is_right
        print(("found: " if is_right else "MISSED: ") + (expected or "nothing, as there is nothing"), *found)
    return missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--include", required=True)
    parser.add_argument("--limits", type=pathlib.Path)
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    if options.bugs:
        return 1 if find_bugs(options.nvcc, options.include) else 0
    measured = [m for path in options.files
                for m in compile_kernels(path, options.nvcc, options.include, ARCHITECTURES)]
    for architecture, name, m in measured:
        print(f"{name} sm_{architecture}: {m['registers']} registers, {m['spilled']} bytes spilled, loads of {m['load']}")
    found = list(broken(measured, read_limits(options.limits)))
    print(*found, sep="\n")
    return 1 if found or not measured else 0


if __name__ == "__main__":
    sys.exit(main())
