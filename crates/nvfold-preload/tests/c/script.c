/* Runs scripts of calls, one a line, and prints what each answers: `script ROOT SCRIPTS [mount]`. ROOT becomes the root
   directory, in a name space of mounts of its own, so that no path leads out of it. /outer/nvfold is the place of the device;
   with `mount` a tmpfs is mounted there, so that it has the borders that a device has.

   A line is the name of a call and its arguments. `@` at the beginning of a path is /outer, `%e` is the empty path, `%n` a name
   and `%p` a path that are too long. A number with `#` is a place for a descriptor, one with `$` for a stream. `== NAME`
   begins a script. After each one everything that is there is printed and removed. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = 8, WORDS = 8, NAMES = 400 };

static int numbers[PLACES];
static FILE *streams[PLACES];
static char *words[WORDS];

/* What a line adds, sorted. */
static char *found[NAMES];
static int found_count;

static int by_text(const void *one, const void *other) {
    return strcmp(*(char *const *)one, *(char *const *)other);
}

__attribute__((format(printf, 1, 2))) static void find(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (found_count < NAMES)
        CHECK(vasprintf(&found[found_count++], format, arguments) >= 0);
    va_end(arguments);
}

static void tell_found(void) {
    qsort(found, found_count, sizeof *found, by_text);
    for (int at = 0; at < found_count; at++) {
        printf("    %s\n", found[at]);
        free(found[at]);
    }
    found_count = 0;
}

/* The path that a word stands for; one of a few places that are used in turn. */
static char *path(int word) {
    static char rooms[4][PATH_MAX * 2];
    static int turn;
    char *room = rooms[turn++ % 4];
    const char *text = words[word] ? words[word] : "";
    if (strcmp(text, "%e") == 0)
        return strcpy(room, "");
    char *end = room;
    if (*text == '@') {
        end = stpcpy(room, "/outer");
        text++;
    }
    for (; *text != '\0'; text++) {
        size_t length = *text != '%' ? 0 : text[1] == 'n' ? 256 : PATH_MAX;
        if (length > 0)
            memset(end, 'n', length), end += length, text++;
        else
            *end++ = *text;
    }
    *end = '\0';
    return room;
}

static long number(int word) {
    return words[word] ? strtol(words[word], NULL, 0) : 0;
}

static int *place(int word) {
    return &numbers[words[word] && words[word][0] == '#' ? atoi(words[word] + 1) % PLACES : 0];
}

/* A directory for the calls with `at`: a place, or the working directory. */
static int at(int word) {
    return words[word] && words[word][0] == '#' ? *place(word) : AT_FDCWD;
}

static FILE **stream(int word) {
    return &streams[words[word] && words[word][0] == '$' ? atoi(words[word] + 1) % PLACES : 0];
}

/* What stat tells, of what is the same on every file system; times that a script has set. */
static const char *told(const struct stat *stat) {
    static char room[200];
    int end = snprintf(room, sizeof room, "%o links %ld", stat->st_mode, (long)stat->st_nlink);
    if (!S_ISDIR(stat->st_mode))
        end += snprintf(room + end, sizeof room - end, " size %lld", (long long)stat->st_size);
    if (stat->st_mtim.tv_sec < 1000000)
        snprintf(room + end, sizeof room - end, " mtime %lld.%09ld", (long long)stat->st_mtim.tv_sec, stat->st_mtim.tv_nsec);
    return room;
}

static int name_that_is_found(const char *path, const struct stat *stat, int kind, struct FTW *place) {
    find("%s kind %d level %d base %d mode %o", path, kind, place->level, place->base, stat->st_mode);
    return 0;
}

static long list(DIR *dir) {
    if (dir == NULL)
        return -1;
    long count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL; count++)
        find("%s type %d", entry->d_name, entry->d_type);
    closedir(dir);
    return count;
}

static long scan(const char *path) {
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    for (int at = 0; at < count; at++) {
        find("%s", entries[at]->d_name);
        free(entries[at]);
    }
    if (count >= 0)
        free(entries);
    return count;
}

