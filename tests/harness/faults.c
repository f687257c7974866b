/*
 * LD_PRELOAD library of `make chaos`, compiled by `cc`.
 *
 * CHAOS_CLOCK names a file of one `long`: the seconds by which the wall clock of a process is ahead; time that passes
 * and time that is waited are not touched. While the file that CHAOS_LINKS names exists, no hard link is made.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long none;
static const volatile long *ahead;

static long wrong(void) {
    if (!ahead) {
        const char *name = getenv("CHAOS_CLOCK");
        int file = name && *name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0)
            close(file);
        ahead = found == MAP_FAILED ? &none : found;
    }
    return *ahead;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += wrong();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}

static int refused(void) {
    const char *name = getenv("CHAOS_LINKS");
    int found = name && !access(name, F_OK);
    errno = found ? EPERM : errno;
    return found;
}

int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int old, const char *from, int directory, const char *to, int flags) {
    static int (*real)(int, const char *, int, const char *, int);
    if (!real)
        real = dlsym(RTLD_NEXT, "linkat");
    return refused() ? -1 : real(old, from, directory, to, flags);
}
