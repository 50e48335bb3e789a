#!/usr/bin/env bash
# Prints the Homebrew formula of a release: scripts/formula.sh SOURCES.tar.gz URL, the archive and where
# people will find it. `git archive --prefix=csgl-VERSION/ -o SOURCES.tar.gz TAG` makes one.
set -euo pipefail
archive=${1:?the sources as a .tar.gz} url=${2:?the URL of the same file}
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -nE 's/^project\(csgl VERSION ([0-9.]+).*/\1/p' "$here/CMakeLists.txt")
digest=$(if command -v sha256sum >/dev/null; then sha256sum "$archive"; else shasum -a 256 "$archive"; fi)
sed -e "s|@URL@|$url|" -e "s|@VERSION@|$version|" -e "s|@SHA256@|${digest%% *}|" "$here/packaging/csgl.rb.in" |
    sed '1s/.*/# The Homebrew formula of a release of csgl./'