static long glob_all(const char *pattern, int flags) {
    glob_t all;
    memset(&all, 0, sizeof all);
    int answer = glob(pattern, flags, NULL, &all);
    for (size_t at = 0; answer == 0 && at < all.gl_pathc; at++)
        find("%s", all.gl_pathv[at]);
    globfree(&all);
    errno = 0;
    return answer;
}

/* Keeps a path that a call returned. */
static long keep(char *path, char *room) {
    if (path == NULL)
        return -1;
    find("%s", path);
    if (path != room)
        free(path);
    return 0;
}

static long open_into(int *place, int fd) {
    if (fd >= 0 && *place >= 0)
        close(*place);
    if (fd >= 0)
        *place = fd;
    return fd;
}

static long stream_into(FILE **place, FILE *stream) {
    if (stream == NULL)
        return -1;
    if (*place != NULL)
        fclose(*place);
    *place = stream;
    return 0;
}

static long read_some(int fd, long length, long offset) {
    static char room[5000];
    long count = offset < 0 ? read(fd, room, length % 5000) : pread(fd, room, length % 5000, offset);
    if (count > 0)
        find("first %d last %d", room[0], room[count - 1]);
    return count;
}

static const char *some_bytes(long length) {
    static char room[5000];
    for (long at = 0; at < length; at++)
        room[at] = (char)('a' + (at + length) % 23);
    return room;
}

/* A position in a directory is the file system's own affair. */
static int is_directory(int fd) {
    struct stat stat;
    return fstat(fd, &stat) == 0 && S_ISDIR(stat.st_mode);
}

static long seek(int fd, long offset, int whence) {
    return is_directory(fd) ? 0 : lseek(fd, offset, whence);
}

static long seek_stream(FILE *stream, long offset, int whence) {
    return is_directory(fileno(stream)) ? 0 : fseek(stream, offset, whence);
}

static long read_stream(FILE *stream, long length) {
    static char room[5000];
    seek_stream(stream, 0, SEEK_CUR);
    long count = fread(room, 1, length % 5000, stream);
    if (count > 0)
        find("first %d last %d", room[0], room[count - 1]);
    find("end %d error %d", feof(stream) != 0, ferror(stream) != 0);
    clearerr(stream);
    return count;
}

/* Makes a file or directory of an unused name, and removes it by that name. */
static long temporary(char *template, int is_directory) {
    long made = is_directory ? mkdtemp(template) != NULL ? 0 : -1 : mkstemp(template);
    int before = errno;
    if (made >= 0) {
        find("removed %d", is_directory ? rmdir(template) : unlink(template));
        if (!is_directory)
            find("left %ld", (long)close(made));
    }
    errno = before;
    return made < 0 ? -1 : 0;
}

static long stat_told(int answer, const struct stat *stat) {
    if (answer == 0)
        find("%s", told(stat));
    return answer;
}

static long statx_told(int dirfd, const char *path, int flags) {
    struct statx found;
    int answer = statx(dirfd, path, flags, STATX_BASIC_STATS, &found);
    if (answer == 0)
        find("%o links %u size %lld", found.stx_mode, found.stx_nlink,
             S_ISDIR(found.stx_mode) ? 0LL : (long long)found.stx_size);
    return answer;
}

static long link_told(long length, char *room) {
    if (length >= 0) {
        room[length] = '\0';
        find("%s", room);
    }
    return length < 0 ? -1 : 0;
}

static struct timespec *times(long seconds) {
    static struct timespec times[2];
    times[0] = times[1] = (struct timespec){.tv_sec = seconds, .tv_nsec = 7};
    return times;
}

#define IS(name) (strcmp(call, name) == 0)
#define STREAM_OR_BAD(word, answer) (*stream(word) == NULL ? (errno = EBADF, -1L) : (long)(answer))

