#!/usr/bin/env bash
# make package-test: makes all packages, and tries them as their users will.
#
#   1 their contents, by tests/packages.contents, and lintian's remarks
#   2 in a namespace with an overlay of this root, of which nothing stays: the deb of a version before is installed, a real tree is
#     imported, cloned, checked and exported, the packages are upgraded beside a mount, and removed
#   3 the commands of the apk and of the tarball, alone in an empty root; the rpm in a root of its own
#
# Needs root, for namespaces and mounts, and the Debian packages that it names. NVFOLD_BUILT=target/debug tries a
# development build, for those who work on this script: the packages with a static command are left out then.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=$PWD/target/packages/test
TREE=${NVFOLD_PACKAGE_TREE:-/usr/share/perl}
say() { printf '\n== %s\n' "$*"; }
fail() { echo "package-test: $*" >&2; exit 1; }

[ "$(id -u)" -eq 0 ] || fail "it needs root, for namespaces and mounts"
[ -e /dev/fuse ] || fail "it needs /dev/fuse"
scripts/need.sh lintian=lintian bsdtar=libarchive-tools rpm=rpm cc=gcc pkg-config=pkgconf findmnt=util-linux man=man-db diff=diffutils
version=$(scripts/version.sh)
before=$version~before

# ------------------------------------------------------------------------------------------------- making them

rm -rf "$OUT"
kinds=(deb rpm apk pacman tarball)
[ -z "${NVFOLD_BUILT:-}" ] || kinds=(deb rpm pacman)
NVFOLD_PACKAGES=$OUT scripts/packages.sh "${kinds[@]}"
# The version before: the same files under a lower number, so that the upgrade is one for dpkg.
NVFOLD_PACKAGES=$OUT/before NVFOLD_PACKAGE_VERSION=$before scripts/packages.sh deb
(cd "$OUT" && stat -c '%s %n' -- *.*)

# ----------------------------------------------------------------------------------------------------- contents

paths_of() { # PACKAGE
    case $1 in
        *.deb) dpkg-deb --fsys-tarfile "$1" | tar -tf - ;;
        *.tar.gz) tar -tf "$1" | sed 's|^[^/]*/|usr/|' ;;
        # A folder ends in a slash, as tar lists it.
        *.rpm) rpm -qp --queryformat '[%{FILEMODES:perms} %{FILENAMES}\n]' "$1" | sed 's|^d[^ ]* /\(.*\)|\1/|; s|^[^ ]* /||' ;;
        *) bsdtar -tf "$1" ;;
    esac | sed 's|^\./||'
}

