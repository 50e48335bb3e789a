#!/usr/bin/env bash
# Fills build/arm-sysroot with what csgl links on arm64 Debian, for cmake/aarch64-linux.cmake: packages of
# the release that runs here, downloaded and unpacked, not installed. Prints the folder's path.
set -euo pipefail
cd "$(dirname "$0")/.."

root="$PWD/build/arm-sysroot"
packages="libc6-dev libpcre2-dev libevent-dev libcurl4-openssl-dev libzmq3-dev libcmocka-dev"

if [ -f "$root/complete" ]; then
    echo "$root"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "csgl: the arm64 build needs Debian's packages, and there is no apt-get here" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
touch "$work/status"
# An apt of its own that knows arm64 alone and thinks that nothing is installed.
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$work/state"
    -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1
    -o APT::Sandbox::User=)
"${apt[@]}" update >&2
# shellcheck disable=SC2086  # the list is words
"${apt[@]}" install --download-only --yes --no-install-recommends $packages >/dev/null

rm -rf "$root"
mkdir -p "$root"
for package in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" |
        tar -x -C "$root" --exclude=./usr/share --exclude=./var --exclude=./etc --no-same-owner
done
touch "$root/complete"
echo "$root"
