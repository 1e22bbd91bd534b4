/* Makes system calls fail below one folder, in the process that has it loaded first (LD_PRELOAD).

   fail_disk(folder, kinds, spared, times, error): of the calls of these kinds (1: those that need space, 2: syncs),
   `spared` go well, then `times` fail with `error`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static int kinds, error_number;
static long spared, times, failed;

long fail_disk(const char *below, int which, long good, long bad, int error) {
    long before = failed;
    snprintf(folder, sizeof folder, "%s", below);
    kinds = which, spared = good, times = bad, error_number = error, failed = 0;
    return before;
}

static int fails(const char *path, int kind) {
    if (!(kinds & kind) || !path || strncmp(path, folder, strlen(folder)))
        return 0;
    if (spared > 0) {
        spared--;
        return 0;
    }
    if (times <= 0)
        return 0;
    times--, failed++;
    errno = error_number;
    return 1;
}

static int fails_at(int file, int kind) {
    char link[64], path[PATH_MAX];
    if (!(kinds & kind))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return fails(path, kind);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    return fails_at(file, 1) ? -1 : real(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return fails_at(file, 1) ? -1 : real(file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return fails_at(file, 1) ? -1 : real(file, data, size, at);
}
int posix_fallocate(int file, off_t at, off_t size) {
    REAL(posix_fallocate);
    return fails_at(file, 1) ? error_number : real(file, at, size);
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    return fails_at(file, 1) ? error_number : real(file, at, size);
}
int link(const char *from, const char *to) {
    REAL(link);
    return fails(to, 1) ? -1 : real(from, to);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails(path, 1) ? -1 : real(path, mode);
}
int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (flags & O_CREAT && access(path, F_OK) && fails(path, 1))
        return -1;
    return real(path, flags, mode);
}
int fsync(int file) {
    REAL(fsync);
    return fails_at(file, 2) ? -1 : real(file);
}
int fdatasync(int file) {
    REAL(fdatasync);
    return fails_at(file, 2) ? -1 : real(file);
}
