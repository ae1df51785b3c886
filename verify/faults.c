/* Faults for a process and all that it starts: the n-th call of one kind, on files below a folder, fails with an error
 * or ends the process. A disk that is full stays so: after ENOSPC of a write or of creating a file, all later ones fail as
 * well. A process that ends in a write has written half of it.
 *
 * To be loaded by LD_PRELOAD; `struct plan` is mapped from the file that NMT_FAULTS names, so that calls of all
 * processes are counted together. Without that variable, or before `faults_follow`, nothing changes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE, FSYNC, RENAME, OPEN, CREATE, MMAP, KINDS };

struct plan {
    atomic_long counts[KINDS]; /* calls so far */
    atomic_long struck;        /* how many of them failed */
    long kind, nth, error;     /* the fault: the nth call of a kind, from 1 on; error 0 ends the process by SIGKILL */
    char root[PATH_MAX];       /* a real path without a / at its end */
};

static struct plan *plan;

#define NEXT(result, name, ...) ((result(*)(__VA_ARGS__))next(#name))
static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Begin to follow the plan in a file; NULL ends it. */
void faults_follow(const char *path)
{
    plan = NULL;
    int fd = path == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *mapped = (void *)syscall(SYS_mmap, NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        plan = mapped;
}

__attribute__((constructor)) static void begin(void) { faults_follow(getenv("NMT_FAULTS")); }

/* Whether the call at hand is the one that shall fail; errno is then set. */
static int strikes(enum kind kind, int below)
{
    if (plan == NULL || !below)
        return 0;
    int lasts = plan->error == ENOSPC && (kind == WRITE || kind == CREATE);
    long count = atomic_fetch_add(&plan->counts[kind], 1) + 1;
    if (plan->kind != kind || count < plan->nth || (count > plan->nth && !lasts))
        return 0;
    atomic_fetch_add(&plan->struck, 1);
    if (plan->error == 0 && kind != WRITE)
        kill(getpid(), SIGKILL);
    errno = (int)plan->error;
    return 1;
}

/* The end of a process in a write: what there is of it is half. */
static ssize_t fail(int fd, const void *data, size_t size, off64_t at)
{
    if (plan->error != 0)
        return -1;
    if (at < 0)
        syscall(SYS_write, fd, data, size / 2);
    else
        syscall(SYS_pwrite64, fd, data, size / 2, at);
    kill(getpid(), SIGKILL);
    return -1;
}

static int is_below(const char *path)
{
    size_t length = strlen(plan->root);
    return strncmp(path, plan->root, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int fd_below(int fd)
{
    char link[64], path[PATH_MAX];
    if (plan == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return is_below(path);
}

static int path_below(int folder, const char *path)
{
    char whole[2 * PATH_MAX], link[64];
    if (plan == NULL)
        return 0;
    if (path[0] == '/')
        return is_below(path);
    ssize_t length;
    if (folder == AT_FDCWD) {
        if (getcwd(whole, PATH_MAX) == NULL)
            return 0;
        length = (ssize_t)strlen(whole);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        if ((length = readlink(link, whole, PATH_MAX)) < 0)
            return 0;
    }
    snprintf(whole + length, PATH_MAX, "/%s", path);
    return is_below(whole);
}

ssize_t write(int fd, const void *data, size_t size)
{
    if (strikes(WRITE, fd_below(fd)))
        return fail(fd, data, size, -1);
    return NEXT(ssize_t, write, int, const void *, size_t)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (strikes(WRITE, fd_below(fd)))
        return fail(fd, parts[0].iov_base, parts[0].iov_len, -1);
    return NEXT(ssize_t, writev, int, const struct iovec *, int)(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    if (strikes(WRITE, fd_below(fd)))
        return fail(fd, data, size, at);
    return NEXT(ssize_t, pwrite64, int, const void *, size_t, off64_t)(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

int ftruncate64(int fd, off64_t size)
{
    if (strikes(WRITE, fd_below(fd)))
        return (int)fail(fd, NULL, 0, -1);
    return NEXT(int, ftruncate64, int, off64_t)(fd, size);
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int fsync(int fd) { return strikes(FSYNC, fd_below(fd)) ? -1 : NEXT(int, fsync, int)(fd); }

int fdatasync(int fd) { return strikes(FSYNC, fd_below(fd)) ? -1 : NEXT(int, fdatasync, int)(fd); }

int rename(const char *from, const char *to)
{
    if (strikes(RENAME, path_below(AT_FDCWD, to)))
        return -1;
    return NEXT(int, rename, const char *, const char *)(from, to);
}

int renameat(int old, const char *from, int new, const char *to)
{
    if (strikes(RENAME, path_below(new, to)))
        return -1;
    return NEXT(int, renameat, int, const char *, int, const char *)(old, from, new, to);
}

static int opens(int folder, const char *path, int flags, mode_t mode)
{
    if (strikes(flags & O_CREAT ? CREATE : OPEN, path_below(folder, path)))
        return -1;
    return (int)syscall(SYS_openat, folder, path, flags | O_LARGEFILE, mode);
}

#define MODE(flags, last)                                                                                             \
    mode_t mode = 0;                                                                                                  \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                            \
        va_list rest;                                                                                                 \
        va_start(rest, last);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                  \
        va_end(rest);                                                                                                 \
    }

int open(const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opens(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opens(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opens(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opens(folder, path, flags, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    if (strikes(mode[0] == 'r' ? OPEN : CREATE, path_below(AT_FDCWD, path)))
        return NULL;
    return NEXT(FILE *, fopen64, const char *, const char *)(path, mode);
}

FILE *fopen(const char *path, const char *mode) { return fopen64(path, mode); }

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t at)
{
    if (fd >= 0 && strikes(MMAP, fd_below(fd)))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, at);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t at)
{
    return mmap64(address, size, protection, flags, fd, at);
}
