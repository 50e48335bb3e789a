#!/usr/bin/env bash
# Makes build/csgl-VERSION-linux-ARCH.tar.gz: csgl for any Linux whose glibc is at least as new as this
# machine's, with every other library that it needs beside it. Runs on Debian and Ubuntu, whose packages
# tell which library comes from where; build on the oldest system that shall be served.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/bundle
# DT_RPATH, not DT_RUNPATH: it also holds for the libraries of libraries, and nothing overrides it.
cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF \
    "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >&2
cmake --build "$build" --target csgl >&2

version=$("$build/csgl" --version | sed -n 's/^csgl //p')
name="csgl-$version-linux-$(uname -m)"
stage="$build/$name"
rm -rf "$stage"
cmake --install "$build" --prefix "$stage" --component program --strip >&2
mkdir -p "$stage/lib" "$stage/share/doc/csgl/third-party"
cp LICENSE README.md "$stage/share/doc/csgl/"
cp packaging/csgl.service "$stage/share/doc/csgl/"
# The licences that the packages' copyright files refer to.
cp -rL /usr/share/common-licenses "$stage/share/doc/csgl/third-party/"

# glibc's own libraries belong to the system: its loader works with no others.
is_glibc() {
    case $(basename "$1") in
    ld-linux* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libresolv.so.* | \
        libutil.so.* | libanl.so.* | libmvec.so.*) return 0 ;;
    *) return 1 ;;
    esac
}

missing=$(ldd "$build/csgl" | sed -n 's/ => not found//p')
if [ -n "$missing" ]; then
    echo "csgl: libraries that are not there:$missing" >&2
    exit 1
fi
ldd "$build/csgl" | awk '$2 == "=>" {print $1, $3}' | while read -r library path; do
    is_glibc "$library" && continue
    real=$(readlink -f "$path")
    install -m 644 "$real" "$stage/lib/$library"
    strip --strip-unneeded "$stage/lib/$library"
    # Packages are registered under the path that they were installed to, /lib or /usr/lib.
    package=$(dpkg-query -S "$real" 2>/dev/null || dpkg-query -S "${real#/usr}")
    package=${package%%:*}
    copyright="/usr/share/doc/$package/copyright"
    if [ ! -f "$copyright" ]; then
        echo "csgl: $library is of package $package, which has no $copyright to go with it" >&2
        exit 1
    fi
    cp -L "$copyright" "$stage/share/doc/csgl/third-party/$package.copyright"
done

# Whatever is not found beside csgl would be taken from this machine and be missing on another.
ldd "$stage/bin/csgl" | awk '$2 == "=>" {print $1, $3}' | while read -r library path; do
    is_glibc "$library" || [ "$(dirname "$(readlink -f "$path")")" = "$(readlink -f "$stage/lib")" ] || {
        echo "csgl: $library is taken from $path, not from the bundle" >&2
        exit 1
    }
done
glibc=$(objdump -T "$stage/bin/csgl" "$stage"/lib/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)

tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@"${SOURCE_DATE_EPOCH:-$(date +%s)}" \
    -C "$build" -cf - "$name" | gzip -9n >"build/$name.tar.gz"
echo "build/$name.tar.gz: $(du -h "build/$name.tar.gz" | cut -f1), needs $glibc"
