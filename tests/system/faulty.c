/* A disk that fails on command: preloaded (LD_PRELOAD), it counts what a process asks of one folder and, at one of those
 * calls, kills the process, tears the write, or answers with an error. For Linux:
 *
 *   cc -shared -fPIC -o faulty.so faulty.c -ldl -lpthread
 *
 *   FAULTY_FOLDER  the absolute path of the folder; what lies in it counts, apart from .lock and from metrics.jsonl and
 *                  log.txt, which training writes meanwhile: the number of a call would be another in each run
 *   FAULTY_STEP    counting starts with the first call on .tmp-checkpoint-STEP and ends with that of another step
 *   FAULTY_ACTION  count, or what happens at call FAULTY_AT:
 *                  kill     SIGKILL before the call
 *                  tear     SIGKILL after half of the buffer was written; after the call where nothing is written
 *                  nospace  half of the buffer is taken, then ENOSPC, until another step's save begins
 *                  full     the same, for good
 *                  eio      this call fails with EIO and does nothing
 *                  short    half of the buffer is written, which is no error
 *                  a number this signal is raised, and the call goes on
 *   FAULTY_LOG     a file that gets a line for each call: its number, kind, path, bytes
 *   FAULTY_SLOW    milliseconds that each call takes
 *
 * The environment is read anew by each process, so a child of fork may change it before its first call.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define PREFIX ".tmp-checkpoint-"

enum answer { GO_ON, FAIL, HALF, HALF_THEN_KILL, KILL_AFTER };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner;
static char folder[PATH_MAX], action[16], log_path[PATH_MAX];
static long step, at, slow, calls;
static enum { BEFORE, DURING, OVER } save;
static int full;

static void read_environment(void) {
    const char *value;
    owner = getpid();
    save = BEFORE;
    calls = full = 0;
    snprintf(folder, sizeof folder, "%s", (value = getenv("FAULTY_FOLDER")) ? value : "");
    snprintf(action, sizeof action, "%s", (value = getenv("FAULTY_ACTION")) ? value : "count");
    snprintf(log_path, sizeof log_path, "%s", (value = getenv("FAULTY_LOG")) ? value : "");
    step = (value = getenv("FAULTY_STEP")) ? atol(value) : -1;
    at = (value = getenv("FAULTY_AT")) ? atol(value) : -1;
    slow = (value = getenv("FAULTY_SLOW")) ? atol(value) : 0;
}

/* The absolute path that name means relative to the open folder fd. */
static void absolute(char *path, int fd, const char *name) {
    char link[64], base[PATH_MAX];
    ssize_t length = 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    if (fd == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, base, sizeof base - 1);
    base[length > 0 ? length : 0] = 0;
    if (name[0])
        snprintf(path, PATH_MAX, "%.*s/%s", PATH_MAX / 2, base, name);
    else
        snprintf(path, PATH_MAX, "%s", base);
}

