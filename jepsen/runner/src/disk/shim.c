// Stands between a node and the C library: a bad disk and a bad clock, for tests.
//
// MERIDIAN_SHIM_CONTROL  a page shared with the runner: what to do (struct control)
// MERIDIAN_SHIM_UNDO     a file shared with the runner: what was there before each write
// MERIDIAN_SHIM_DATA     the folder whose files are on the bad disk
// MERIDIAN_SHIM_KEPT     a folder on the same file system: what was removed or replaced, until that is durable
//
// Every call by which a node's runtime comes to its files is here (disk/calls.rs holds the list against the binary's).
//
// The undo log has two halves; the active one holds records in the order of their numbers. When it
// is half full, what is durable is left behind and the other half becomes active: a process that is
// killed at any moment leaves a log that can be read.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FD_MAX 65536
#define HALF_BYTES (64u << 20)

// Same order as in control.rs.
enum operation {
    WRITE, SYNC, READ, WRITE_OUT, OPEN, CREATE, ALLOCATE, REMOVE, RENAME, MAKE_FOLDER, STAT, LIST,
    SPACE, OPERATION_COUNT
};

// Lets `skip` calls pass, then fails a share of those that come, `left` of them (UINT32_MAX: all).
struct fault {
    _Atomic uint32_t number, per_mille, skip, left;
    _Atomic uint64_t count;
};

// Same layout as in control.rs.
struct control {
    struct fault faults[OPERATION_COUNT];
    _Atomic uint32_t write_delay_us, sync_delay_us, read_delay_us;
    _Atomic uint32_t full;
    _Atomic uint32_t clock_version, padding;
    int64_t wall_offset_ns, anchor_ns, skew_ns, rate_per_million;
    _Atomic uint64_t full_count;
};

// Same layout as in undo.rs.
struct undo_head {
    _Atomic uint32_t active, overflowed;
    _Atomic uint64_t end[2];
    uint64_t padding[5];
};
struct undo {
    uint32_t size, kind;
    uint64_t number, inode, offset;
    uint32_t length;
    _Atomic uint32_t state;
};
enum {
    KIND_OVERWRITE = 1, KIND_GROW = 2, KIND_CREATE = 3,
    // With paths: `from`, `to`, and where what was at `to` is kept; what is not there is empty.
    KIND_RENAME = 4, KIND_REMOVE = 5, KIND_MAKE_FOLDER = 6
};
enum { STATE_PENDING = 0, STATE_DURABLE = 1, STATE_LOST = 2 };

static struct control *control;
static struct undo_head *head;
static char *halves[2];
static char data[4096], kept[4096];
static size_t data_length;
static _Atomic unsigned char watched[FD_MAX];
static _Atomic uint64_t next_number = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void number_on(void);

