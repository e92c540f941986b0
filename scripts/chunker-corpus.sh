#!/usr/bin/env bash
# chunker-corpus.sh DIR [--kernels]: real data for `nvfold-lab chunkers` (make chunkers): two versions of some packages as tar files
# in DIR/versions/NAME/, and the packages as they were downloaded in DIR/packages/. With --kernels also releases of Debian's
# Linux sources in DIR/kernels/, which `nvfold-lab paper icid` patches (some 140 MB each to fetch, 1.4 GB unpacked). What
# is there already is kept.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "$1/versions" "$1/packages"
DIR=$(cd "$1" && pwd)
scripts/need.sh unzip=unzip pip3=python3-pip
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A tree as one tar file that has the same bytes wherever it is made.
pack() { # tree, tar file
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$1" -cf "$2.part" .
    mv "$2.part" "$2"
}

# A Python package in two versions: `source`, or `wheel` with what was compiled.
python_package() { # name, kind, versions
    local name=$1 kind=$2 version tree options=(--no-binary :all:)
    shift 2
    if [ "$kind" = wheel ]; then
        options=(--only-binary :all: --platform manylinux2014_x86_64 --platform any --python-version 3.11)
    fi
    for version in "$@"; do
        tree=$work/$name-$version
        [ -f "$DIR/versions/$name/$version.tar" ] && continue
        echo "corpus: $name $version"
        mkdir -p "$tree" "$DIR/versions/$name" "$work/download"
        pip3 download -q --no-deps --disable-pip-version-check "${options[@]}" -d "$work/download" "$name==$version"
        case $(echo "$work"/download/*) in
            *.whl) unzip -q "$work"/download/*.whl -d "$tree" ;;
            *) tar -xzf "$work"/download/*.tar.gz -C "$tree" --strip-components=1 ;;
        esac
        mv "$work"/download/* "$DIR/packages/"
        pack "$tree" "$DIR/versions/$name/$version.tar"
    done
}
python_package django wheel 4.2.15 4.2.16
python_package sqlalchemy wheel 2.0.35 2.0.36
python_package babel wheel 2.15.0 2.16.0
python_package numpy wheel 1.26.3 1.26.4
python_package pandas wheel 2.2.2 2.2.3
python_package botocore wheel 1.35.0 1.35.10
python_package sympy source 1.13.2 1.13.3

# A Debian package in the two newest versions that the archive offers.
debian_package() { # name
    local name=$1 version tree
    for version in $(apt-cache madison "$name" | awk '{ print $3 }' | sort -uV | tail -2); do
        tree=$work/$name-$version
        [ -f "$DIR/versions/$name/$version.tar" ] && continue
        echo "corpus: $name $version"
        mkdir -p "$tree" "$DIR/versions/$name"
        (cd "$work" && apt-get download -q "$name=$version" >/dev/null 2>&1)
        dpkg-deb --extract "$work/$name"_*.deb "$tree"
        mv "$work/$name"_*.deb "$DIR/packages/"
        pack "$tree" "$DIR/versions/$name/$version.tar"
    done
}
debian_package git
debian_package libpython3.11-stdlib

# Images and compressed files as Debian packages them.
for package in hicolor-icon-theme adwaita-icon-theme fonts-dejavu-core debian-archive-keyring; do
    ls "$DIR"/packages/"$package"_* >/dev/null 2>&1 && continue
    echo "corpus: $package"
    (cd "$work" && apt-get download -q "$package" 2>/dev/null >&2)
    mv "$work/$package"_*.deb "$DIR/packages/"
done

# Linux sources as Debian patches them: the last revision of each of the three newest upstream releases on offer, so that
# there are two steps from one release to the next.
if [ "${2:-}" = --kernels ]; then
    scripts/need.sh xz=xz-utils
    mkdir -p "$DIR/kernels"
    all=$(apt-cache madison linux-source-6.1 | awk '{ print $3 }' | sort -uV)
    for upstream in $(cut -d- -f1 <<<"$all" | uniq | tail -3); do
        version=$(grep "^$upstream-" <<<"$all" | tail -1)
        [ -f "$DIR/kernels/$version.tar" ] && continue
        echo "corpus: Linux $version"
        (cd "$work" && apt-get download -q "linux-source-6.1=$version" >/dev/null 2>&1)
        dpkg-deb --fsys-tarfile "$work"/linux-source-6.1_*.deb |
            tar -xO ./usr/src/linux-source-6.1.tar.xz | xz -dc >"$DIR/kernels/$version.tar.part"
        mv "$DIR/kernels/$version.tar.part" "$DIR/kernels/$version.tar"
        rm "$work"/linux-source-6.1_*.deb
    done
fi