static long run(const char *call) {
    struct stat stat_;
    static char room[PATH_MAX + 10];
    if (IS("open"))
        return open_into(place(1), open(path(2), number(3), number(4)));
    if (IS("openat"))
        return open_into(place(1), openat(at(2), path(3), number(4), number(5)));
    if (IS("creat"))
        return open_into(place(1), creat(path(2), number(3)));
    if (IS("close")) {
        int fd = *place(1);
        *place(1) = -1;
        return close(fd);
    }
    if (IS("dup"))
        return open_into(place(1), dup(*place(2)));
    if (IS("dup2"))
        return *place(1) < 0 ? 0 : dup2(*place(2), *place(1));
    if (IS("getfl"))
        return fcntl(*place(1), F_GETFL);
    if (IS("getfd"))
        return fcntl(*place(1), F_GETFD);
    if (IS("lseek"))
        return seek(*place(1), number(2), number(3));
    if (IS("read"))
        return read_some(*place(1), number(2), -1);
    if (IS("pread"))
        return read_some(*place(1), number(2), number(3));
    if (IS("write"))
        return write(*place(1), some_bytes(number(2)), number(2));
    if (IS("pwrite"))
        return pwrite(*place(1), some_bytes(number(2)), number(2), number(3));
    if (IS("ftruncate"))
        return ftruncate(*place(1), number(2));
    if (IS("fsync"))
        return fsync(*place(1));
    if (IS("mkdir"))
        return mkdir(path(1), number(2));
    if (IS("mkdirat"))
        return mkdirat(at(1), path(2), number(3));
    if (IS("mknod"))
        return mknod(path(1), S_IFREG | number(2), 0);
    if (IS("rmdir"))
        return rmdir(path(1));
    if (IS("unlink"))
        return unlink(path(1));
    if (IS("unlinkat"))
        return unlinkat(at(1), path(2), number(3));
    if (IS("remove"))
        return remove(path(1));
    if (IS("rename"))
        return rename(path(1), path(2));
    if (IS("renameat"))
        return renameat(at(1), path(2), at(3), path(4));
    if (IS("renameat2"))
        return renameat2(AT_FDCWD, path(1), AT_FDCWD, path(2), number(3));
    if (IS("link"))
        return link(path(1), path(2));
    if (IS("linkat"))
        return linkat(at(1), path(2), at(3), path(4), number(5));
    if (IS("symlink"))
        return symlink(path(1), path(2));
    if (IS("symlinkat"))
        return symlinkat(path(1), at(2), path(3));
    if (IS("readlink"))
        return link_told(readlink(path(1), room, PATH_MAX), room);
    if (IS("readlinkat"))
        return link_told(readlinkat(at(1), path(2), room, PATH_MAX), room);
    if (IS("stat"))
        return stat_told(stat(path(1), &stat_), &stat_);
    if (IS("lstat"))
        return stat_told(lstat(path(1), &stat_), &stat_);
    if (IS("fstat"))
        return stat_told(fstat(*place(1), &stat_), &stat_);
    if (IS("fstatat"))
        return stat_told(fstatat(at(1), path(2), &stat_, number(3)), &stat_);
    if (IS("statx"))
        return statx_told(at(1), path(2), number(3));
    if (IS("access"))
        return access(path(1), number(2));
    if (IS("faccessat"))
        return faccessat(at(1), path(2), number(3), number(4));
    if (IS("truncate"))
        return truncate(path(1), number(2));
    if (IS("chmod"))
        return chmod(path(1), number(2));
    if (IS("fchmod"))
        return fchmod(*place(1), number(2));
    if (IS("fchmodat"))
        return fchmodat(at(1), path(2), number(3), 0);
    if (IS("utimensat"))
        return utimensat(at(1), path(2), times(number(3)), number(4));
    if (IS("futimens"))
        return futimens(*place(1), times(number(2)));
    if (IS("chdir"))
        return chdir(path(1));
    if (IS("fchdir"))
        return fchdir(*place(1));
    if (IS("getcwd"))
        return keep(getcwd(room, number(1)), room);
    if (IS("getcwd_new"))
        return keep(getcwd(NULL, 0), room);
    if (IS("get_current_dir_name"))
        return keep(get_current_dir_name(), room);
    if (IS("realpath"))
        return keep(realpath(path(1), NULL), room);
    if (IS("canonicalize_file_name"))
        return keep(canonicalize_file_name(path(1)), room);
    if (IS("opendir"))
        return list(opendir(path(1)));
    if (IS("fdopendir")) {
        int fd = dup(*place(1));
        DIR *dir = fdopendir(fd);
        int before = errno;
        if (dir == NULL && fd >= 0)
            close(fd);
        errno = before;
        if (dir != NULL)
            rewinddir(dir);
        return list(dir);
    }
    if (IS("scandir"))
        return scan(path(1));
    if (IS("nftw"))
        return nftw(path(1), name_that_is_found, 5, number(2));
    if (IS("glob"))
        return glob_all(path(1), number(2));
    if (IS("mkstemp"))
        return temporary(path(1), 0);
    if (IS("mkdtemp"))
        return temporary(path(1), 1);
    if (IS("fopen"))
        return stream_into(stream(1), fopen(path(2), words[3]));
    if (IS("freopen")) {
        FILE *before = *stream(1);
        *stream(1) = NULL;
        return before == NULL ? 0 : stream_into(stream(1), freopen(path(2), words[3], before));
    }
    if (IS("fclose")) {
        FILE *before = *stream(1);
        *stream(1) = NULL;
        return before == NULL ? 0 : fclose(before);
    }
    if (IS("fread"))
        return STREAM_OR_BAD(1, read_stream(*stream(1), number(2)));
    if (IS("fwrite"))
        return STREAM_OR_BAD(1, (seek_stream(*stream(1), 0, SEEK_CUR), fwrite(some_bytes(number(2)), 1, number(2), *stream(1))));
    if (IS("fseek"))
        return STREAM_OR_BAD(1, seek_stream(*stream(1), number(2), number(3)));
    if (IS("ftell"))
        return STREAM_OR_BAD(1, is_directory(fileno(*stream(1))) ? 0 : ftell(*stream(1)));
    if (IS("fflush"))
        return STREAM_OR_BAD(1, fflush(*stream(1)));
    if (IS("append")) {
        FILE *stream = fopen(path(1), "a");
        if (stream == NULL)
            return -1;
        fputs("appended", stream);
        return fclose(stream);
    }
    fprintf(stderr, "there is no call %s\n", call);
    exit(1);
}