static void *map(const char *variable, size_t size) {
    const char *path = getenv(variable);
    if (!path) return NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

__attribute__((constructor)) static void start(void) {
    const char *folder = getenv("MERIDIAN_SHIM_DATA");
    if (!folder || strlen(folder) >= sizeof data) return;
    strcpy(data, folder);
    char *undo = map("MERIDIAN_SHIM_UNDO", sizeof(struct undo_head) + 2ul * HALF_BYTES);
    if (undo) {
        head = (struct undo_head *)undo;
        halves[0] = undo + sizeof(struct undo_head);
        halves[1] = halves[0] + HALF_BYTES;
        number_on();
    }
    const char *kept_folder = getenv("MERIDIAN_SHIM_KEPT");
    if (kept_folder && strlen(kept_folder) < sizeof kept) strcpy(kept, kept_folder);
    control = map("MERIDIAN_SHIM_CONTROL", sizeof(struct control));
    data_length = strlen(data);
    // Its children, if any, are not what is tested.
    unsetenv("LD_PRELOAD");
}

// What an earlier process noted comes before all that this one does.
static void number_on(void) {
    for (uint64_t at = 0; at < head->end[head->active];) {
        struct undo *record = (struct undo *)(halves[head->active] + at);
        if (record->size == 0) return;
        if (record->number >= next_number) next_number = record->number + 1;
        at += record->size;
    }
}

static int is_watched(int fd) { return control && fd >= 0 && fd < FD_MAX && watched[fd]; }

static int drawn(uint32_t per_mille) {
    static __thread uint64_t state;
    if (per_mille == 0) return 0;
    if (per_mille >= 1000) return 1;
    if (!state) state = (uint64_t)(uintptr_t)&state ^ (uint64_t)getpid() << 32 ^ next_number;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % 1000 < per_mille;
}

// Whether this call is to fail; errno is set then.
static int fails(enum operation operation) {
    struct fault *fault = &control->faults[operation];
    if (!fault->number || !drawn(fault->per_mille)) return 0;
    for (uint32_t skip = fault->skip; skip > 0;)
        if (atomic_compare_exchange_weak(&fault->skip, &skip, skip - 1)) return 0;
    for (uint32_t left = fault->left; left != UINT32_MAX;) {
        if (left == 0) return 0;
        if (atomic_compare_exchange_weak(&fault->left, &left, left - 1)) break;
    }
    fault->count++;
    errno = fault->number;
    return 1;
}

static void rest(uint32_t us) {
    if (us == 0) return;
    struct timespec time = {us / 1000000, us % 1000000 * 1000L};
    nanosleep(&time, NULL);
}

// ---- the undo log; all with the lock held

static struct undo *record_at(int half, uint64_t at) { return (struct undo *)(halves[half] + at); }

static void keep_pending(void) {
    int from = head->active, to = 1 - from;
    uint64_t end = 0;
    for (uint64_t at = 0; at < head->end[from]; at += record_at(from, at)->size) {
        struct undo *record = record_at(from, at);
        if (record->state == STATE_DURABLE) continue;
        memcpy(halves[to] + end, record, record->size);
        end += record->size;
    }
    head->end[to] = end;
    atomic_thread_fence(memory_order_seq_cst);
    head->active = to;
}

static void note(uint32_t kind, uint64_t inode, uint64_t offset, const void *old, uint32_t length) {
    if (!head) return;
    uint64_t size = (sizeof(struct undo) + length + 7) & ~7ul;
    if (head->end[head->active] + size > HALF_BYTES / 2) keep_pending();
    int half = head->active;
    uint64_t end = head->end[half];
    if (end + size > HALF_BYTES) {
        head->overflowed = 1;
        return;
    }
    struct undo *record = record_at(half, end);
    record->size = size, record->kind = kind, record->number = next_number++;
    record->inode = inode, record->offset = offset, record->length = length;
    record->state = STATE_PENDING;
    if (length) memcpy(record + 1, old, length);
    head->end[half] = end + size;
}

static int is_of_folder(uint32_t kind) { return kind >= KIND_CREATE; }

// What is durable is not brought back: what it replaced goes.
static void drop_kept(struct undo *record) {
    if (record->kind != KIND_RENAME && record->kind != KIND_REMOVE) return;
    const char *path = (const char *)(record + 1);
    path += strlen(path) + 1;
    path += strlen(path) + 1;
    if (*path) {
        REAL(unlink);
        real(path);
    }
}

// What was noted before `number` of a file (or of names, for a folder).
static void settle(uint64_t inode, int is_folder, uint64_t number, uint32_t state) {
    if (!head) return;
    int half = head->active, open_count = 0;
    for (uint64_t at = 0; at < head->end[half]; at += record_at(half, at)->size) {
        struct undo *record = record_at(half, at);
        int is_meant = is_folder ? is_of_folder(record->kind) && record->offset == inode
                                 : !is_of_folder(record->kind) && record->inode == inode;
        if (is_meant && record->number < number && record->state == STATE_PENDING) {
            record->state = state;
            if (state == STATE_DURABLE) drop_kept(record);
        }
        open_count += record->state != STATE_DURABLE;
    }
    if (open_count == 0) head->end[half] = 0;
}

static void note_write(int fd, uint64_t offset, uint64_t length) {
    REAL(pread64);
    struct stat about;
    if (!head || fstat(fd, &about) != 0) return;
    uint64_t size = about.st_size;
    if (offset < size) {
        uint64_t left = offset + length < size ? length : size - offset;
        char buffer[64 << 10];
        while (left > 0) {
            ssize_t got = real(fd, buffer, left < sizeof buffer ? left : sizeof buffer, offset);
            if (got <= 0) break;
            note(KIND_OVERWRITE, about.st_ino, offset, buffer, got);
            offset += got, left -= got, length -= got;
        }
    }
    if (offset + length > size) note(KIND_GROW, about.st_ino, size, NULL, 0);
}

// ---- files

static int is_inside(const char *path) {
    return control && data_length && strncmp(path, data, data_length) == 0;
}

static void folder_of(const char *path, struct stat *about) {
    char folder[4096];
    strncpy(folder, path, sizeof folder - 1);
    folder[sizeof folder - 1] = 0;
    char *slash = strrchr(folder, '/');
    about->st_ino = 0;
    if (!slash) return;
    *slash = 0;
    if (stat(folder, about) != 0) about->st_ino = 0;
}

// The path of a name that is relative to an open folder.
static const char *resolve(int folder, const char *path, char *buffer, size_t size) {
    if (folder == AT_FDCWD || *path == '/') return path;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, buffer, size - 1);
    if (length < 0 || (size_t)length + strlen(path) + 2 > size) return path;
    buffer[length] = 0;
    if (*path) strcat(strcat(buffer, "/"), path);
    return buffer;
}