static int counts(const char *path, const char *kind) {
    size_t length = strlen(folder);
    const char *name, *digits;
    if (!length || strncmp(path, folder, length) || (path[length] && path[length] != '/'))
        return 0;
    if (!path[length])
        return save == DURING && !strcmp(kind, "fsync");
    name = path + length + 1;
    if (strstr(name, "metrics.jsonl") || !strcmp(name, ".lock"))
        return 0;
    if (!strcmp(name, "log.txt"))
        return full;
    if (!strncmp(name, PREFIX, strlen(PREFIX))) {
        digits = name + strlen(PREFIX);
        if (*digits >= '0' && *digits <= '9') {
            if (atol(digits) == step && save == BEFORE)
                save = DURING;
            else if (atol(digits) != step && save == DURING)
                save = OVER;
        }
    }
    return save == DURING || full;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static enum answer judge(const char *kind, const char *path, size_t bytes) {
    int takes_space = strcmp(kind, "fsync") && strcmp(kind, "rename") && strcmp(kind, "unlink");
    int is_write = !strcmp(kind, "write"), handle, number, signal_number = 0;
    char line[PATH_MAX + 64];
    enum answer answer = GO_ON;

    pthread_mutex_lock(&lock);
    if (owner != getpid())
        read_environment();
    if (!counts(path, kind)) {
        pthread_mutex_unlock(&lock);
        return GO_ON;
    }
    number = ++calls;
    if (log_path[0]) {
        handle = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND, 0644);
        int length = snprintf(line, sizeof line, "%d\t%s\t%s\t%zu\n", number, kind, path, bytes);
        syscall(SYS_write, handle, line, length);
        syscall(SYS_close, handle);
    }
    if (number == at) {
        if (!strcmp(action, "kill"))
            die();
        else if (!strcmp(action, "tear"))
            answer = is_write ? HALF_THEN_KILL : KILL_AFTER;
        else if (!strcmp(action, "eio"))
            answer = FAIL, errno = EIO;
        else if (!strcmp(action, "short") && is_write && bytes > 1)
            answer = HALF;
        else
            signal_number = atoi(action);
    }
    if (at > 0 && number >= at && takes_space && (!strcmp(action, "nospace") || !strcmp(action, "full"))) {
        full = !strcmp(action, "full");
        answer = number == at && is_write && bytes > 1 ? HALF : FAIL;
        errno = ENOSPC;
    }
    pthread_mutex_unlock(&lock);
    if (signal_number)
        kill(getpid(), signal_number);
    if (slow)
        usleep(1000 * slow);
    return answer;
}

static enum answer judge_at(const char *kind, int fd, const char *name, size_t bytes) {
    char path[PATH_MAX];
    int error = errno;
    absolute(path, fd, name);
    errno = error;
    return judge(kind, path, bytes);
}

/* Calls the function that this one stands before. */
#define REAL(type, name, arguments) ((type(*) arguments)dlsym(RTLD_NEXT, name))
#define SIMPLE(kind, fd, path, call)                 \
    do {                                             \
        enum answer answer = judge_at(kind, fd, path, 0); \
        if (answer == FAIL)                          \
            return -1;                               \
        int result = call;                           \
        if (answer == KILL_AFTER)                    \
            die();                                   \
        return result;                               \
    } while (0)

static int is_for_writing(int flags) { return (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC); }

