/* stdio, as programs use it. Run in a directory of the host and in one of a device, it prints the same. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void modes(void) {
    TELL(fopen("none", "r") == NULL);
    TELL(fopen("file", "q") == NULL);
    FILE *file = fopen("file", "w");
    CHECK(file != NULL);
    TELL(fileno(file) > 2);
    TELL(fprintf(file, "%d lines\n", 3));
    TELL(fputs("second\n", file) >= 0);
    TELL(fputc('x', file));
    TELL(fwrite("third\n", 1, 6, file));
    TELL(ftell(file));
    TELL(fclose(file));
    TELL(fopen("file", "wx") == NULL);
    file = fopen("file", "a+");
    TELL(fwrite("more\n", 5, 1, file));
    TELL(ftell(file));
    rewind(file);
    char line[100];
    while (fgets(line, sizeof line, file))
        printf("  %s", line);
    TELL(feof(file) != 0);
    TELL(ferror(file));
    TELL(fclose(file));
    file = fopen("file", "r");
    TELL(fputs("no", file));
    TELL(ferror(file) != 0);
    TELL(fclose(file));
    file = fopen("file", "r+");
    TELL(fseek(file, 2, SEEK_SET));
    TELL(fputs("LINES", file) >= 0);
    TELL(fseek(file, 0, SEEK_SET));
    TELL(fgetc(file));
    TELL(ungetc('Z', file));
    TELL(fgetc(file));
    char *text = NULL;
    size_t room = 0;
    TELL(getline(&text, &room, file));
    printf("  %s", text);
    TELL(getdelim(&text, &room, 'd', file));
    printf("  %s\n", text);
    free(text);
    int number;
    char word[20];
    rewind(file);
    TELL(fscanf(file, "%d %19s", &number, word));
    printf("  %d %s\n", number, word);
    fpos_t position;
    TELL(fgetpos(file, &position));
    TELL(fsetpos(file, &position));
    TELL(fseek(file, 0, SEEK_END));
    TELL(ftello(file));
    TELL(fclose(file));
}

static void buffers(void) {
    FILE *file = fopen("buffered", "w+");
    static char own[100];
    TELL(setvbuf(file, own, _IOFBF, sizeof own));
    char bytes[1000];
    for (size_t at = 0; at < sizeof bytes; at++)
        bytes[at] = (char)('a' + at % 26);
    for (int round = 0; round < 30; round++)
        CHECK(fwrite(bytes, 1, round * 30, file) == (size_t)round * 30);
    TELL(fflush(file));
    struct stat stat;
    TELL(fstat(fileno(file), &stat));
    TELL(stat.st_size);
    rewind(file);
    long sum = 0, count = 0;
    for (size_t got; (got = fread(bytes, 3, 100, file)) > 0;)
        for (size_t at = 0; at < got * 3; at++)
            sum += bytes[at], count++;
    printf("  %ld bytes, sum %ld\n", count, sum);
    TELL(fclose(file));
    file = fopen("unbuffered", "w");
    setbuf(file, NULL);
    fputs("at once", file);
    TELL(stat.st_size);
    CHECK(lstat("unbuffered", &stat) == 0);
    TELL(stat.st_size);
    TELL(fclose(file));
    file = fopen("lines", "w");
    setlinebuf(file);
    fputs("a line\nand", file);
    CHECK(lstat("lines", &stat) == 0);
    TELL(stat.st_size);
    TELL(fclose(file));
}

static void numbers(void) {
    int fd = open("by-number", O_CREAT | O_RDWR | O_TRUNC, 0644);
    FILE *file = fdopen(fd, "w");
    TELL(fileno(file) == fd);
    TELL(fputs("by number", file) >= 0);
    TELL(fclose(file));
    TELL(close(fd));
    fd = open("by-number", O_RDONLY);
    TELL(fdopen(fd, "w") == NULL);
    file = fdopen(fd, "r");
    char text[20] = "";
    TELL(fread(text, 1, 20, file));
    printf("  %s\n", text);
    file = freopen("by-number", "a", file);
    CHECK(file != NULL);
    TELL(fputs(" again", file) >= 0);
    TELL(fclose(file));
    TELL(fopen("full", "w") != NULL); /* left open: exit closes it */
}

static void standard_output(void) {
    fflush(stdout);
    int kept = dup(1);
    FILE *again = freopen("output", "w", stdout);
    CHECK(again != NULL);
    printf("into a file\n");
    puts("by puts");
    fflush(stdout);
    CHECK(write(1, "by number\n", 10) == 10);
    CHECK(dup2(kept, 1) == 1);
    printf("on the terminal again\n");
    fflush(stdout);
    int fd = open("output", O_WRONLY | O_APPEND);
    CHECK(dup2(fd, 1) == 1);
    close(fd);
    printf("by dup2\n");
    fflush(stdout);
    CHECK(dup2(kept, 1) == 1);
    FILE *file = fopen("output", "r");
    for (int c; (c = fgetc(file)) != EOF;)
        putchar(c);
    TELL(fclose(file));
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(chdir(arguments[1]) == 0);
    modes();
    buffers();
    numbers();
    standard_output();
    FILE *left = fopen("left-open", "w");
    fputs("flushed by exit", left);
    return 0;
}