static int opened(int fd, const char *path, int is_new) {
    if (fd < 0 || fd >= FD_MAX) return fd;
    watched[fd] = is_inside(path);
    if (watched[fd] && is_new) {
        struct stat about, folder;
        folder_of(path, &folder);
        if (fstat(fd, &about) == 0) {
            pthread_mutex_lock(&lock);
            // What is noted of a removed file that had the same inode.
            settle(about.st_ino, 0, next_number, STATE_DURABLE);
            note(KIND_CREATE, about.st_ino, folder.st_ino, NULL, 0);
            pthread_mutex_unlock(&lock);
        }
    }
    return fd;
}

static int creates(const char *path, int flags) {
    if (!is_inside(path)) return 0;
    if (!(flags & O_CREAT)) return fails(OPEN) ? -1 : 0;
    if (fails(CREATE)) return -1;
    if (access(path, F_OK) == 0) return 0;
    if (control->full) {
        control->full_count++;
        errno = ENOSPC;
        return -1;
    }
    return 1;
}

#define OPEN_BY(name, folder, ...) \
    char buffer[8192]; \
    const char *whole = resolve(folder, path, buffer, sizeof buffer); \
    int is_new = creates(whole, flags); \
    if (is_new < 0) return -1; \
    va_list arguments; \
    va_start(arguments, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
    va_end(arguments); \
    REAL(name); \
    return opened(real(__VA_ARGS__, flags, mode), whole, is_new);

int open64(const char *path, int flags, ...) { OPEN_BY(open64, AT_FDCWD, path) }
int open(const char *path, int flags, ...) { OPEN_BY(open, AT_FDCWD, path) }
int openat64(int folder, const char *path, int flags, ...) { OPEN_BY(openat64, folder, folder, path) }
int openat(int folder, const char *path, int flags, ...) { OPEN_BY(openat, folder, folder, path) }

int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < FD_MAX) watched[fd] = 0;
    return real(fd);
}

static int doubled(int fd, int command, int new_fd) {
    int is_double = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
    if (is_double && new_fd >= 0 && new_fd < FD_MAX) watched[new_fd] = is_watched(fd);
    return new_fd;
}
#define CONTROL(name) \
    REAL(name); \
    va_list arguments; \
    va_start(arguments, command); \
    void *argument = va_arg(arguments, void *); \
    va_end(arguments); \
    return doubled(fd, command, real(fd, command, argument));
int fcntl64(int fd, int command, ...) { CONTROL(fcntl64) }
int fcntl(int fd, int command, ...) { CONTROL(fcntl) }

// ---- names

// Keeps what is at `path` until its removal is durable; empty if nothing is there.
static const char *keep(const char *path, char *buffer, size_t size) {
    static _Atomic uint64_t next_kept;
    struct stat about;
    *buffer = 0;
    if (!*kept || lstat(path, &about) != 0 || !S_ISREG(about.st_mode)) return buffer;
    snprintf(buffer, size, "%s/%d-%lu", kept, getpid(), (unsigned long)next_kept++);
    if (link(path, buffer) != 0) {
        if (head) head->overflowed = 1;
        *buffer = 0;
    }
    return buffer;
}

static void note_names(uint32_t kind, const char *folder_of_path, const char *paths[3]) {
    struct stat about = {0}, folder;
    folder_of(folder_of_path, &folder);
    stat(folder_of_path, &about);
    char names[3 * 4096];
    size_t length = 0;
    for (int i = 0; i < 3; i++) {
        size_t more = strlen(paths[i]) + 1;
        if (length + more > sizeof names) return;
        memcpy(names + length, paths[i], more);
        length += more;
    }
    pthread_mutex_lock(&lock);
    note(kind, about.st_ino, folder.st_ino, names, length);
    pthread_mutex_unlock(&lock);
}

static int renamed(const char *from, const char *to, int (*real)(const char *, const char *)) {
    if (!is_inside(from)) return real(from, to);
    if (fails(RENAME)) return -1;
    char buffer[4200];
    const char *paths[3] = {from, to, keep(to, buffer, sizeof buffer)};
    int result = real(from, to);
    int error = errno;
    if (result == 0) note_names(KIND_RENAME, to, paths);
    else if (*buffer) unlink(buffer);
    errno = error;
    return result;
}
int rename(const char *from, const char *to) {
    REAL(rename);
    return renamed(from, to, real);
}

