#!/usr/bin/env bash
# Installs what csgl is built and tested with: apt on Debian and Ubuntu, brew on macOS. Elsewhere it says
# what is missing. With --sanitizers also clang, for the sanitizer builds; with --emulator clang 19, for GPU
# kernels; with --arm also a compiler for arm64 Linux and an emulator (their libraries: arm-sysroot.sh).
set -euo pipefail

with_sanitizers=no with_arm=no with_emulator=no
for option in "$@"; do
    case $option in
    --sanitizers) with_sanitizers=yes ;;
    --arm) with_arm=yes ;;
    --emulator) with_emulator=yes ;;
    *)
        echo "csgl: no option $option; there are --sanitizers, --emulator and --arm" >&2
        exit 2
        ;;
    esac
done

# Homebrew's curl stays outside its prefix.
if command -v brew >/dev/null; then
    PKG_CONFIG_PATH="$(brew --prefix)/opt/curl/lib/pkgconfig:${PKG_CONFIG_PATH:-}"
    export PKG_CONFIG_PATH
fi

newest_clang() {
    local version
    for version in 20 19 18 17; do
        command -v "clang++-$version" && return
    done
    return 1
}

missing_tools() {
    local missing=()
    for tool in cc cmake ninja pkg-config python3; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    if command -v pkg-config >/dev/null; then
        for library in libpcre2-8 libevent_core libcurl libzmq cmocka; do
            pkg-config --exists "$library" || missing+=("$library")
        done
    fi
    python3 -m pip --version >/dev/null 2>&1 || missing+=(pip)
    python3 -c 'import pytest' 2>/dev/null || /usr/bin/python3 -c 'import pytest' 2>/dev/null ||
        missing+=(pytest)
    [ $with_sanitizers = no ] || command -v clang >/dev/null || missing+=(clang)
    [ $with_sanitizers = no ] || echo 'int main(void){return 0;}' |
        clang -fsanitize=address -x c - -o /dev/null 2>/dev/null || missing+=(clang-runtime)
    [ $with_emulator = no ] || newest_clang >/dev/null || missing+=(clang-19)
    if [ $with_arm = yes ]; then
        for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
            command -v "$tool" >/dev/null || missing+=("$tool")
        done
    fi
    echo "${missing[*]:-}"
}

missing=$(missing_tools)
[ -n "$missing" ] || exit 0

if command -v apt-get >/dev/null; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    packages="build-essential cmake ninja-build pkg-config libpcre2-dev libevent-dev libcurl4-openssl-dev
              libzmq3-dev libcmocka-dev
              python3 python3-pip python3-pytest ca-certificates"
    # clang's runtime libraries carry its version in their package's name.
    [ $with_sanitizers = no ] || packages="$packages clang"
    [ $with_emulator = no ] || packages="$packages clang-19"
    [ $with_arm = no ] || packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
    echo "installing: $missing" >&2
    $sudo apt-get update -qq
    # shellcheck disable=SC2086  # the list is words
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $packages >/dev/null
    if [ $with_sanitizers = yes ]; then
        version=$(clang -dumpversion | cut -d. -f1)
        DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends \
            "libclang-rt-$version-dev" >/dev/null
    fi
elif command -v brew >/dev/null; then
    brew install --quiet cmake ninja pkg-config pcre2 libevent curl zeromq cmocka python
    # Homebrew's pytest is a program whose module no other Python finds.
    python3 -c 'import pytest' 2>/dev/null ||
        PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user pytest
fi

missing=$(missing_tools)
if [ -n "$missing" ]; then
    echo "csgl: still missing: $missing; install them with your system's package manager" >&2
    exit 1
fi