static unsigned long content_of(int directory, const char *name) {
    static unsigned char room[5000];
    unsigned long sum = 14695981039346656037UL;
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW);
    for (long count; fd >= 0 && (count = read(fd, room, sizeof room)) > 0;)
        for (long at = 0; at < count; at++)
            sum = (sum ^ room[at]) * 1099511628211UL;
    if (fd >= 0)
        close(fd);
    return sum;
}

/* Whether a script finds it there. */
static int stays(const char *name, int level) {
    return level == 0 ? strcmp(name, "outer") == 0 : level == 1 && strcmp(name, "nvfold") == 0;
}

/* Tells what is below a directory, and removes it. */
static void empty(int directory, const char *name, int level) {
    int below = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    DIR *dir = below < 0 ? NULL : fdopendir(below);
    if (dir == NULL) {
        printf("  %s cannot be listed: %s\n", name, strerror(errno));
        return;
    }
    char *names[NAMES];
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && count < NAMES &&
            !(level == 0 && strcmp(entry->d_name, "proc") == 0))
            names[count++] = strdup(entry->d_name);
    qsort(names, count, sizeof *names, by_text);
    for (int at = 0; at < count; at++) {
        struct stat stat;
        char target[PATH_MAX + 1] = "";
        CHECK(fstatat(below, names[at], &stat, AT_SYMLINK_NOFOLLOW) == 0);
        if (S_ISLNK(stat.st_mode))
            CHECK(readlinkat(below, names[at], target, PATH_MAX) > 0);
        printf("%*s%s %s %s", 2 * level + 2, "", names[at], told(&stat), target);
        printf(" %lx\n", S_ISREG(stat.st_mode) ? content_of(below, names[at]) : 0);
        if (S_ISDIR(stat.st_mode))
            empty(below, names[at], level + 1);
        if (!stays(names[at], level) && unlinkat(below, names[at], S_ISDIR(stat.st_mode) ? AT_REMOVEDIR : 0) != 0)
            printf("  %s cannot be removed: %s\n", names[at], strerror(errno));
        free(names[at]);
    }
    closedir(dir);
}

