// Random system calls of several users, one after the other, each with its result and what it left behind.
//
//     users DIR SEED STEPS
//
// Root and three users each have a process of their own. Names, modes, owners, attributes and flags are drawn from a few,
// so that the users meet. What is drawn depends on the seed alone, never on a result: two file systems get the same calls,
// and print the same lines if they agree.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "fail.h"
#include "random.h"

#define COUNT(of) (sizeof(of) / sizeof *(of))
#define PICK(of) ((of)[below(COUNT(of))])

enum { USERS = 4, SHARED_GROUP = 2000, KNOWN_TIMES = 100000, STEPS_OF_A_TREE = 100 };

static const uid_t UIDS[USERS] = { 0, 1001, 1002, 1003 };
// The third user is in a group of the second one only by his supplementary groups; the last one is in none.
static const gid_t GROUPS[USERS][2] = { { 0, 0 }, { 1001, SHARED_GROUP }, { 1002, SHARED_GROUP }, { 1003, 1003 } };
static const char *const DIRS[] = { ".", "sticky", "setgid", "shared", "plain", "plain/below" };
static const char *const NAMES[] = { "a", "b", "c", "d" };
static const uid_t OWNERS[] = { 0, 1001, 1002, 1003, -1 };
static const gid_t OWNING_GROUPS[] = { 0, 1001, 1002, SHARED_GROUP, -1 };
static const mode_t MODES[] = { 0644, 0600, 0666, 0755, 0777, 0700, 0000, 02755, 02745, 02767, 04755, 06777, 01777, 02770,
                                04711, 0444, 0222, 0111, 0640, 02640 };
static const char *const ATTRIBUTES[] = {
    "user.a", "user.b", "trusted.a", "security.a", "security.capability", "system.posix_acl_access",
    "system.posix_acl_default", "system.a", "other.a", "user.", "a",
};

static char printed[1 << 16];

// What a user answers, before what he printed.
static struct {
    uint64_t state;
    size_t printed_bytes;
    char drawn[2][64];
} answer;

static void print(const char *format, ...) {
    va_list values;
    va_start(values, format);
    answer.printed_bytes += vsnprintf(printed + answer.printed_bytes, sizeof printed - answer.printed_bytes, format, values);
    va_end(values);
    if (answer.printed_bytes >= sizeof printed) fail("too much to print");
}

static const char *outcome(long result) {
    static char text[64];
    if (result < 0) return strerrorname_np(errno);
    snprintf(text, sizeof text, "%ld", result);
    return text;
}

// Draws a path: mostly of a file, often of one of the first three, sometimes of a directory itself.
static const char *path(char *into) {
    const char *dir = PICK(DIRS);
    int kind = below(8);
    if (kind == 0) strcpy(into, dir);
    else if (kind < 4) sprintf(into, "%s/%s", DIRS[below(3)], NAMES[0]);
    else sprintf(into, "%s/%s", dir, PICK(NAMES));
    return into;
}

static void put(unsigned char *into, uint64_t value, int bytes) {
    for (int at = 0; at < bytes; at++) into[at] = value >> 8 * at;
}

// Draws an ACL: mostly one that is valid.
static size_t acl(unsigned char *into) {
    static const struct { int tag; uint32_t id; } ENTRIES[] = {
        { 0x01, -1 }, { 0x02, 1001 }, { 0x02, 1002 }, { 0x04, -1 }, { 0x08, SHARED_GROUP }, { 0x10, -1 }, { 0x20, -1 },
    };
    size_t length = 4;
    int kind = below(8);
    put(into, 2, 4);
    for (size_t at = 0; at < COUNT(ENTRIES); at++) {
        int is_base = ENTRIES[at].tag == 0x01 || ENTRIES[at].tag == 0x04 || ENTRIES[at].tag == 0x20;
        int permissions = below(8), is_in = is_base || kind >= 4 || (kind == 3 && below(2));
        if (kind == 0 && below(4) == 0) is_in = !is_in;
        if (!is_in) continue;
        put(into + length, ENTRIES[at].tag, 2);
        put(into + length + 2, permissions, 2);
        put(into + length + 4, ENTRIES[at].id, 4);
        length += 8;
    }
    return length;
}

// Draws a value for an attribute.
static size_t value_for(const char *name, unsigned char *into) {
    size_t length = below(40);
    memset(into, below(256), length);
    if (strstr(name, "posix_acl") && below(8)) return acl(into);
    if (strstr(name, "capability") && below(4)) {
        // VFS_CAP_REVISION_2 with the effective flag, and CAP_NET_RAW.
        memset(into, 0, 20);
        put(into, 0x02000001, 4);
        put(into + 4, 1 << 13, 4);
        return 20;
    }
    return length;
}

