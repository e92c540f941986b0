/* A program that is built with AddressSanitizer. `sanitized DIR [wrong]` */
#include "check.h"
#include <fcntl.h>
#include <unistd.h>

int main(int count, char **arguments) {
    char path[200], line[100];
    snprintf(path, sizeof path, "%s/file", arguments[1]);
    FILE *file = fopen(path, "w+");
    CHECK(file != NULL);
    for (int at = 0; at < 1000; at++)
        CHECK(fprintf(file, "line %d\n", at) > 0);
    rewind(file);
    size_t length = 0;
    while (fgets(line, sizeof line, file) != NULL)
        length += strlen(line);
    CHECK(fclose(file) == 0);
    int fd = open(path, O_RDONLY);
    char *text = malloc(length), *copy = malloc(length);
    CHECK(read(fd, text, length) == (ssize_t)length && close(fd) == 0);
    memcpy(copy, text, length);
    printf("%zu bytes, %d\n", length, memcmp(copy, text, length));
    fflush(stdout);
    if (count > 2)
        ((volatile char *)copy)[length] = 'x';
    free(text);
    free(copy);
    return 0;
}