static void begin(void) {
    for (int at = 0; at < PLACES; at++)
        numbers[at] = -1;
    CHECK(chdir("/outer/nvfold") == 0);
    CHECK(chmod(".", 0755) == 0);
}

static void end(void) {
    for (int at = 0; at < PLACES; at++) {
        struct stat stat;
        if (streams[at] != NULL)
            printf("  stream %d: %d\n", at, fclose(streams[at]));
        streams[at] = NULL;
        if (numbers[at] >= 0 && fstat(numbers[at], &stat) == 0) {
            printf("  place %d: %s at %ld\n", at, told(&stat), seek(numbers[at], 0, SEEK_CUR));
            close(numbers[at]);
        }
    }
    CHECK(chdir("/") == 0);
    empty(AT_FDCWD, "/", 0);
    fflush(stdout);
}

static void enter(const char *root, int mounts) {
    CHECK(unshare(CLONE_NEWNS) == 0);
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(chdir(root) == 0 && mount("/proc", "proc", NULL, MS_BIND | MS_REC, NULL) == 0);
    if (mounts)
        CHECK(mount("tmpfs", "outer/nvfold", "tmpfs", 0, "mode=755,size=64m") == 0);
    CHECK(chroot(".") == 0 && chdir("/") == 0);
}

/* Goes away from directories that were removed: on a device they have no parent any more. */
static void leave_removed(void) {
    struct stat stat_;
    char room[PATH_MAX];
    if (stat(".", &stat_) == 0 && stat_.st_nlink == 0) {
        long answer = keep(getcwd(room, sizeof room), room);
        printf("  removed: %ld %s\n", answer, strerrorname_np(errno));
        CHECK(chdir("/outer/nvfold") == 0);
    }
    for (int at = 0; at < PLACES; at++)
        if (numbers[at] >= 0 && fstat(numbers[at], &stat_) == 0 && S_ISDIR(stat_.st_mode) && stat_.st_nlink == 0) {
            printf("  place %d was removed\n", at);
            close(numbers[at]);
            numbers[at] = -1;
        }
}

int main(int count, char **arguments) {
    CHECK(count >= 3);
    static char line[20000], copy[20000], buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    umask(022);
    unsetenv("PWD");
    /* Above the descriptors of the scripts. */
    int scripts = open(arguments[2], O_RDONLY);
    int high = fcntl(scripts, F_DUPFD, 500);
    CHECK(high >= 500 && close(scripts) == 0);
    FILE *lines = fdopen(high, "r");
    enter(arguments[1], count > 3);
    int is_first = 1;
    for (int at = 0; fgets(line, sizeof line, lines) != NULL; at++) {
        line[strcspn(line, "\n")] = '\0';
        strcpy(copy, line);
        if (strncmp(line, "== ", 3) == 0) {
            if (!is_first)
                end();
            printf("%s\n", line);
            fflush(stdout);
            is_first = at = 0;
            begin();
            continue;
        }
        memset(words, 0, sizeof words);
        char *word = strtok(copy, " ");
        for (int at = 0; word != NULL && at < WORDS; at++, word = strtok(NULL, " "))
            words[at] = word;
        errno = 0;
        long answer = run(words[0]);
        printf("%d: %s -> %ld %s\n", at, line, answer, answer == -1 ? strerrorname_np(errno) : "");
        tell_found();
        leave_removed();
    }
    if (!is_first)
        end();
    return 0;
}
