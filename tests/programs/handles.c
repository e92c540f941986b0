/*
 * handles make FILE [connectable]...   prints the file's handle as hexadecimal: type, then bytes
 * handles open DIR HANDLE              opens it in the file system of DIR; prints what kind it is and, of a regular
 *                                      file, its content; exits with the errno
 *
 * File handles (name_to_handle_at, open_by_handle_at) are what an NFS server gives its clients.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef AT_HANDLE_CONNECTABLE
#define AT_HANDLE_CONNECTABLE 0x002
#endif

union room {
	struct file_handle handle;
	char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
};

static int failed(const char *doing, const char *what)
{
	int code = errno;

	fprintf(stderr, "%s: %s: %s\n", what, doing, strerror(code));
	return code;
}

static int make(const char *path, int flags)
{
	union room room = { .handle.handle_bytes = MAX_HANDLE_SZ };
	int mount;

	if (name_to_handle_at(AT_FDCWD, path, &room.handle, &mount, flags))
		return failed("make a handle", path);
	printf("%08x", room.handle.handle_type);
	for (unsigned i = 0; i < room.handle.handle_bytes; i++)
		printf("%02x", room.handle.f_handle[i]);
	printf("\n");
	return 0;
}

static int open_handle(const char *dir, const char *text)
{
	union room room = { 0 };
	struct stat stat;
	char content[4096];
	unsigned byte, count = 0;
	ssize_t length;
	int fd, root = open(dir, O_RDONLY | O_DIRECTORY);

	if (root < 0 || sscanf(text, "%8x", (unsigned *)&room.handle.handle_type) != 1)
		return failed("open", dir);
	for (text += 8; count < MAX_HANDLE_SZ && sscanf(text, "%2x", &byte) == 1; text += 2)
		room.handle.f_handle[count++] = byte;
	room.handle.handle_bytes = count;
	fd = open_by_handle_at(root, &room.handle, O_RDONLY);
	if (fd < 0)
		return failed("open by handle", dir);
	if (fstat(fd, &stat))
		return failed("stat", dir);
	if (S_ISDIR(stat.st_mode)) {
		printf("directory\n");
		return 0;
	}
	length = read(fd, content, sizeof(content));
	if (length < 0)
		return failed("read", dir);
	printf("file: %.*s\n", (int)length, content);
	return 0;
}

int main(int count, char **words)
{
	if (count >= 3 && strcmp(words[1], "make") == 0)
		return make(words[2], count > 3 ? AT_HANDLE_CONNECTABLE : 0);
	if (count == 4 && strcmp(words[1], "open") == 0)
		return open_handle(words[2], words[3]);
	fprintf(stderr, "usage: handles make FILE [connectable] | handles open DIR HANDLE\n");
	return 2;
}
