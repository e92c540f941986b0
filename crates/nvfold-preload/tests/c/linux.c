/* What Linux and glibc do beyond POSIX, and the calls that programs seldom make. Run in a directory of the host and in one of a
   device, it prints the same. */
#define _GNU_SOURCE
#include "check.h"
#include <aio.h>
#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ipc.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <wordexp.h>

static void tell_content(const char *name) {
    char text[300];
    int fd = open(name, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t length = read(fd, text, sizeof text);
    CHECK(length >= 0 && close(fd) == 0);
    printf("%s: %.*s\n", name, (int)length, text);
}

static void appends(void) {
    int fd = open("log", O_CREAT | O_RDWR | O_APPEND, 0644);
    CHECK(fd >= 0);
    TELL(write(fd, "one.", 4));
    TELL(lseek(fd, 1, SEEK_SET));
    TELL(pwrite(fd, "two.", 4, 0));
    TELL(lseek(fd, 0, SEEK_CUR));
    TELL(pwrite(fd, "no", 2, -1));
    struct iovec parts[2] = {{"th", 2}, {"ree.", 4}};
    TELL(pwritev(fd, parts, 2, 2));
    TELL(pwritev2(fd, parts, 2, 3, 0));
    TELL(lseek(fd, 0, SEEK_CUR));
    TELL(pwritev2(fd, parts, 2, -1, 0));
    TELL(lseek(fd, 0, SEEK_CUR));
    TELL(pwritev2(fd, parts, 2, 0, RWF_DSYNC | RWF_SYNC));
    TELL(pwritev2(fd, parts, 2, 0, 1 << 20));
    tell_content("log");
    TELL(fcntl(fd, F_SETFL, 0));
    TELL(pwrite(fd, "ONE", 3, 0));
    TELL(lseek(fd, 5, SEEK_SET));
    TELL(pwritev2(fd, parts, 1, 0, RWF_APPEND));
    TELL(lseek(fd, 0, SEEK_CUR));
    TELL(pwritev2(fd, parts, 1, -1, RWF_APPEND));
    TELL(lseek(fd, 0, SEEK_CUR));
    tell_content("log");
    int from = open("log", O_RDONLY), to = open("copy", O_CREAT | O_WRONLY | O_APPEND, 0644);
    off_t start = 0, target = 0;
    TELL(sendfile(to, from, &start, 10));
    TELL(start);
    TELL(copy_file_range(from, &start, to, &target, 10, 0));
    TELL(fcntl(to, F_SETFL, 0));
    TELL(sendfile(to, from, &start, 10));
    TELL(fcntl(to, F_SETFL, O_APPEND));
    TELL(pwrite(to, "!", 1, 0));
    tell_content("copy");
    close(from), close(to), close(fd);
    FILE *file = fopen("log", "a");
    TELL(ftell(file) > 0);
    TELL(fputs("end", file) >= 0);
    TELL(ftell(file));
    TELL(fclose(file));
    file = fopen("log", "a+");
    TELL(ftell(file));
    TELL(fgetc(file));
    TELL(fputs("more", file) >= 0);
    TELL(ftell(file));
    TELL(fclose(file));
    file = fdopen(open("log", O_WRONLY), "a");
    TELL(ftell(file));
    TELL(fputs("most", file) >= 0);
    TELL(fclose(file));
    tell_content("log");
    file = freopen("log", "a", fopen("copy", "r"));
    TELL(ftell(file));
    TELL(fclose(file));
    TELL(mkdir("folder", 0755));
    TELL(open("folder", O_RDONLY | O_TRUNC));
    struct stat reserved;
    for (int flags = O_RDONLY; flags <= O_RDWR; flags++) {
        fd = open("reserved", O_CREAT | O_RDWR, 0644);
        TELL(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
        TELL(fstat(fd, &reserved) == 0 && reserved.st_blocks == 2048);
        TELL(close(open("reserved", flags | O_TRUNC)));
        TELL(fstat(fd, &reserved) == 0 && reserved.st_blocks == 0);
        CHECK(close(fd) == 0);
    }
    fd = open("log", O_RDONLY | O_TRUNC);
    TELL(lseek(fd, 0, SEEK_END));
    TELL(write(fd, "x", 1));
    TELL(close(fd));
}

static int print_list(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int answer = vdprintf(fd, format, arguments);
    va_end(arguments);
    return answer;
}

static void texts(void) {
    int fd = open("text", O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0);
    TELL(dprintf(fd, "%d %s %.2f %c %ld %d %d %s %.1f\n", 1, "two", 3.0, '4', 5L, 6, 7, "eight", 9.0));
    TELL(print_list(fd, "%s %d %.3f\n", "list", 2, 0.5));
    TELL(dprintf(open("text", O_RDONLY), "no"));
    void *addresses[2] = {(void *)16, (void *)32};
    backtrace_symbols_fd(addresses, 2, fd);
    tell_content("text");
    FILE *file = fopen("text", "r");
    int numbers[2] = {0, 0};
    char words[2][20] = {"", ""};
    double value = 0;
    TELL(fscanf(file, "%d %19s %lf", &numbers[0], words[0], &value));
    printf("%d %s %.1f\n", numbers[0], words[0], value);
    TELL(ftell(file));
    TELL(getc(file));
    TELL(fscanf(file, "%19[4-5 ]%d", words[1], &numbers[1]));
    printf("%s %d\n", words[1], numbers[1]);
    TELL(fclose(file));
    file = fopen("table", "w");
    TELL(fputs("/dev/x /mnt ext4 ro,user 0 1\n", file) >= 0);
    TELL(fclose(file));
    file = setmntent("table", "r+");
    CHECK(file != NULL);
    TELL(fcntl(fileno(file), F_GETFD));
    struct mntent *entry = getmntent(file);
    printf("%s %s %s %s\n", entry->mnt_fsname, entry->mnt_dir, entry->mnt_type, entry->mnt_opts);
    TELL(addmntent(file, entry));
    TELL(endmntent(file));
    tell_content("table");
    TELL(setmntent("none", "r") == NULL);
    close(fd);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void names(void) {
    int here = open(".", O_RDONLY | O_DIRECTORY);
    struct dirent **list;
    int count = scandirat(here, ".", &list, NULL, alphasort);
    for (int at = 0; at < count; at++) {
        printf(" %s(%d)", list[at]->d_name, list[at]->d_type);
        free(list[at]);
    }
    printf("\n");
    free(list);
    TELL(scandirat(here, "none", &list, NULL, NULL));
    TELL(scandirat(here, "log", &list, NULL, NULL));
    char buffer[32]; /* One entry at a time, in whatever order they come. */
    int entries = 0, sum = 0;
    for (ssize_t length; (length = getdents64(here, buffer, sizeof buffer)) > 0;)
        for (ssize_t at = 0; at < length;) {
            struct dirent64 *entry = (void *)(buffer + at);
            entries++;
            sum += (int)strlen(entry->d_name) * entry->d_type;
            at += entry->d_reclen;
        }
    printf("%d entries, %d\n", entries, sum);
    TELL(getdents64(here, buffer, sizeof buffer));
    close(here);
    here = open("folder", O_RDONLY);
    TELL(getdents64(here, buffer, 5));
    TELL(fpathconf(here, _PC_NAME_MAX));
    close(here);
    TELL(getdents64(open("log", O_RDONLY), buffer, sizeof buffer));
    struct stat stat;
    CHECK(lstat("log", &stat) == 0);
    TELL(ftok("log", 7) == (key_t)((stat.st_ino & 0xffff) | (stat.st_dev & 0xff) << 16 | 7u << 24));
    TELL(ftok("none", 7));
    char wide[PATH_MAX + 1];
    TELL(strcmp(getcwd(NULL, 0), getwd(wide)));
}

static void words(void) {
    wordexp_t found = {.we_offs = 2};
    TELL(wordexp("a lo* fol?er/* none* $HOME_OF_NOBODY [t]*", &found, WRDE_DOOFFS));
    TELL(wordexp("c*y", &found, WRDE_DOOFFS | WRDE_APPEND));
    TELL(found.we_wordv[0] == NULL && found.we_wordv[1] == NULL);
    for (size_t at = 0; at < found.we_wordc; at++)
        printf(" %s", found.we_wordv[2 + at]);
    printf("\n");
    TELL(found.we_wordv[2 + found.we_wordc] == NULL);
    wordfree(&found);
}

static int signals, calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t called = PTHREAD_COND_INITIALIZER;

static void on_signal(int number, siginfo_t *information, void *context) {
    (void)number, (void)context;
    signals += information->si_code == SI_ASYNCIO ? information->si_value.sival_int : 1000;
}

static void on_call(union sigval value) {
    pthread_mutex_lock(&lock);
    calls += value.sival_int;
    pthread_cond_signal(&called);
    pthread_mutex_unlock(&lock);
}

static void wait_for(const struct aiocb *request) {
    while (aio_error(request) == EINPROGRESS)
        CHECK(aio_suspend(&request, 1, NULL) == 0 || errno == EINTR || errno == EAGAIN);
}

/* What a request answers. */
#define OUTCOME(call)                                                                                                  \
    do {                                                                                                               \
        TELL(call);                                                                                                    \
        wait_for(&one);                                                                                                \
        printf("  %d", aio_error(&one));                                                                               \
        printf(" %zd\n", aio_return(&one));                                                                            \
    } while (0)

static void requests(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    int fd = open("asynchronous", O_CREAT | O_RDWR, 0644);
    char text[20] = "";
    struct aiocb one = {.aio_fildes = fd, .aio_buf = "0123456789", .aio_nbytes = 10, .aio_offset = 5};
    one.aio_sigevent.sigev_notify = SIGEV_NONE;
    OUTCOME(aio_write(&one));
    one.aio_buf = text, one.aio_nbytes = 8, one.aio_offset = 7;
    OUTCOME(aio_read(&one));
    printf("%s\n", text);
    OUTCOME(aio_fsync(O_SYNC, &one));
    TELL(aio_fsync(77, &one));
    TELL(aio_cancel(fd, NULL));
    TELL(aio_cancel(fd, &one));
    one.aio_offset = 100;
    OUTCOME(aio_read(&one));
    one.aio_offset = -1;
    OUTCOME(aio_read(&one));
    one.aio_offset = 0, one.aio_reqprio = -1;
    TELL(aio_read(&one));
    one.aio_reqprio = 0;
    int reader = open("asynchronous", O_RDONLY);
    one.aio_fildes = reader;
    OUTCOME(aio_write(&one));
    one.aio_fildes = fd;
    one.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    one.aio_sigevent.sigev_signo = SIGUSR1;
    one.aio_sigevent.sigev_value.sival_int = 3;
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    OUTCOME(aio_read(&one));
    sigset_t none;
    sigemptyset(&none);
    while (signals == 0)
        sigsuspend(&none);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    printf("signals: %d\n", signals);
    one.aio_sigevent.sigev_notify = SIGEV_THREAD;
    one.aio_sigevent.sigev_notify_function = on_call;
    one.aio_sigevent.sigev_notify_attributes = NULL;
    one.aio_sigevent.sigev_value.sival_int = 5;
    OUTCOME(aio_read(&one));
    pthread_mutex_lock(&lock);
    while (calls == 0)
        pthread_cond_wait(&called, &lock);
    pthread_mutex_unlock(&lock);
    printf("calls: %d\n", calls);

    /* A list of requests, one of them on a pipe of the kernel. */
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    struct aiocb two = {.aio_fildes = fd, .aio_lio_opcode = LIO_WRITE, .aio_buf = "LIST", .aio_nbytes = 4};
    struct aiocb three = {.aio_fildes = pipes[1], .aio_lio_opcode = LIO_WRITE, .aio_buf = "pipe", .aio_nbytes = 4};
    struct aiocb four = {.aio_fildes = fd, .aio_lio_opcode = LIO_NOP};
    struct aiocb *list[] = {&two, NULL, &three, &four};
    TELL(lio_listio(LIO_WAIT, list, 4, NULL));
    printf("%d %zd", aio_error(&two), aio_return(&two));
    printf(", %d %zd\n", aio_error(&three), aio_return(&three));
    CHECK(read(pipes[0], text, 4) == 4);
    two.aio_fildes = reader;
    TELL(lio_listio(LIO_WAIT, list, 4, NULL));
    printf("%d %zd", aio_error(&two), aio_return(&two));
    printf(", %d %zd\n", aio_error(&three), aio_return(&three));
    two.aio_fildes = fd;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 11};
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    TELL(lio_listio(LIO_NOWAIT, list, 4, &event));
    while (signals < 14)
        sigsuspend(&none);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    printf("signals: %d, %d %d\n", signals, aio_error(&two), aio_error(&three));
    TELL(lio_listio(77, list, 4, NULL));
    tell_content("asynchronous");
    close(fd), close(reader);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(chdir(arguments[1]) == 0);
    umask(022);
    appends();
    texts();
    names();
    words();
    requests();
    return 0;
}