static void list_directory(const char *of) {
    struct dirent **found;
    int count = scandir(of, &found, NULL, alphasort);
    print("list %s = %s", of, outcome(count));
    for (int at = 0; at < count; at++) print(" %s:%d", found[at]->d_name, found[at]->d_type);
}

static void list_attributes(const char *of) {
    char names[4096];
    ssize_t length = llistxattr(of, names, sizeof names);
    unsigned mask = 0, others = 0;
    for (ssize_t at = 0; at < length; at += strlen(names + at) + 1) {
        size_t known = 0;
        while (known < COUNT(ATTRIBUTES) && strcmp(ATTRIBUTES[known], names + at)) known++;
        if (known < COUNT(ATTRIBUTES)) mask |= 1 << known;
        else others++;
    }
    print("attributes %s = %s, %x and %u others", of, length < 0 ? outcome(length) : "listed", mask, others);
}

static void get_attribute(const char *of) {
    static unsigned char value[4096];
    const char *name = PICK(ATTRIBUTES);
    size_t room = below(6) ? sizeof value : below(30);
    ssize_t length = lgetxattr(of, name, value, room);
    print("get %s %s %zu = %s ", of, name, room, outcome(length));
    if (room > 0) for (ssize_t at = 0; at < length; at++) print("%02x", value[at]);
}

static void set_attribute(const char *of) {
    unsigned char value[256];
    const char *name = PICK(ATTRIBUTES);
    size_t length = value_for(name, value);
    int flags = below(3) ? 0 : below(4);
    print("set %s %s %zu flags %d = ", of, name, length, flags);
    print("%s", outcome(lsetxattr(of, name, value, length, flags)));
}

// Opens a file, and writes to it, cuts it, or changes it in another way.
static void open_and_change(const char *of) {
    static const int FLAGS[] = {
        O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_CREAT, O_RDWR | O_CREAT | O_EXCL, O_WRONLY | O_TRUNC,
        O_WRONLY | O_CREAT | O_TRUNC, O_WRONLY | O_APPEND, O_RDONLY | O_NOFOLLOW, O_RDONLY | O_DIRECTORY, O_RDONLY | O_NOATIME,
        O_WRONLY | O_CREAT | O_NOFOLLOW,
    };
    char bytes[8192];
    memset(bytes, 'x', sizeof bytes);
    int flags = PICK(FLAGS), what = below(8);
    mode_t mode = PICK(MODES);
    size_t length = below(sizeof bytes);
    int fd = open(of, flags | O_NONBLOCK, mode);
    print("open %s %o %o = %s", of, flags, mode, fd < 0 ? outcome(fd) : "open");
    if (fd < 0) return;
    switch (what) {
    case 0: print(", fallocate %s", outcome(fallocate(fd, 0, 0, length + 1))); break;
    case 1: print(", punch %s", outcome(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, length + 1))); break;
    case 2: print(", ftruncate %s", outcome(ftruncate(fd, length))); break;
    case 3: print(", fchmod %s", outcome(fchmod(fd, mode))); break;
    case 4: print(", fchown %s", outcome(fchown(fd, -1, -1))); break;
    case 5: break;
    default: print(", write %s", outcome(write(fd, bytes, length)));
    }
    close(fd);
}

// Makes a file without a name in a directory, and gives it one.
static void name_nameless(const char *dir, const char *as) {
    mode_t mode = PICK(MODES);
    int fd = open(dir, O_TMPFILE | O_RDWR | (below(4) ? 0 : O_EXCL), mode);
    char opened[64];
    sprintf(opened, "/proc/self/fd/%d", fd);
    print("nameless in %s %o = %s", dir, mode, fd < 0 ? outcome(fd) : "open");
    if (fd < 0) return;
    print(", write %s", outcome(write(fd, "text", 4)));
    print(", linkat %s %s", as, outcome(linkat(AT_FDCWD, opened, AT_FDCWD, as, AT_SYMLINK_FOLLOW)));
    close(fd);
}

static void set_times(const char *of) {
    struct timespec times[2];
    for (int at = 0; at < 2; at++) {
        int kind = below(4);
        times[at].tv_sec = below(KNOWN_TIMES);
        times[at].tv_nsec = kind == 0 ? UTIME_NOW : kind == 1 ? UTIME_OMIT : (long)below(1000000000);
    }
    int is_now = below(4) == 0;
    print("times %s = %s", of, outcome(utimensat(AT_FDCWD, of, is_now ? NULL : times, below(2) ? AT_SYMLINK_NOFOLLOW : 0)));
}

