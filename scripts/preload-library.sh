#!/usr/bin/env bash
# Makes libnvfold_preload.so, which `nvfold run` preloads, of the static library that cargo builds.
#
#   scripts/preload-library.sh libnvfold_preload.a DIRECTORY
#
# For each NAME of crates/nvfold-preload/interposed.txt:
#   - the library exports NAME, which jumps to nvfold_preload_NAME;
#   - NAME within it is renamed by the linker (--wrap) to __wrap_NAME, which jumps to the next library's NAME, libc's. So neither
#     the core nor Rust's std ever runs through the interposition. Which address that is dlsym tells at the first call; the
#     functions that copy memory are asked for when the library starts.
set -euo pipefail
archive=$1
directory=$2
root=$(cd "$(dirname "$0")/.." && pwd)
list=$root/crates/nvfold-preload/interposed.txt
if [ "$(uname -m)" != x86_64 ]; then
    echo "preload-library: the jumps are written for x86-64 alone, and this is $(uname -m)" >&2
    exit 1
fi

mkdir -p "$directory"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

awk '
    function jump(name, at) {
        printf ".globl %s\n.type %s, @function\n%s:\n", name, name, name
    }
    BEGIN { print ".text" }
    /^[A-Za-z_]/ {
        name = $1
        names[count] = name
        before = $2 == ">"
        to = "nvfold_preload_" (before ? $3 : NF > 1 ? $2 : name)
        print ".p2align 4"
        jump(name)
        if (before) {
            # All registers that may hold arguments are as they were.
            print "    push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax"
            printf "    call %s\n", to
            print "    pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi"
            printf "    jmp __wrap_%s\n", name
        } else {
            printf "    jmp %s\n", to
        }
        printf ".hidden __wrap_%s\n", name
        jump("__wrap_" name)
        printf "    jmp *slots + %d(%%rip)\n", 8 * count
        printf "find_%d:\n    push $%d\n    jmp find\n", count, count
        count++
    }
    END {
        # The index lies on the stack, below it the return address. All registers that may hold arguments are as they were.
        print "find:"
        print "    push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax; push %r10"
        print "    mov 64(%rsp), %rax"
        print "    lea names(%rip), %rsi"
        print "    mov (%rsi,%rax,8), %rsi"
        print "    mov $-1, %rdi"
        print "    call dlsym@PLT"
        print "    test %rax, %rax"
        print "    jne 1f"
        print "    lea nvfold_preload_missing(%rip), %rax"
        print "1:  mov 64(%rsp), %rdi"
        print "    lea slots(%rip), %rsi"
        print "    mov %rax, (%rsi,%rdi,8)"
        print "    mov %rax, 64(%rsp)"
        print "    pop %r10; pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi"
        print "    ret"
        print ".section .init_array, \"aw\"\n    .quad nvfold_preload_start"
        print ".data\n.p2align 6\nslots:"
        for (at = 0; at < count; at++) printf "    .quad find_%d\n", at
        print ".section .data.rel.ro, \"aw\"\nnames:"
        for (at = 0; at < count; at++) printf "    .quad name_%d\n", at
        print ".section .rodata"
        for (at = 0; at < count; at++) printf "name_%d: .asciz \"%s\"\n", at, names[at]
        print ".section .note.GNU-stack, \"\", @progbits"
    }' "$list" >"$made/names.s"
awk '/^[A-Za-z_]/ { print "-Wl,--wrap=" $1 }' "$list" >"$made/wraps"
{
    echo '{ global:'
    awk '/^[A-Za-z_]/ { print "    " $1 ";" }' "$list"
    echo '  local: *; };'
} >"$made/exports"

cc=${CC:-cc}
"$cc" -c "$made/names.s" -o "$made/names.o"
# No --as-needed games: the system libraries are those that `rustc --print native-static-libs` names. Not to be unloaded.
"$cc" -shared -o "$made/libnvfold_preload.so" "$made/names.o" "$archive" "@$made/wraps" "-Wl,--version-script=$made/exports" \
    -Wl,-soname,libnvfold_preload.so -Wl,--gc-sections -Wl,-z,nodelete -Wl,-z,defs -Wl,-z,relro -Wl,-z,now \
    -lgcc_s -lpthread -ldl -lrt -lm -lc
# A program that has the old one mapped keeps it.
mv "$made/libnvfold_preload.so" "$directory/libnvfold_preload.so.new"
mv "$directory/libnvfold_preload.so.new" "$directory/libnvfold_preload.so"
