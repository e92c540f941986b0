#!/usr/bin/env bash
# Makes libnvfold_preload.so, which `nvfold run` preloads, of the static library that cargo builds.
#
#   scripts/preload-library.sh libnvfold_preload.a DIRECTORY
#   scripts/preload-library.sh target/debug/deps DIRECTORY     the newest one that cargo has built there for tests
#
# For each NAME of crates/nvfold-preload/interposed.txt, which says what the words of its lines mean:
#   - the library exports NAME. It asks whether the call concerns us; if so it jumps to nvfold_preload_FUNCTION, if not to
#     nvfold_next_NAME;
#   - nvfold_next_NAME jumps to NAME of the next library that has one: other preloaded libraries get what the program called;
#   - NAME within the library is renamed by the linker (--wrap) to __wrap_NAME, which jumps to NAME of libc itself. So neither the
#     core nor Rust's std ever runs through an interposition, ours or another's. (Not a NAME with the word `own`.)
# Which addresses these are dlsym tells at the first call; the functions that copy memory are asked for when the library starts.
set -euo pipefail
archive=$1
directory=$2
if [ -d "$1" ]; then
    archive=
    for built in "$1"/libnvfold_preload-*.a; do
        if [ "$built" -nt "$archive" ]; then archive=$built; fi
    done
    if [ -z "$archive" ]; then
        echo "preload-library: $1 has no libnvfold_preload-*.a; cargo builds one for the tests that need it" >&2
        exit 1
    fi
