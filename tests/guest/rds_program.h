// What rds.c and rds_load.c have in common: an error that ends the program, and the time.

#ifndef RDS_PROGRAM_H
#define RDS_PROGRAM_H

#include "rds_linux.h"
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NS_PER_S = 1000000000 };

// Ends the program with a text, and what errno was if it was anything.
static inline void fail(const char *format, ...) {
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(error ? ": %s\n" : "\n", strerror(error));
    exit(1);
}

static inline uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

#endif
