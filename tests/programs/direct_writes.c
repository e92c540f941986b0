/*
 * direct_writes FILE ROUNDS aio|threads: direct writes that are under way together, each followed by a buffered read that
 * must see it, while other threads read the same file through the page cache all the time.
 *
 * A round fills the file with one byte value by writes with O_DIRECT: all submitted at once (aio), or one by each of
 * several threads. Then it reads the file through the page cache. Exits with 1 at the first byte of another round.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PIECE = 64 << 10, PIECES = 10, SIZE = PIECE * PIECES, READERS = 2, WRITERS = 4 };

static const char *path;
static volatile int done;

static void fail(const char *doing)
{
	fprintf(stderr, "%s: %s: %s\n", path, doing, strerror(errno));
	exit(2);
}

static int opened(int flags)
{
	int fd = open(path, flags, 0600);

	if (fd < 0)
		fail("open");
	return fd;
}

static void *aligned(size_t size)
{
	void *memory;

	if (posix_memalign(&memory, 4096, size))
		fail("allocate");
	return memory;
}

static void *keep_reading(void *unused)
{
	char *buffer = aligned(SIZE);
	int fd = opened(O_RDONLY);

	while (!done)
		if (pread(fd, buffer, SIZE, 0) < 0)
			fail("read");
	close(fd);
	return unused;
}

static void write_with_aio(int fd, char *data)
{
	static aio_context_t context;
	struct iocb pieces[PIECES] = { 0 }, *list[PIECES];
	struct io_event events[PIECES];

	if (!context && syscall(SYS_io_setup, PIECES, &context))
		fail("io_setup");
	for (int i = 0; i < PIECES; i++) {
		pieces[i].aio_lio_opcode = IOCB_CMD_PWRITE;
		pieces[i].aio_fildes = fd;
		pieces[i].aio_buf = (unsigned long)(data + i * PIECE);
		pieces[i].aio_nbytes = PIECE;
		pieces[i].aio_offset = i * PIECE;
		list[i] = &pieces[i];
	}
	if (syscall(SYS_io_submit, context, PIECES, list) != PIECES)
		fail("io_submit");
	if (syscall(SYS_io_getevents, context, PIECES, PIECES, events, NULL) != PIECES)
		fail("io_getevents");
	for (int i = 0; i < PIECES; i++)
		if (events[i].res != PIECE)
			fail("write asynchronously");
}

struct share {
	int fd, first;
	char *data;
};

static void *write_share(void *argument)
{
	struct share *share = argument;

	for (int i = share->first; i < PIECES; i += WRITERS)
		if (pwrite(share->fd, share->data + i * PIECE, PIECE, i * PIECE) != PIECE)
			fail("write");
	return NULL;
}

static void write_with_threads(int fd, char *data)
{
	pthread_t threads[WRITERS];
	struct share shares[WRITERS];

	for (int i = 0; i < WRITERS; i++) {
		shares[i] = (struct share){ fd, i, data };
		if (pthread_create(&threads[i], NULL, write_share, &shares[i]))
			fail("start a thread");
	}
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
}

int main(int count, char **words)
{
	pthread_t readers[READERS];
	char *data = aligned(SIZE), *seen = aligned(SIZE);
	int direct, buffered, rounds;

	if (count != 4) {
		fprintf(stderr, "usage: direct_writes FILE ROUNDS aio|threads\n");
		return 2;
	}
	path = words[1];
	rounds = atoi(words[2]);
	direct = opened(O_RDWR | O_CREAT | O_DIRECT);
	buffered = opened(O_RDONLY);
	if (ftruncate(direct, SIZE))
		fail("truncate");
	for (int i = 0; i < READERS; i++)
		if (pthread_create(&readers[i], NULL, keep_reading, NULL))
			fail("start a thread");
	for (int round = 1; round <= rounds; round++) {
		memset(data, round, SIZE);
		if (strcmp(words[3], "aio") == 0)
			write_with_aio(direct, data);
		else
			write_with_threads(direct, data);
		if (pread(buffered, seen, SIZE, 0) != SIZE)
			fail("read");
		for (int i = 0; i < SIZE; i++)
			if (seen[i] != (char)round) {
				printf("round %d, byte %d: %d was read after %d was written\n", round, i,
				       (unsigned char)seen[i], round & 255);
				exit(1);
			}
	}
	done = 1;
	for (int i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	return 0;
}