// Does a random call and prints it.
static void call(void) {
    const char *of = path(answer.drawn[0]), *other = path(answer.drawn[1]);
    mode_t mode = PICK(MODES);
    uid_t uid = PICK(OWNERS);
    gid_t gid = PICK(OWNING_GROUPS);
    int flags = below(4);
    char target[256];
    switch (below(27)) {
    case 0: case 1: case 2: case 3: open_and_change(of); break;
    case 4: print("mkdir %s %o = %s", of, mode, outcome(mkdir(of, mode))); break;
    case 5: print("unlink %s = %s", of, outcome(unlink(of))); break;
    case 6: print("rmdir %s = %s", of, outcome(rmdir(of))); break;
    case 7: print("rename %s %s = %s", of, other, outcome(rename(of, other))); break;
    case 8: print("rename %s %s flags %d = %s", of, other, flags,
                  outcome(syscall(SYS_renameat2, AT_FDCWD, of, AT_FDCWD, other, flags))); break;
    case 9: print("link %s %s = %s", of, other, outcome(linkat(AT_FDCWD, of, AT_FDCWD, other, flags & 1 ? AT_SYMLINK_FOLLOW : 0))); break;
    case 10: print("symlink %s %s = %s", other, of, outcome(symlink(flags ? other : "nowhere", of))); break;
    case 11: {
        mode_t kind = flags == 0 ? S_IFCHR : flags == 1 ? S_IFSOCK : S_IFIFO;
        print("mknod %s %o = %s", of, kind | mode, outcome(mknod(of, kind | mode, 0x103)));
        break;
    }
    case 12: case 13: print("chmod %s %o = %s", of, mode, outcome(chmod(of, mode))); break;
    case 14: print("chown %s %d %d = %s", of, (int)uid, (int)gid, outcome(chown(of, uid, gid))); break;
    case 15: print("lchown %s %d %d = %s", of, (int)uid, (int)gid, outcome(lchown(of, uid, gid))); break;
    case 16: print("chown %s of nothing = %s", of, outcome(chown(of, -1, -1))); break;
    case 17: print("truncate %s = %s", of, outcome(truncate(of, below(9000)))); break;
    case 18: set_times(of); break;
    case 19: print("access %s %d = %s", of, flags, outcome(faccessat(AT_FDCWD, of, below(8), flags & 1 ? AT_EACCESS : 0))); break;
    case 20: case 21: set_attribute(of); break;
    case 22: get_attribute(of); break;
    case 23: print("remove %s = ", of); print("%s", outcome(lremovexattr(of, PICK(ATTRIBUTES)))); break;
    case 24: flags ? list_attributes(of) : list_directory(of); break;
    case 25: {
        ssize_t length = readlink(of, target, sizeof target - 1);
        print("readlink %s = %s %.*s", of, outcome(length), length < 0 ? 0 : (int)length, target);
        break;
    }
    case 26: name_nameless(PICK(DIRS), of); break;
    }
}

static void print_time(const char *of, struct timespec time) {
    if (time.tv_sec < KNOWN_TIMES) print(" %s %ld.%09ld", of, (long)time.tv_sec, time.tv_nsec);
    else print(" %s now", of);
}

// Prints what root sees of a path. Sizes of directories are those of the file system, not of the calls.
static void look(const char *of) {
    struct stat found;
    unsigned char value[256];
    char names[4096];
    if (lstat(of, &found) != 0) {
        print("\n    %s: %s", of, strerrorname_np(errno));
        return;
    }
    print("\n    %s: %o %u:%u links %lu", of, found.st_mode, found.st_uid, found.st_gid, (unsigned long)found.st_nlink);
    if (!S_ISDIR(found.st_mode)) print(" size %ld", (long)found.st_size);
    if (S_ISCHR(found.st_mode)) print(" device %lx", (unsigned long)found.st_rdev);
    print_time("atime", found.st_atim);
    print_time("mtime", found.st_mtim);
    if (llistxattr(of, names, sizeof names) == 0) return;
    for (size_t at = 0; at < COUNT(ATTRIBUTES); at++) {
        ssize_t length = lgetxattr(of, ATTRIBUTES[at], value, sizeof value);
        if (length < 0) continue;
        print(" %s=", ATTRIBUTES[at]);
        for (ssize_t byte = 0; byte < length; byte++) print("%02x", value[byte]);
    }
}

static void look_at_all(void) {
    for (size_t dir = 0; dir < COUNT(DIRS); dir++) {
        look(DIRS[dir]);
        for (size_t name = 0; name < COUNT(NAMES); name++) {
            char made[64];
            sprintf(made, "%s/%s", DIRS[dir], NAMES[name]);
            look(made);
        }
    }
}

