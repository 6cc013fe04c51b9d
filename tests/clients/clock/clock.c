/* A clock that is a minute ahead while the file CLOCK_IS_WRONG exists. Programs load it before their C library. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    long failed = syscall(SYS_clock_gettime, clock, time);
    const char *file = getenv("CLOCK_IS_WRONG");
    if (!failed && clock == CLOCK_REALTIME && file && !access(file, F_OK)) {
        time->tv_sec += 60;
    }
    return (int)failed;
}
