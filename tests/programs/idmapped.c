// Calls on an idmapped mount of a directory, with what they leave behind there and below it.
//
//     idmapped DIR TARGET
//
// The owners 0 to 65535 of DIR are those from 100000 on at TARGET. Root and users that are mapped, and one that is not,
// make, change and look at files. Two file systems print the same if they agree.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "fail.h"

// Not from sys/mount.h, which defines again what linux/mount.h does.
int mount(const char *, const char *, const char *, unsigned long, const void *);

enum { FIRST = 100000, COUNT = 65536, OWNER = FIRST + 1001, MEMBER = FIRST + 1002, SHARED = FIRST + 2000, STRANGER = 5 };

static uid_t me;
static const char *below;

#define TRY(call) report(#call, (errno = 0, (long)(call)))

static void report(const char *call, long result) {
    printf("%u: %s -> ", me, call);
    if (result < 0) printf("%s\n", strerrorname_np(errno));
    else printf("%ld\n", result);
}

static void show(const char *where, const char *path, const char *name) {
    struct stat found;
    if (stat(path, &found) != 0) printf("    %s %s: %s\n", where, name, strerrorname_np(errno));
    else printf("    %s %s: %o %u:%u\n", where, name, found.st_mode, found.st_uid, found.st_gid);
}

// Prints a file as the mapped mount shows it, and as it is.
static void look(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", below, name);
    show("mapped", name, name);
    show("stored", path, name);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) fail(path);
    close(fd);
}

// Returns a user name space with the mapping. The process in it ends; the descriptor keeps it.
static int name_space(void) {
    int ready[2], done[2];
    char path[64], byte = 0;
    if (pipe(ready) != 0 || pipe(done) != 0) fail("pipe");
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER) != 0 || write(ready[1], &byte, 1) != 1) _exit(1);
        _exit(read(done[0], &byte, 1) != 1);
    }
    if (read(ready[0], &byte, 1) != 1) fail("unshare");
    snprintf(path, sizeof path, "/proc/%d/uid_map", child);
    put(path, "0 100000 65536");
    snprintf(path, sizeof path, "/proc/%d/gid_map", child);
    put(path, "0 100000 65536");
    snprintf(path, sizeof path, "/proc/%d/ns/user", child);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || write(done[1], &byte, 1) != 1) fail(path);
    waitpid(child, NULL, 0);
    return fd;
}

static void mount_mapped(const char *from, const char *to) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, 1 << 14 | 1 << 18 /* MS_REC | MS_PRIVATE */, NULL) != 0) fail("unshare");
    int tree = syscall(SYS_open_tree, AT_FDCWD, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    struct mount_attr how = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = name_space() };
    if (tree < 0) fail("open_tree");
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &how, sizeof how) != 0) {
        printf("cannot be mapped: %s\n", strerrorname_np(errno));
        exit(0);
    }
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH) != 0) fail("move_mount");
}

static int made(const char *name, mode_t mode) {
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, mode);
    if (fd >= 0) {
        if (write(fd, "text", 4) != 4) fail(name);
        close(fd);
    }
    return fd < 0 ? -1 : 0;
}

static void make_all(void) {
    TRY(made("file", 0644));
    look("file");
    TRY(mkdir("dir", 0755));
    look("dir");
    TRY(mknod("dir/fifo", S_IFIFO | 0644, 0));
    look("dir/fifo");
    TRY(symlink("file", "link"));
    TRY(link("file", "hard"));
    TRY(rename("hard", "moved"));
    look("moved");
    TRY(renameat2(AT_FDCWD, "moved", AT_FDCWD, "hard", RENAME_WHITEOUT));
    look("moved");
    look("hard");
}

static void own(void) {
    make_all();
    TRY(chmod("file", 04755));
    TRY(truncate("file", 2));
    look("file");
    TRY(chown("file", -1, SHARED));
    look("file");
    TRY(chown("file", OWNER, -1));
    TRY(chown("file", MEMBER, -1));
    TRY(chown("file", STRANGER, -1));
    TRY(chown("file", 1001, -1));
    TRY(chmod("dir", 02775));
    TRY(chown("dir", -1, SHARED));
    TRY(chmod("dir", 02775));
    TRY(made("dir/inherits", 0664));
    look("dir/inherits");
    TRY(setxattr("file", "user.a", "value", 5, 0));
    TRY(setxattr("file", "trusted.a", "value", 5, 0));
    unsigned char acl[] = { 2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 0x8a, 0x8a, 1, 0,
                            4, 0, 0, 0, 255, 255, 255, 255, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255 };
    TRY(setxattr("file", "system.posix_acl_access", acl, sizeof acl, 0));
    TRY(getxattr("file", "system.posix_acl_access", acl, sizeof acl));
    printf("    named user %u\n", acl[16] | acl[17] << 8 | acl[18] << 16);
    TRY(utimensat(AT_FDCWD, "file", NULL, 0));
    TRY(made("secret", 0600));
    TRY(chmod("dir", 02770));
}

// Of the group SHARED, and named 100xxx by the ACL of `file`.
static void of_group(void) {
    TRY(access("secret", R_OK));
    TRY(access("file", R_OK | W_OK));
    TRY(access("dir/inherits", W_OK));
    TRY(made("dir/member", 0644));
    look("dir/member");
    TRY(unlink("secret"));
    TRY(chmod("file", 0777));
    TRY(chown("file", MEMBER, -1));
    TRY(utimensat(AT_FDCWD, "file", (struct timespec[2]){ { 1, 0 }, { 1, 0 } }, 0));
    TRY(truncate("dir/inherits", 1));
    TRY(setxattr("dir/inherits", "user.a", "value", 5, 0));
}

static void strange(void) {
    TRY(made("strange", 0644));
    TRY(mkdir("strange", 0755));
    TRY(symlink("x", "strange"));
    TRY(renameat2(AT_FDCWD, "hard", AT_FDCWD, "strange", RENAME_WHITEOUT));
    look("hard");
    TRY(access("file", R_OK));
    TRY(access("secret", R_OK));
    TRY(chmod("file", 0777));
    TRY(truncate("file", 0));
}

static void as_root(void) {
    TRY(made("of_root", 0644));
    TRY(chown("file", MEMBER, SHARED));
    look("file");
    TRY(chown("file", 1001, -1));
    TRY(chmod("file", 06777));
    look("file");
    TRY(chown("file", OWNER, -1));
    look("file");
    TRY(setxattr("file", "trusted.a", "value", 5, 0));
    TRY(getxattr("file", "trusted.a", NULL, 0));
    TRY(unlink("moved"));
    TRY(rmdir("dir"));
}

static void run(uid_t uid, gid_t group, void (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        me = uid;
        if (setgroups(1, &group) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) fail("setresuid");
        body();
        fflush(stdout);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) fail("a user");
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    if ((below = realpath(argv[1], NULL)) == NULL) fail(argv[1]);
    if (chmod(below, 0777) != 0) fail(below);
    mount_mapped(below, argv[2]);
    if (chdir(argv[2]) != 0) fail(argv[2]);
    umask(0);
    look(".");
    run(OWNER, SHARED, own);
    run(MEMBER, SHARED, of_group);
    run(STRANGER, SHARED, strange);
    run(0, 0, as_root);
    return 0;
}