fi
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
    function fail(why) {
        printf "preload-library: %s: %s\n", $0, why >"/dev/stderr"
        failed = 1
        exit 1
    }
    function begin(name) {
        printf ".globl %s\n.type %s, @function\n%s:\n", name, name, name
    }
    function keep_floats(    at) {
        print "    sub $128, %rsp"
        for (at = 0; at < 8; at++) printf "    movups %%xmm%d, %d(%%rsp)\n", at, 16 * at
    }
    function restore_floats(    at) {
        for (at = 0; at < 8; at++) printf "    movups %d(%%rsp), %%xmm%d\n", 16 * at, at
        print "    add $128, %rsp"
    }
    # All registers that may hold arguments, 56 bytes: the stack is aligned for a call then. Only calls with a variable number of
    # arguments have floats, 128 bytes.
    function keep() {
        print "    push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax"
        print "    .cfi_adjust_cfa_offset 56"
        if (fixed > 0) { keep_floats(); print "    .cfi_adjust_cfa_offset 128" }
    }
    function restore() {
        if (fixed > 0) { restore_floats(); print "    .cfi_adjust_cfa_offset -128" }
        print "    pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi"
        print "    .cfi_adjust_cfa_offset -56"
    }
    # The argument with this number, of those that were kept.
    function kept(number) {
        return 8 * (7 - number) + (fixed > 0 ? 128 : 0) "(%rsp)"
    }
    function ask(question, number) {
        if (question == "at") {
            printf "    mov %s, %%edi\n    mov %s, %%rsi\n", kept(number), kept(number + 1)
        } else if (question != "if") {
            printf "    mov %s, %%rdi\n", kept(number)
        }
        printf "    call nvfold_preload_asks_%s\n    test %%al, %%al\n    jne 1f\n", question == "if" ? number : question
    }
    # A call with a variable number of arguments: a va_list of the registers and the stack.
    function call_with_list(function_name, fixed) {
        print "    sub $216, %rsp\n    .cfi_adjust_cfa_offset 216"
        for (at = 1; at <= 6; at++) printf "    mov %%%s, %d(%%rsp)\n", register[at], 32 + 8 * (at - 1)
        for (at = 0; at < 8; at++) printf "    movups %%xmm%d, %d(%%rsp)\n", at, 80 + 16 * at
        printf "    movl $%d, (%%rsp)\n    movl $48, 4(%%rsp)\n", 8 * fixed
        print "    lea 224(%rsp), %rax\n    mov %rax, 8(%rsp)\n    lea 32(%rsp), %rax\n    mov %rax, 16(%rsp)"
        printf "    mov %%rsp, %%%s\n    call %s\n    add $216, %%rsp\n    ret\n", register[fixed + 1], function_name
    }
    BEGIN {
        count = 0
        split("rdi rsi rdx rcx r8 r9", register, " ")
        print ".text"
    }
    /^[A-Za-z_]/ {
        name = names[count] = $1
        served_by = name
        hook = before = ""
        next_at = fixed = asked = 0
        for (at = 2; at <= NF; at++) {
            if ($at == ">") before = $(++at)
            else if ($at == "then") hook = $(++at)
            else if ($at == "own") continue
            else if (split($at, word, "=") == 1) served_by = $at
            else if (word[1] == "next") next_at = word[2]
            else if (word[1] == "variadic") fixed = word[2]
            else {
                if (word[1] == "early" || word[1] == "long") early[count] = 1
                if (word[1] != "early") { questions[asked] = word[1]; numbers[asked++] = word[2] }
            }
        }
        if (next_at > 6) fail("there are six registers for arguments")
        print ".p2align 4"
        begin(name)
        print "    .cfi_startproc"
        if (before != "") {
            keep()
            printf "    call nvfold_preload_%s\n", before
            restore()
            printf "    jmp nvfold_next_%s\n", name
        } else if (asked > 0 && questions[0] == "long") {
            printf "    cmp $32, %%%s\n    jae 1f\n    jmp *next_slots + %d(%%rip)\n1:\n", register[numbers[0]], 8 * count
        } else if (asked > 0) {
            keep()
            for (n = 0; n < asked; n++) ask(questions[n], numbers[n])
            print "    .cfi_remember_state"
            restore()
            if (hook == "") {
                printf "    jmp nvfold_next_%s\n", name
            } else {
                print "    push %rdi; push %rsi; sub $8, %rsp\n    .cfi_adjust_cfa_offset 24"
                printf "    call nvfold_next_%s\n", name
                print "    mov %rax, %rdi; add $8, %rsp; pop %rdx; pop %rsi"
                printf "    jmp nvfold_preload_%s\n", hook
            }
            print "    .cfi_restore_state\n1:"
            restore()
        }
        if (before == "") {
            if (next_at > 0) printf "    lea nvfold_next_%s(%%rip), %%%s\n", name, register[next_at]
            if (fixed > 0) call_with_list("nvfold_preload_" served_by, fixed)
            else printf "    jmp nvfold_preload_%s\n", served_by
        }
        print "    .cfi_endproc"
        printf ".hidden __wrap_%s\n.hidden nvfold_next_%s\n", name, name
        begin("nvfold_next_" name)
        printf "    jmp *next_slots + %d(%%rip)\n", 8 * count
        printf "find_next_%d:\n    push $%d\n    call find_next\n", count, count
        printf "    add $8, %%rsp\n    jmp *next_slots + %d(%%rip)\n", 8 * count
        begin("__wrap_" name)
        printf "    jmp *libc_slots + %d(%%rip)\n", 8 * count
        printf "find_libc_%d:\n    push $%d\n    call find_libc\n", count, count
        printf "    add $8, %%rsp\n    jmp *libc_slots + %d(%%rip)\n", 8 * count
        count++
    }
    # Sets a slot. The number of the name lies on the stack, above the return address. All registers stay as they were.
    function finder(of) {
        printf "find_%s:\n", of
        print "    push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax; push %r10; push %r11"
        keep_floats()
        if (of == "next") {
            print "    mov $-1, %rdi"
        } else {
            # 5 is RTLD_LAZY with RTLD_NOLOAD. Without libc by this name the next library has to do.
            print "    mov libc_handle(%rip), %rdi\n    test %rdi, %rdi\n    jne 2f"
            print "    lea libc_name(%rip), %rdi\n    mov $5, %esi\n    call dlopen@PLT\n    mov %rax, %rdi"
            print "    test %rdi, %rdi\n    jne 1f\n    mov $-1, %rdi\n1:  mov %rdi, libc_handle(%rip)\n2:"
        }
        print "    mov 208(%rsp), %rax\n    lea names(%rip), %rsi\n    mov (%rsi,%rax,8), %rsi"
        print "    call dlsym@PLT"
        print "    test %rax, %rax\n    jne 1f\n    lea nvfold_preload_missing(%rip), %rax"
        printf "1:  mov 208(%%rsp), %%rdi\n    lea %s_slots(%%rip), %%rsi\n    mov %%rax, (%%rsi,%%rdi,8)\n", of
        restore_floats()
        print "    pop %r11; pop %r10; pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi"
        print "    ret"
    }
    END {
        if (failed) exit 1
        finder("next")
        finder("libc")
        begin("nvfold_preload_find_early")
        for (at = 0; at < count; at++) {
            if (at in early) printf "    push $%d\n    call find_next\n    call find_libc\n    add $8, %%rsp\n", at
        }
        print "    ret"
        print ".section .init_array, \"aw\"\n    .quad nvfold_preload_start"
        print ".bss\n.p2align 3\nlibc_handle: .skip 8"
        print ".data\n.p2align 6\nnext_slots:"
        for (at = 0; at < count; at++) printf "    .quad find_next_%d\n", at
        print "libc_slots:"
        for (at = 0; at < count; at++) printf "    .quad find_libc_%d\n", at
        print ".section .data.rel.ro, \"aw\"\nnames:"
        for (at = 0; at < count; at++) printf "    .quad name_%d\n", at
        print ".section .rodata\nlibc_name: .asciz \"libc.so.6\""
        for (at = 0; at < count; at++) printf "name_%d: .asciz \"%s\"\n", at, names[at]
        print ".section .note.GNU-stack, \"\", @progbits"
    }' "$list" >"$made/names.s"
awk '/^[A-Za-z_]/ && !/ own$/ { print "-Wl,--wrap=" $1 }' "$list" >"$made/wraps"
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