#define OPEN(function)                                                                          \
    int function(const char *path, int flags, ...) {                                            \
        va_list rest;                                                                           \
        va_start(rest, flags);                                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                 \
        va_end(rest);                                                                           \
        if (!is_for_writing(flags))                                                             \
            return REAL(int, #function, (const char *, int, ...))(path, flags, mode);           \
        SIMPLE("open", AT_FDCWD, path, REAL(int, #function, (const char *, int, ...))(path, flags, mode)); \
    }
#define OPENAT(function)                                                                        \
    int function(int fd, const char *path, int flags, ...) {                                    \
        va_list rest;                                                                           \
        va_start(rest, flags);                                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                 \
        va_end(rest);                                                                           \
        if (!is_for_writing(flags))                                                             \
            return REAL(int, #function, (int, const char *, int, ...))(fd, path, flags, mode);  \
        SIMPLE("open", fd, path, REAL(int, #function, (int, const char *, int, ...))(fd, path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int creat(const char *path, mode_t mode) {
    SIMPLE("open", AT_FDCWD, path, REAL(int, "creat", (const char *, mode_t))(path, mode));
}

int mkdir(const char *path, mode_t mode) {
    SIMPLE("mkdir", AT_FDCWD, path, REAL(int, "mkdir", (const char *, mode_t))(path, mode));
}

int mkdirat(int fd, const char *path, mode_t mode) {
    SIMPLE("mkdir", fd, path, REAL(int, "mkdirat", (int, const char *, mode_t))(fd, path, mode));
}

int ftruncate(int fd, off_t length) {
    SIMPLE("truncate", fd, "", REAL(int, "ftruncate", (int, off_t))(fd, length));
}

int ftruncate64(int fd, off64_t length) {
    SIMPLE("truncate", fd, "", REAL(int, "ftruncate64", (int, off64_t))(fd, length));
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
    SIMPLE("truncate", fd, "", REAL(int, "fallocate", (int, int, off_t, off_t))(fd, mode, offset, length));
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    enum answer answer = judge_at("truncate", fd, "", 0);
    if (answer == FAIL)
        return errno; /* this one returns its error */
    int result = REAL(int, "posix_fallocate", (int, off_t, off_t))(fd, offset, length);
    if (answer == KILL_AFTER)
        die();
    return result;
}

int fsync(int fd) { SIMPLE("fsync", fd, "", fcntl(fd, F_GETFD) < 0 ? -1 : 0); }

int fdatasync(int fd) { SIMPLE("fsync", fd, "", fcntl(fd, F_GETFD) < 0 ? -1 : 0); }

int rename(const char *from, const char *to) {
    SIMPLE("rename", AT_FDCWD, from, REAL(int, "rename", (const char *, const char *))(from, to));
}

int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    SIMPLE("rename", from_fd, from,
           REAL(int, "renameat", (int, const char *, int, const char *))(from_fd, from, to_fd, to));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned int flags) {
    SIMPLE("rename", from_fd, from,
           REAL(int, "renameat2", (int, const char *, int, const char *, unsigned int))(from_fd, from, to_fd, to,
                                                                                        flags));
}

int link(const char *from, const char *to) {
    SIMPLE("link", AT_FDCWD, to, REAL(int, "link", (const char *, const char *))(from, to));
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    SIMPLE("link", to_fd, to,
           REAL(int, "linkat", (int, const char *, int, const char *, int))(from_fd, from, to_fd, to, flags));
}

int unlink(const char *path) { SIMPLE("unlink", AT_FDCWD, path, REAL(int, "unlink", (const char *))(path)); }

int rmdir(const char *path) { SIMPLE("unlink", AT_FDCWD, path, REAL(int, "rmdir", (const char *))(path)); }

int unlinkat(int fd, const char *path, int flags) {
    SIMPLE("unlink", fd, path, REAL(int, "unlinkat", (int, const char *, int))(fd, path, flags));
}

#define WRITE(bytes, whole, half)                              \
    do {                                                       \
        enum answer answer = judge_at("write", fd, "", bytes); \
        ssize_t result;                                        \
        if (answer == FAIL)                                    \
            return -1;                                         \
        if (answer == GO_ON)                                   \
            return whole;                                      \
        result = half;                                         \
        if (answer == HALF_THEN_KILL)                          \
            die();                                             \
        return result;                                         \
    } while (0)

ssize_t write(int fd, const void *buffer, size_t bytes) {
    ssize_t (*real)(int, const void *, size_t) = REAL(ssize_t, "write", (int, const void *, size_t));
    WRITE(bytes, real(fd, buffer, bytes), real(fd, buffer, bytes / 2));
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
    ssize_t (*real)(int, const void *, size_t, off_t) = REAL(ssize_t, "pwrite", (int, const void *, size_t, off_t));
    WRITE(bytes, real(fd, buffer, bytes, offset), real(fd, buffer, bytes / 2, offset));
}

ssize_t pwrite64(int fd, const void *buffer, size_t bytes, off64_t offset) {
    ssize_t (*real)(int, const void *, size_t, off64_t) =
        REAL(ssize_t, "pwrite64", (int, const void *, size_t, off64_t));
    WRITE(bytes, real(fd, buffer, bytes, offset), real(fd, buffer, bytes / 2, offset));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    WRITE(bytes, REAL(ssize_t, "writev", (int, const struct iovec *, int))(fd, parts, count),
          syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len / 2));
}
