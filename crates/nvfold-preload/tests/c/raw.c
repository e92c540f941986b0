/* System calls past libc, by an instruction of the program and by `syscall`. Prints the same on the host as below the prefix.
   `raw DIR` */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    long answer;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}

#define RAW(number, a, b, c, d, e) raw(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define SAY(number, a, b, c, d, e) printf("%d: %s -> %ld\n", __LINE__, #number, RAW(number, a, b, c, d, e))

static volatile sig_atomic_t signals;

static void count_signal(int number) {
    signals += number == SIGSYS ? 1 : 100;
}

/* What safetensors does: a file is written, synced and renamed by rustix. */
static void save(const char *temporary, const char *name) {
    long fd = RAW(SYS_openat, AT_FDCWD, temporary, O_CREAT | O_RDWR | O_EXCL | O_CLOEXEC, 0600, 0);
    printf("open %s\n", fd >= 0 ? "yes" : "no");
    SAY(SYS_write, fd, "tensors", 7, 0, 0);
    SAY(SYS_fsync, fd, 0, 0, 0, 0);
    SAY(SYS_renameat, AT_FDCWD, temporary, AT_FDCWD, name, 0);
    char text[8] = "";
    SAY(SYS_pread64, fd, text, 7, 0, 0);
    printf("%s\n", text);
    struct stat stat;
    SAY(SYS_fstat, fd, &stat, 0, 0, 0);
    printf("size %lld\n", (long long)stat.st_size);
    SAY(SYS_close, fd, 0, 0, 0, 0);
    SAY(SYS_close, fd, 0, 0, 0, 0);
    SAY(SYS_newfstatat, AT_FDCWD, name, &stat, 0, 0);
    SAY(SYS_newfstatat, AT_FDCWD, temporary, &stat, 0, 0);
}

static void *in_a_thread(void *argument) {
    save(argument, "by a thread");
    return NULL;
}

static int compare(const void *one, const void *other) {
    return strcmp(*(char *const *)one, *(char *const *)other);
}

