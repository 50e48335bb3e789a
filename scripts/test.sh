#!/usr/bin/env bash
# Builds csgl and passes every test. Arguments choose the builds; without any it is the release build.
#   release  gcc or the system's compiler, all tests
#   asan     clang with AddressSanitizer and UBSan: unit, ops, tiny models, command line, API
#   tsan     clang with ThreadSanitizer: thread pool, messages, scheduler, server
#   emulator clang 19 for the kernels: every operation of the GPU device on an emulator, whole tiny models
#   arm      gcc for arm64 under an emulator: every operation and tiny models at every level of kernels,
#            operations on a processor of the base level, the command line; arm-quick: linears only
# Ends with "N passed, N failed" over all of them.
set -euo pipefail
cd "$(dirname "$0")/.."

builds=("${@:-release}")
passed=0 failed=0

with=()
case " ${builds[*]} " in *" asan "* | *" tsan "*) with+=(--sanitizers) ;; esac
case " ${builds[*]} " in *" emulator "*) with+=(--emulator) ;; esac
case " ${builds[*]} " in *" arm"*) with+=(--arm) ;; esac
scripts/install-deps.sh "${with[@]}"

# The tests of the real model are skipped, and say so, when it cannot be fetched.
CSGL_TEST_MODEL=$(scripts/fetch-model.sh || true)
export CSGL_TEST_MODEL
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp"

python=python3
$python -c 'import pytest' 2>/dev/null || python=/usr/bin/python3

# Adds the counts of one log: cmocka's lines of single tests, or the executables that died without any.
count_unit_tests() {
    local ok bad dead
    ok=$(grep -c '\[       OK \]' "$1" || true)
    bad=$(grep -cE '^ *[0-9]+: \[  FAILED  \] [a-z_0-9]+$' "$1" || true)
    dead=$(sed -nE 's/.*, ([0-9]+) tests? failed out of .*/\1/p' "$1" | tail -n 1)
    [ "${dead:-0}" -gt "$bad" ] && bad=$dead
    passed=$((passed + ok))
    failed=$((failed + bad))
}

# pytest's last line: "3 failed, 20 passed, 1 skipped, 1 error in 2.0s".
count_pytest() {
    local kind n
    for kind in passed failed error; do
        n=$(tail -n 1 "$1" | sed -nE "s/.*[^0-9]?\b([0-9]+) $kind.*/\1/p")
        [ "$kind" = passed ] && passed=$((passed + ${n:-0})) || failed=$((failed + ${n:-0}))
    done
    tail -n 1 "$1" | grep -qE 'passed|failed|skipped' || failed=$((failed + 1))
}

# BUILD and ctest's options; its output stays in $log.
run_ctest() {
    local build=$1
    shift
    (cd "build/$build" && ctest --verbose "$@") >"$log" 2>&1 || true
    grep -E '^ *[0-9]+/[0-9]+ Test|^ *[0-9]+: (skipped|SKIP)|FAILED|ERROR|error:|Sanitizer' "$log" || true
    count_unit_tests "$log"
}

# BUILD, the ctest tests to leave out (a pattern), and the end-to-end tests to run.
run_build() {
    local build=$1 leave_out=$2
    shift 2
    echo "== $build"
    cmake --preset "$build" >/dev/null
    cmake --build "build/$build"
    run_ctest "$build" -j "$(nproc)" -E "$leave_out"
    [ $# = 0 ] || run_pytest "$PWD/build/$build/csgl" "$@"
}

# Counts what pytest says of the tests, run with the given csgl.
run_pytest() {
    local binary=$1
    shift
    CSGL_BINARY=$binary $python -m pytest -q -rs "$@" 2>&1 | tee "$log" || true
    count_pytest "$log"
}

# End-to-end tests of the arm64 csgl.
run_emulated() {
    local binary="$PWD/build/arm/csgl-emulated"
    printf '#!/bin/sh\nexec qemu-aarch64 -L "%s" "%s" "$@"\n' "$PWD/build/arm-sysroot" "$PWD/build/arm/csgl" >"$binary"
    chmod +x "$binary"
    run_pytest "$binary" "$@"
}

# What knows the GPU device.
run_emulator() {
    local models='models_logits|models_in_place'
    local ops='emulator|rows|linear|linear_apart|linear_behind|attention|gated_delta|moe|sample|gpu_in_place|profile'
    echo "== emulator"
    cmake --preset emulator >/dev/null
    cmake --build build/emulator --target csgl "${operations[@]}" test_{emulator,models_logits,models_in_place}
    run_ctest emulator -j "$(nproc)" -R '^kernel_'
    run_ctest emulator -R "^test_($ops|$models)\$"
    CSGL_TEST_GPU=emulator run_pytest "$PWD/build/emulator/csgl" tests/e2e/test_device.py tests/e2e/test_emulator.py
}

# The emulated processor, and the tests to build and run on it.
run_arm() {
    local cpu=$1 pattern
    shift
    echo "== arm, $cpu"
    scripts/arm-sysroot.sh >/dev/null
    cmake --preset arm >/dev/null
    cmake --build build/arm --target "$@"
    pattern="^($(IFS='|' && echo "$*"))\$"
    QEMU_CPU=$cpu run_ctest arm -j "$(nproc)" -R "$pattern"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
operations=()
for test in tests/ops/test_*.c; do
    name=$(basename "$test" .c)
    [ "$name" = test_emulator ] || operations+=("$name") # of the emulator's build alone
done
for build in "${builds[@]}"; do
    case $build in
    release | debug) run_build "$build" '^$' tests/e2e ;;
    # The real model's perplexity and the equality of answers are the release build's. NVRTC leaks.
    asan) run_build asan 'smollm2|cuda_compile' tests/e2e/test_cli.py tests/e2e/test_quantize.py tests/e2e/test_server_api.py ;;
    tsan) run_build tsan 'base_[^t]|bench|checkpoint|device|kvcache|tokenizer|template|parser|engine|models|linear|rows|attention|gated|moe|sample' ;;
    emulator) run_emulator ;;
    arm)
        run_arm max csgl "${operations[@]}" test_base_half test_base_thread_pool test_models_logits
        run_emulated tests/e2e/test_cli.py -k 'version or sentence'
        run_arm cortex-a72 "${operations[@]}"
        ;;
    arm-quick) run_arm max test_linear ;;
    *)
        echo "csgl: no build named $build; there are release, debug, asan, tsan, emulator, arm and arm-quick" >&2
        exit 2
        ;;
    esac
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
