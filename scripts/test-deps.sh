#!/usr/bin/env bash
# Installs what the end-to-end tests run beside nvfold itself: Debian packages, and three Rust
# programs (pjdfstest, fsx, gungraun-runner) under target/tools, where nothing outside the work tree is touched.
# Says what it installs; does nothing, quickly, when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

PJDFSTEST_VERSION=0.2.2
FSX_VERSION=0.3.2
# Exactly the version of the library in Cargo.lock: the runner refuses any other.
GUNGRAUN_VERSION=$(grep -A1 '^name = "gungraun"$' Cargo.lock | sed -n 's/^version = "\(.*\)"$/\1/p')
TOOLS=target/tools

# command -> Debian package that brings it
declare -A PACKAGE_OF=(
    [fio]=fio
    [stress-ng]=stress-ng
    [rsync]=rsync
    [restic]=restic
    [borg]=borgbackup
    [sqlite3]=sqlite3
    [git]=git
    [setfattr]=attr
    [setfacl]=acl
    [mkfs.ext4]=e2fsprogs
    [mkfs.xfs]=xfsprogs
    [mkfs.btrfs]=btrfs-progs
    [fusermount3]=fuse3
    [mount]=mount
    [setpriv]=util-linux
    [unshare]=util-linux
    [ps]=procps
    [tar]=tar
    [ls]=coreutils
    [timeout]=coreutils
    [cc]=gcc
    [c++]=g++
    [nm]=binutils
    [readelf]=binutils
    [pkg-config]=pkgconf
    [valgrind]=valgrind
    [patch]=patch
    [diff]=diffutils
    [gzip]=gzip
)

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

missing=()
for command in "${!PACKAGE_OF[@]}"; do
    # The mkfs programs live in sbin, which a user's PATH may not hold.
    PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || missing+=("${PACKAGE_OF[$command]}")
done
# LevelDB, for the Python of the system.
/usr/bin/python3 -c 'import plyvel' 2>/dev/null || missing+=(python3-plyvel)
# The server of PostgreSQL, whose programs are not in PATH.
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
# And for the driver of `nvfold-lab paper icid`.
[ -f /usr/include/leveldb/db.h ] || missing+=(libleveldb-dev)
if [ "${#missing[@]}" -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "test-deps: install these yourself (no apt-get here): ${missing[*]}" >&2
        exit 1
    fi
    echo "test-deps: installing Debian packages: ${missing[*]}"
    # The package of PostgreSQL would make a database and start its server.
    as_root mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
        echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

cargo_tool() { # crate version
    local installed
    installed=$("$TOOLS/bin/$1" --version 2>/dev/null || true)
    if [ "$installed" != "$1 $2" ]; then
        echo "test-deps: installing $1 $2 into $TOOLS/bin"
        # They wait for the system and for valgrind, so to optimise them takes longer than it saves.
        CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --debug "$1@$2" --locked --force \
            --root "$TOOLS" --target-dir "$TOOLS/build"
    fi
}
mkdir -p "$TOOLS"
cargo_tool pjdfstest "$PJDFSTEST_VERSION"
cargo_tool fsx "$FSX_VERSION"
cargo_tool gungraun-runner "$GUNGRAUN_VERSION"
echo "test-deps: all there"