struct user { int asks, is_asked; };

// A process of a user: takes the state of the generator, does a call, and answers with what it printed and the state.
static void serve(int which, int asked, int answers) {
    gid_t supplementary[] = { GROUPS[which][1] };
    if (setgroups(which ? 1 : 0, supplementary) != 0) fail("setgroups");
    if (setresgid(GROUPS[which][0], GROUPS[which][0], GROUPS[which][0]) != 0) fail("setresgid");
    if (setresuid(UIDS[which], UIDS[which], UIDS[which]) != 0) fail("setresuid");
    umask(which & 1 ? 022 : 0);
    while (read(asked, &state, sizeof state) == sizeof state) {
        answer.printed_bytes = 0;
        call();
        answer.state = state;
        if (write(answers, &answer, sizeof answer) != sizeof answer) fail("answer");
        if (write(answers, printed, answer.printed_bytes) != (ssize_t)answer.printed_bytes) fail("answer");
    }
    exit(0);
}

static struct user start(int which) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        close(to[1]);
        close(from[0]);
        serve(which, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return (struct user){ .asks = to[1], .is_asked = from[0] };
}

static void take(int from, void *into, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(from, (char *)into + done, bytes - done);
        if (got <= 0) fail("a user has ended");
        done += got;
    }
}

// Lets a user do a call; prints it.
static void ask(struct user user, int which) {
    if (write(user.asks, &state, sizeof state) != sizeof state) fail("ask");
    take(user.is_asked, &answer, sizeof answer);
    take(user.is_asked, printed, answer.printed_bytes);
    state = answer.state;
    printf("%u: %.*s", UIDS[which], (int)answer.printed_bytes, printed);
    answer.printed_bytes = 0;
}

static int remove_one(const char *of, const struct stat *found, int kind, struct FTW *at) {
    (void)found, (void)kind;
    return at->level ? remove(of) : 0;
}

// Removes everything and makes the tree anew, with files of all owners and modes: else most calls soon meet nothing.
static void make_tree(void) {
    static const struct { const char *name; mode_t mode; uid_t uid; gid_t gid; } MADE[] = {
        { "sticky", 01777, 0, 0 }, { "setgid", 02777, 1001, SHARED_GROUP }, { "shared", 0770, 1002, SHARED_GROUP },
        { "plain", 0755, 1001, 1001 }, { "plain/below", 0777, 1003, 1003 },
    };
    if (nftw(".", remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0) fail("remove");
    if (chown(".", 0, 0) != 0 || chmod(".", 0777) != 0) fail("the root");
    removexattr(".", "system.posix_acl_access");
    removexattr(".", "system.posix_acl_default");
    for (size_t at = 0; at < COUNT(MADE); at++) {
        if (mkdir(MADE[at].name, 0700) != 0) fail(MADE[at].name);
        if (chown(MADE[at].name, MADE[at].uid, MADE[at].gid) != 0) fail("chown");
        if (chmod(MADE[at].name, MADE[at].mode) != 0) fail("chmod");
    }
    for (size_t dir = 0; dir < COUNT(DIRS); dir++) {
        char made[64];
        sprintf(made, "%s/%s", DIRS[dir], NAMES[0]);
        int fd = open(made, O_WRONLY | O_CREAT | O_EXCL, 0600);
        uid_t uid = OWNERS[below(COUNT(OWNERS) - 1)];
        gid_t gid = OWNING_GROUPS[below(COUNT(OWNING_GROUPS) - 1)];
        if (fd < 0 || write(fd, "some text", 9) != 9) fail(made);
        if (fchown(fd, uid, gid) != 0 || fchmod(fd, PICK(MODES)) != 0) fail(made);
        close(fd);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    if (chdir(argv[1]) != 0) fail(argv[1]);
    umask(0);
    state = strtoull(argv[2], NULL, 0);
    struct user users[USERS];
    for (int which = 0; which < USERS; which++) users[which] = start(which);
    for (long step = 0, steps = atol(argv[3]); step < steps; step++) {
        if (step % STEPS_OF_A_TREE == 0) make_tree();
        int which = below(8) == 0 ? 0 : 1 + below(USERS - 1);
        printf("%ld: ", step);
        ask(users[which], which);
        look(answer.drawn[0]);
        look(answer.drawn[1]);
        if (step % STEPS_OF_A_TREE == STEPS_OF_A_TREE - 1) look_at_all();
        printf("%.*s\n", (int)answer.printed_bytes, printed);
    }
    for (int which = 0; which < USERS; which++) close(users[which].asks);
    while (wait(NULL) > 0) {}
    return 0;
}