static void list(const char *path) {
    long fd = RAW(SYS_open, path, O_RDONLY | O_DIRECTORY, 0, 0, 0);
    char *names[100];
    size_t count = 0;
    for (int round = 0; round < 2; round++) {
        char entries[200] __attribute__((aligned(8)));
        for (long bytes; (bytes = RAW(SYS_getdents64, fd, entries, sizeof entries, 0, 0)) > 0;)
            for (long at = 0; at < bytes;) {
                struct dirent64 *entry = (struct dirent64 *)(entries + at);
                CHECK(count < 100);
                names[count++] = strdup(entry->d_name);
                at += entry->d_reclen;
            }
        SAY(SYS_lseek, fd, 0, SEEK_SET, 0, 0);
    }
    SAY(SYS_getdents64, fd, names, 10, 0, 0);
    qsort(names, count, sizeof *names, compare);
    for (size_t at = 0; at < count; at++)
        printf("%s\n", names[at]);
    RAW(SYS_close, fd, 0, 0, 0, 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2 && chdir(arguments[1]) == 0);
    char path[300];
    snprintf(path, sizeof path, "%s/model.tmp", arguments[1]);
    save(path, "model");
    save("relative.tmp", "by the working directory");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_a_thread, path) == 0 && pthread_join(thread, NULL) == 0);

    /* Names, by old and new calls. */
    struct stat stat;
    char text[100] = "";
    SAY(SYS_mkdir, "d", 0755, 0, 0, 0);
    SAY(SYS_mkdir, "d", 0755, 0, 0, 0);
    long directory = RAW(SYS_open, "d", O_RDONLY | O_DIRECTORY, 0, 0, 0);
    SAY(SYS_mkdirat, directory, "e", 0700, 0, 0);
    SAY(SYS_symlinkat, "../model", directory, "link", 0, 0);
    SAY(SYS_readlinkat, directory, "link", text, sizeof text, 0);
    printf("%s\n", text);
    SAY(SYS_linkat, directory, "link", directory, "hard", AT_SYMLINK_FOLLOW);
    SAY(SYS_access, "d/hard", F_OK, 0, 0, 0);
    SAY(SYS_faccessat, directory, "none", F_OK, 0, 0);
    SAY(SYS_chmod, "d/hard", 0640, 0, 0, 0);
    SAY(SYS_stat, "model", &stat, 0, 0, 0);
    printf("%o, %ld links\n", stat.st_mode, (long)stat.st_nlink);
    SAY(SYS_truncate, "model", 3, 0, 0, 0);
    SAY(SYS_renameat2, directory, "hard", AT_FDCWD, "model", 1);
    SAY(SYS_rename, "d/hard", "d/other", 0, 0, 0);
    SAY(SYS_unlinkat, directory, "other", 0, 0, 0);
    SAY(SYS_unlinkat, directory, "e", AT_REMOVEDIR, 0, 0);
    SAY(SYS_newfstatat, directory, "", &stat, AT_EMPTY_PATH, 0);
    printf("%o\n", stat.st_mode);
    list("d");
    SAY(SYS_rmdir, "d", 0, 0, 0, 0);
    SAY(SYS_unlink, "d/link", 0, 0, 0, 0);
    SAY(SYS_rmdir, "d", 0, 0, 0, 0);
    SAY(SYS_chdir, "d", 0, 0, 0, 0);
    printf("%d\n", RAW(SYS_getcwd, text, sizeof text, 0, 0, 0) == (long)strlen(arguments[1]) + 1);
    RAW(SYS_close, directory, 0, 0, 0, 0);

    /* Descriptors and memory. */
    long fd = RAW(SYS_open, "model", O_RDWR | O_APPEND, 0, 0, 0);
    struct iovec parts[2] = {{text, 1}, {text + 10, 5}};
    SAY(SYS_readv, fd, parts, 2, 0, 0);
    SAY(SYS_lseek, fd, 1, SEEK_SET, 0, 0);
    long copy = RAW(SYS_dup, fd, 0, 0, 0, 0);
    printf("%d\n", copy > fd);
    SAY(SYS_lseek, copy, 0, SEEK_CUR, 0, 0);
    SAY(SYS_ftruncate, copy, 5000, 0, 0, 0);
    SAY(SYS_fcntl, copy, F_GETFD, 0, 0, 0);
    char *memory = (char *)raw(SYS_mmap, 0, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
    printf("%.3s %d\n", memory, memory[4999]);
    memory[4999] = 'm';
    SAY(SYS_msync, memory, 5000, MS_SYNC, 0, 0);
    SAY(SYS_pread64, fd, text, 1, 4999, 0);
    SAY(SYS_munmap, memory, 5000, 0, 0, 0);
    printf("%c\n", text[0]);
    SAY(SYS_close, copy, 0, 0, 0, 0);
    SAY(SYS_close, fd, 0, 0, 0, 0);
    SAY(SYS_write, -1, "", 1, 0, 0);

    /* By the function of libc: errno, and all six arguments. */
    TELL(syscall(SYS_unlink, "none"));
    TELL(syscall(SYS_renameat2, AT_FDCWD, "model", AT_FDCWD, "renamed", 0));
    TELL(syscall(SYS_access, "renamed", F_OK));
    TELL(syscall(SYS_getppid) == getppid());
    TELL(syscall(SYS_mmap, NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L));
    TELL(syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1L));

    /* The host's files, and what is not about files. */
    errno = 77;
    printf("%d %d\n", RAW(SYS_getpid, 0, 0, 0, 0, 0) == getpid(), errno);
    struct timespec cpu;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0);
    SAY(SYS_access, "/", F_OK, 0, 0, 0);
    SAY(SYS_access, "/none at all", F_OK, 0, 0, 0);

    /* Signals: all of them blocked, SIGSYS of the program's own, masks and stacks that outlive the handler. */
    sigset_t all, before;
    sigfillset(&all);
    TELL(sigprocmask(SIG_SETMASK, &all, &before));
    SAY(SYS_access, "renamed", F_OK, 0, 0, 0);
    TELL(sigprocmask(SIG_SETMASK, &before, NULL));
    struct sigaction action = {.sa_handler = count_signal}, old;
    CHECK(sigaction(SIGSYS, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    raise(SIGSYS);
    CHECK(sigaction(SIGSYS, NULL, &old) == 0 && old.sa_handler == count_signal);
    TELL(signals);
    unsigned long usr1 = 1UL << (SIGUSR1 - 1), kernel_before = ~0UL;
    SAY(SYS_rt_sigprocmask, SIG_BLOCK, &usr1, &kernel_before, 8, 0);
    printf("%lx\n", kernel_before);
    raise(SIGUSR1);
    TELL(signals);
    SAY(SYS_rt_sigprocmask, SIG_UNBLOCK, &usr1, NULL, 8, 0);
    TELL(signals);
    static char stack[1 << 16];
    stack_t new_stack = {.ss_sp = stack, .ss_size = sizeof stack}, got;
    SAY(SYS_sigaltstack, &new_stack, NULL, 0, 0, 0);
    CHECK(sigaltstack(NULL, &got) == 0);
    printf("%d\n", got.ss_sp == stack);

    /* Children. */
    fflush(NULL);
    long child = RAW(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(access("/", F_OK) == 0 ? 5 : 6);
    int status;
    CHECK(waitpid((pid_t)child, &status, 0) == child);
    printf("%d\n", WEXITSTATUS(status));
    /* The child has the stack of its parent, and leaves it alone. */
    __asm__ volatile("syscall; test %%eax, %%eax; jnz 1f; mov $4, %%edi; mov $60, %%eax; syscall; 1:"
                     : "=a"(child)
                     : "a"(SYS_vfork)
                     : "rcx", "r11", "rdi", "memory");
    CHECK(waitpid((pid_t)child, &status, 0) == child);
    printf("%d\n", WEXITSTATUS(status));
    fflush(NULL);
    raw(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    return 1;
}