# Compares the files of a package with the parts that it should have. FOLDERS are `sed` commands for the capitals.
check_contents() { # PACKAGE "PART..." FOLDERS
    local package=$1 parts=$2 folders=$3 expected paths pattern needed
    expected=$(awk -v parts=" $parts " '/^[a-z]/ && index(parts, " " $1 " ") { print $2 }' tests/packages.contents | sed "$folders")
    # Folders on the way are nobody's; /etc/nvfold is meant.
    paths=$(paths_of "$package" | grep -v -e '^\.[A-Z]' -e '/$' || true)
    paths+=$'\n'$(paths_of "$package" | grep -E '^etc/nvfold/?$' | sed 's|/*$|/|' || true)
    while read -r path; do
        [ -n "$path" ] || continue
        while read -r pattern; do
            # shellcheck disable=SC2053 # it is a pattern
            if [[ $path == ${pattern#\?} ]]; then continue 2; fi
        done <<<"$expected"
        fail "$package has $path, which tests/packages.contents does not name"
    done <<<"$paths"
    while read -r pattern; do
        needed=yes
        case $pattern in \?*) needed=no ;; esac
        while read -r path; do
            # shellcheck disable=SC2053
            if [[ $path == $pattern ]]; then needed=no; fi
        done <<<"$paths"
        [ "$needed" = no ] || fail "$package lacks $pattern"
    done <<<"$expected"
    echo "$(basename "$package"): $(grep -c . <<<"$paths") files, as expected"
}

common='s|SHARE|usr/share|; s|INCLUDE|usr/include|; s|DEBUG|usr/lib/debug/.build-id|; s|UNITS|usr/lib/systemd|; s|LIB/|usr/lib/|; s|ETC|etc|'
folders() { # LIBRARIES SBIN ZSH LICENSES BIN
    echo "s|LIBRARIES|$1|; s|SBIN|$2|; s|ZSH|$3|; s|LICENSES|$4|; s|BIN|${5:-usr/bin}|; $common"
}

say "contents"
debian=$(folders usr/lib/x86_64-linux-gnu usr/sbin usr/share/zsh/vendor-completions none)
check_contents "$OUT/nvfold_$version-1_amd64.deb" "command units preload debian" "$debian"
check_contents "$OUT/libnvfold0_$version-1_amd64.deb" "library debian" "$debian"
for package in libnvfold-dev nvfold-dbgsym; do
    part=debug
    [ "$package" = nvfold-dbgsym ] || part=development
    check_contents "$OUT/${package}_$version-1_amd64.deb" "$part debian" "$debian"
done
redhat=$(folders usr/lib64 usr/sbin usr/share/zsh/site-functions 'usr/share/licenses/*')
check_contents "$OUT/nvfold-$version-1.x86_64.rpm" "command units preload licences" "$redhat"
check_contents "$OUT/nvfold-libs-$version-1.x86_64.rpm" "library licences" "$redhat"
check_contents "$OUT/nvfold-devel-$version-1.x86_64.rpm" "development licences" "$redhat"
check_contents "$OUT/nvfold-debuginfo-$version-1.x86_64.rpm" "debug licences" "$redhat"
arch=$(folders usr/lib usr/bin usr/share/zsh/site-functions 'usr/share/licenses/*')
check_contents "$OUT/nvfold-$version-1-x86_64.pkg.tar.zst" "command units preload library development licences" "$arch"
check_contents "$OUT/nvfold-debug-$version-1-x86_64.pkg.tar.zst" "debug licences" "$arch"
if [ -z "${NVFOLD_BUILT:-}" ]; then
    check_contents "$OUT/nvfold_$version-r1_x86_64.apk" "command licences" \
        "$(folders none sbin usr/share/zsh/site-functions 'usr/share/licenses/*')"
    check_contents "$OUT/nvfold-$version-x86_64-linux.tar.gz" "command licences units" \
        "/^ETC/d; $(folders none usr/sbin usr/share/zsh/site-functions usr/share/doc/nvfold)"
fi

say "lintian"
# Each remark that stays has its reason in packaging/lintian.
lintian --allow-root --fail-on error,warning --suppress-tags "$(grep -v '^#' packaging/lintian/suppressed | paste -sd,)" "$OUT"/*.deb
echo "lintian: no remark"

# --------------------------------------------------------------------------------------- in a namespace with the deb

say "install, use, upgrade and remove the deb"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OUT TREE VERSION=$version BEFORE=$before scratch ROOT=$PWD
# All processes in it, servers of mounts too, end with it; so do its mounts.
unshare --mount --pid --ipc --fork --kill-child=KILL bash -euo pipefail -c '
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$scratch"
    mkdir -p "$scratch"/{up,work,root,packages}
    cp "$OUT"/*.deb "$scratch/packages/"
    mkdir "$scratch/packages/before" && cp "$OUT"/before/*.deb "$scratch/packages/before/"
    cp "$ROOT/tests/packages-inside.sh" "$scratch/packages/inside"
    cp "$ROOT/crates/nvfold-c/examples/tour.c" "$scratch/packages/"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/up,workdir=$scratch/work" "$scratch/root"
    cd "$scratch/root"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmpfs tmp
    mount -t tmpfs tmpfs run
    mkdir -p srv/packages old
    mount --bind "$scratch/packages" srv/packages
    pivot_root . old
    umount -l /old
    exec bash /srv/packages/inside
' </dev/null

# ------------------------------------------------------------------------------------------------ the other packages

say "the rpm in a root of its own"
rpm_root=$scratch/rpm
mkdir -p "$rpm_root"
rpm --root "$rpm_root" --initdb
rpm --root "$rpm_root" --install --nodeps --noscripts "$OUT"/nvfold-{,libs-,devel-}"$version"-1.x86_64.rpm
[ "$(readlink "$rpm_root/usr/sbin/mount.nvfold")" = ../bin/nvfold ] || fail "the rpm has no mount.nvfold"
"$rpm_root/usr/bin/nvfold" --version
rpm --root "$rpm_root" -q --requires --recommends nvfold
rpm --root "$rpm_root" --erase --nodeps --noscripts nvfold nvfold-libs nvfold-devel
[ ! -e "$rpm_root/usr/bin/nvfold" ] || fail "the rpm stays after its removal"

if [ -z "${NVFOLD_BUILT:-}" ]; then
    for package in "$OUT/nvfold_$version-r1_x86_64.apk" "$OUT/nvfold-$version-x86_64-linux.tar.gz"; do
        say "$(basename "$package"), alone in an empty root"
        empty=$scratch/empty
        rm -rf "$empty" && mkdir -p "$empty/tree"
        bsdtar -C "$empty" -xf "$package"
        command=$(cd "$empty" && find . -path '*/bin/nvfold' -type f)
        cp -r "$TREE/." "$empty/tree/"
        # Nothing else is in it: neither libraries nor programs.
        chroot "$empty" "$command" --version
        chroot "$empty" "$command" mkfs /pool --size 512M
        chroot "$empty" "$command" import /pool /tree
        chroot "$empty" "$command" fsck -n /pool
        chroot "$empty" "$command" export /pool /again
        diff -r --no-dereference "$empty/tree" "$empty/again/tree"
    done
fi
say "all packages work"