static int removed(int folder, const char *path, int flags) {
    REAL(unlinkat);
    char whole_buffer[8192], buffer[4200];
    const char *whole = resolve(folder, path, whole_buffer, sizeof whole_buffer);
    if (!is_inside(whole)) return real(folder, path, flags);
    if (fails(REMOVE)) return -1;
    const char *paths[3] = {whole, "", flags & AT_REMOVEDIR ? "" : keep(whole, buffer, sizeof buffer)};
    int result = real(folder, path, flags);
    int error = errno;
    if (result == 0 && *paths[2]) note_names(KIND_REMOVE, whole, paths);
    errno = error;
    return result;
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char *path, int flags) { return removed(folder, path, flags); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (!is_inside(path)) return real(path, mode);
    if (fails(MAKE_FOLDER)) return -1;
    int result = real(path, mode);
    const char *paths[3] = {"", path, ""};
    if (result == 0) note_names(KIND_MAKE_FOLDER, path, paths);
    return result;
}

// ---- looking

int statx(int folder, const char *path, int flags, unsigned int mask, struct statx *about) {
    REAL(statx);
    // Rust asks with none whether the call is there.
    const char *volatile given = path;
    int is_open = given && !*path && flags & AT_EMPTY_PATH;
    int is_meant = is_open ? is_watched(folder) : given && is_inside(path);
    return is_meant && fails(STAT) ? -1 : real(folder, path, flags, mask, about);
}
int fstat64(int fd, struct stat64 *about) {
    REAL(fstat64);
    return is_watched(fd) && fails(STAT) ? -1 : real(fd, about);
}
int stat64(const char *path, struct stat64 *about) {
    REAL(stat64);
    return is_inside(path) && fails(STAT) ? -1 : real(path, about);
}
int lstat64(const char *path, struct stat64 *about) {
    REAL(lstat64);
    return is_inside(path) && fails(STAT) ? -1 : real(path, about);
}

static DIR *listed(DIR *folder, int is_meant) {
    if (folder && is_meant && dirfd(folder) < FD_MAX) watched[dirfd(folder)] = 1;
    return folder;
}
DIR *opendir(const char *path) {
    REAL(opendir);
    if (!is_inside(path)) return real(path);
    return fails(LIST) ? NULL : listed(real(path), 1);
}
struct dirent64 *readdir64(DIR *folder) {
    REAL(readdir64);
    return is_watched(dirfd(folder)) && fails(LIST) ? NULL : real(folder);
}
int closedir(DIR *folder) {
    REAL(closedir);
    int fd = dirfd(folder);
    if (fd >= 0 && fd < FD_MAX) watched[fd] = 0;
    return real(folder);
}

// ---- writing

// 0 if the write may go on, with the lock held; otherwise errno is set.
static int write_begins(int fd, uint64_t offset, uint64_t length) {
    rest(control->write_delay_us);
    if (fails(WRITE)) return -1;
    struct stat about;
    // A full disk takes what overwrites allocated blocks.
    if (control->full && fstat(fd, &about) == 0 && offset + length > (uint64_t)about.st_size) {
        control->full_count++;
        errno = ENOSPC;
        return -1;
    }
    pthread_mutex_lock(&lock);
    note_write(fd, offset, length);
    return 0;
}

static uint64_t total(const struct iovec *parts, int count) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}

#define WRITE(call, fd, offset, length) \
    if (!is_watched(fd)) return call; \
    if (write_begins(fd, offset, length) != 0) return -1; \
    ssize_t result = call; \
    pthread_mutex_unlock(&lock); \
    return result;

