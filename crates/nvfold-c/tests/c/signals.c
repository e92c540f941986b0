/* Signals for the process are never handled by a thread of the library: with the main thread blocking them, they wait.
 * Arguments: device, options. */
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

enum { ROUNDS = 200 };

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
    (void)signal;
    handled++;
}

/* Counts the threads; all but the first must block `signal`, as the kernel says. */
static int threads(int signal)
{
    int count = 0;
    DIR *list = opendir("/proc/self/task");
    CHECK(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        char path[300], line[200];
        unsigned long long blocked = 0;
        int number = atoi(entry->d_name);
        if (number == 0)
            continue;
        count++;
        snprintf(path, sizeof path, "/proc/self/task/%d/status", number);
        FILE *status = fopen(path, "r");
        CHECK(status);
        while (fgets(line, sizeof line, status))
            sscanf(line, "SigBlk: %llx", &blocked);
        fclose(status);
        CHECK(number == getpid() || (blocked >> (signal - 1) & 1));
    }
    closedir(list);
    return count;
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGUSR1, SIGALRM, SIGTERM, SIGCHLD};
    struct sigaction action;
    char buffer[5000];
    CHECK(argc == 4);
    memset(&action, 0, sizeof action);
    memset(buffer, 'x', sizeof buffer);
    action.sa_handler = on_signal;
    for (unsigned at = 0; at < sizeof signals / sizeof *signals; at++)
        CHECK(sigaction(signals[at], &action, NULL) == 0);
    nvfold_device *device = nvfold_device_open(argv[1], argv[2]);
    CHECK(device);
    int fd = nvfold_open(device, "/file", O_RDWR | O_CREAT, 0644);
    CHECK(nvfold_write(fd, buffer, sizeof buffer) == sizeof buffer);

    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    struct timespec none = {0, 0};
    for (int round = 0; round < ROUNDS; round++) {
        int signal = signals[round % (sizeof signals / sizeof *signals)];
        CHECK(kill(getpid(), signal) == 0);
        CHECK(nvfold_pwrite(fd, buffer, sizeof buffer, round) == sizeof buffer);
        usleep(500); /* time for a thread that does not block it to take it */
        CHECK(sigtimedwait(&all, NULL, &none) == signal);
    }
    CHECK(handled == 0);
    for (unsigned at = 0; at < sizeof signals / sizeof *signals; at++)
        CHECK(threads(signals[at]) == atoi(argv[3]));
    CHECK(nvfold_device_close(device) == 0);
    return 0;
}
