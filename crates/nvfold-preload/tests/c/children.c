/* Children: their files below the prefix fail with EIO, and nothing they do changes the parent's. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int code_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    char path[200];
    snprintf(path, sizeof path, "%s/f", arguments[1]);
    int fd = open(path, O_CREAT | O_RDWR, 0644);
    CHECK(write(fd, "content", 7) == 7);
    FILE *stream = fopen(path, "r");
    CHECK(stream != NULL);

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct stat stat;
        char byte;
        int failed = 0;
        failed += read(fd, &byte, 1) == -1 && errno == EIO;
        failed += write(fd, "x", 1) == -1 && errno == EIO;
        failed += fstat(fd, &stat) == -1 && errno == EIO;
        failed += open(path, O_RDONLY) == -1 && errno == EIO;
        failed += lstat(path, &stat) == -1 && errno == EIO;
        failed += unlink(path) == -1 && errno == EIO;
        failed += fopen(path, "r") == NULL && errno == EIO;
        failed += close(fd) == 0;
        /* The host's files are as ever. */
        failed += open("/dev/null", O_RDONLY) >= 0;
        _exit(failed);
    }
    CHECK(code_of(child) == 9);

    child = _Fork();
    if (child == 0)
        _exit(open(path, O_RDONLY) == -1 && errno == EIO);
    CHECK(code_of(child) == 1);

    child = vfork();
    if (child == 0) {
        close(fd);
        dup2(open("/dev/null", O_RDONLY), fileno(stream));
        _exit(7);
    }
    CHECK(code_of(child) == 7);
    char text[8] = "";
    CHECK(pread(fd, text, 7, 0) == 7 && strcmp(text, "content") == 0);
    CHECK(pread(fileno(stream), text, 7, 0) == 7);

    /* A program that a child executes, with a file of ours as its output. */
    char *const echo[] = {"/bin/echo", "lost", NULL};
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
    CHECK(posix_spawn(&child, echo[0], &actions, NULL, echo, environ) == 0);
    CHECK(code_of(child) != 0);
    char *const cat[] = {"/bin/cat", path, NULL};
    CHECK(posix_spawn(&child, cat[0], NULL, NULL, cat, environ) == 0);
    CHECK(code_of(child) == 1);
    char command[300];
    snprintf(command, sizeof command, "cat %s", path);
    CHECK(system(command) != 0);
    FILE *pipe = popen(command, "r");
    CHECK(pipe != NULL && fgetc(pipe) == EOF && pclose(pipe) != 0);

    /* Relative paths of children lead nowhere, and not to where the program was before. */
    struct stat stat;
    char *before = getcwd(NULL, 0);
    CHECK(chdir(arguments[1]) == 0);
    CHECK(lstat("f", &stat) == 0);
    child = vfork();
    if (child == 0) {
        umask(0777);
        _exit(chdir("/"));
    }
    CHECK(code_of(child) == 0 && lstat("f", &stat) == 0);
    int made = open("made", O_CREAT | O_WRONLY, 0644);
    CHECK(fstat(made, &stat) == 0 && (stat.st_mode & 0600) == 0600 && close(made) == 0 && unlink("made") == 0);
    fflush(NULL);
    child = fork();
    if (child == 0)
        _exit(open("relative", O_CREAT | O_WRONLY, 0600) == -1 && errno == EIO && chdir("/") == 0);
    CHECK(code_of(child) == 1);
    char *const touch[] = {"/bin/touch", "relative", NULL};
    CHECK(posix_spawn(&child, touch[0], NULL, NULL, touch, environ) == 0);
    CHECK(code_of(child) == 1);
    CHECK(access("relative", F_OK) == -1);
    CHECK(chdir(before) == 0 && access("relative", F_OK) == -1);
    free(before);

    CHECK(fstat(fd, &stat) == 0 && stat.st_size == 7);
    CHECK(fgets(text, sizeof text, stream) != NULL && strcmp(text, "content") == 0);
    /* Ours again, in this process: the device is opened anew by the program in our place. */
    if (getenv("AGAIN") == NULL) {
        setenv("AGAIN", "1", 1);
        execv("/proc/self/exe", arguments);
        CHECK(!"exec");
    }
    return 0;
}