static uint64_t position(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && flags & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    REAL(pwrite64);
    WRITE(real(fd, bytes, length, offset), fd, offset, length)
}
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    REAL(pwrite);
    WRITE(real(fd, bytes, length, offset), fd, offset, length)
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    REAL(pwritev64);
    WRITE(real(fd, parts, count, offset), fd, offset, total(parts, count))
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(pwritev);
    WRITE(real(fd, parts, count, offset), fd, offset, total(parts, count))
}
ssize_t write(int fd, const void *bytes, size_t length) {
    REAL(write);
    WRITE(real(fd, bytes, length), fd, position(fd), length)
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    WRITE(real(fd, parts, count), fd, position(fd), total(parts, count))
}
static int grows(int fd, uint64_t offset, uint64_t length) {
    if (fails(ALLOCATE)) return errno;
    if (control->full) {
        control->full_count++;
        return ENOSPC;
    }
    pthread_mutex_lock(&lock);
    struct stat about;
    if (fstat(fd, &about) == 0 && offset + length > (uint64_t)about.st_size)
        note(KIND_GROW, about.st_ino, about.st_size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(posix_fallocate64);
    int refused = is_watched(fd) ? grows(fd, offset, length) : 0;
    return refused ? refused : real(fd, offset, length);
}
int posix_fallocate(int fd, off_t offset, off_t length) {
    REAL(posix_fallocate);
    int refused = is_watched(fd) ? grows(fd, offset, length) : 0;
    return refused ? refused : real(fd, offset, length);
}
int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    struct stat about;
    if (is_watched(fd) && fstat(fd, &about) == 0) {
        pthread_mutex_lock(&lock);
        if (length < about.st_size) note_write(fd, length, about.st_size - length);
        else if (length > about.st_size) note(KIND_GROW, about.st_ino, about.st_size, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return real(fd, length);
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

// ---- syncing

static int synced(int fd, int (*real)(int)) {
    if (!is_watched(fd)) return real(fd);
    rest(control->sync_delay_us);
    struct stat about = {0};
    fstat(fd, &about);
    pthread_mutex_lock(&lock);
    uint64_t number = next_number;
    pthread_mutex_unlock(&lock);
    int failed = fails(SYNC);
    int result = failed ? -1 : real(fd);
    int error = errno;
    pthread_mutex_lock(&lock);
    // As ext4 does: after a failed fsync the pages count as clean, and are never written.
    settle(about.st_ino, S_ISDIR(about.st_mode), number, failed ? STATE_LOST : STATE_DURABLE);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}
// A write-back that fails is reported once: here, and by no fsync after it.
int sync_file_range(int fd, off64_t offset, off64_t length, unsigned int flags) {
    REAL(sync_file_range);
    struct stat about = {0};
    int is_file = is_watched(fd) && fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
    if (!is_file || !fails(WRITE_OUT)) return real(fd, offset, length, flags);
    int error = errno;
    pthread_mutex_lock(&lock);
    settle(about.st_ino, 0, next_number, STATE_LOST);
    pthread_mutex_unlock(&lock);
    errno = error;
    return -1;
}
int fsync(int fd) {
    REAL(fsync);
    return synced(fd, real);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    return synced(fd, real);
}

// ---- reading

static int read_fails(int fd) {
    if (!is_watched(fd)) return 0;
    rest(control->read_delay_us);
    return fails(READ);
}
ssize_t pread64(int fd, void *bytes, size_t length, off64_t offset) {
    REAL(pread64);
    return read_fails(fd) ? -1 : real(fd, bytes, length, offset);
}
ssize_t pread(int fd, void *bytes, size_t length, off_t offset) {
    REAL(pread);
    return read_fails(fd) ? -1 : real(fd, bytes, length, offset);
}
ssize_t read(int fd, void *bytes, size_t length) {
    REAL(read);
    return read_fails(fd) ? -1 : real(fd, bytes, length);
}

// ---- space

int fstatvfs64(int fd, struct statvfs64 *about) {
    REAL(fstatvfs64);
    if (is_watched(fd) && fails(SPACE)) return -1;
    int result = real(fd, about);
    if (result == 0 && is_watched(fd) && control->full) about->f_bavail = 0;
    return result;
}
int fstatvfs(int fd, struct statvfs *about) {
    REAL(fstatvfs);
    if (is_watched(fd) && fails(SPACE)) return -1;
    int result = real(fd, about);
    if (result == 0 && is_watched(fd) && control->full) about->f_bavail = 0;
    return result;
}

// ---- clocks

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(clock_gettime);
    int result = real(clock, time);
    if (result != 0 || !control) return result;
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int is_steady = clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME ||
                    clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW;
    if (!is_wall && !is_steady) return result;
    struct timespec steady;
    if (real(CLOCK_MONOTONIC, &steady) != 0) return result;
    uint32_t version;
    int64_t bend;
    do {
        version = control->clock_version;
        int64_t now = steady.tv_sec * 1000000000ll + steady.tv_nsec;
        int64_t gained = control->rate_per_million
            ? (__int128)(now - control->anchor_ns) * (control->rate_per_million - 1000000) / 1000000
            : 0;
        bend = control->skew_ns + gained + (is_wall ? control->wall_offset_ns : 0);
    } while (version % 2 || version != control->clock_version);
    int64_t bent = time->tv_sec * 1000000000ll + time->tv_nsec + bend;
    if (bent < 0) bent = 0;
    time->tv_sec = bent / 1000000000, time->tv_nsec = bent % 1000000000;
    return 0;
}
