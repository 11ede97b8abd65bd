/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The system's socket calls, by librds where the socket is one of RDS, and by the system otherwise. Given to the compiler as it is
 * (-include rds/sockets.h), a program written for the kernel's AF_RDS needs no change. What the C library declares is chosen before the
 * program's first line then: one that defines _GNU_SOURCE there wants -D_GNU_SOURCE.
 *
 * Whether a number is a socket is asked without a lock (rds_is_socket): on other descriptors these calls are the system's, in handlers of
 * signals, too. A socket has one number; there are no duplicates of it (EINVAL). A child process has its parent's numbers and can close them; all
 * else is EBADF there. */
#ifndef RDS_SOCKETS_H
#define RDS_SOCKETS_H

#ifdef RDS_SOLARIS
#error "programs for Solaris call the functions of <rds/rds.h>: their structures are not those of this system"
#endif

#include <rds/rds.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline int rds_or_socket(int domain, int type, int protocol)
{
    return domain == AF_RDS ? rds_socket(domain, type, protocol) : socket(domain, type, protocol);
}

/* A call whose first argument is a descriptor. */
#define RDS_OR(type, name, declared, given) \
    static inline type rds_or_##name declared \
    { \
        return rds_is_socket(fd) ? rds_##name given : name given; \
    }

RDS_OR(int, bind, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
RDS_OR(int, connect, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
RDS_OR(int, getsockname, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
RDS_OR(int, getpeername, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
RDS_OR(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
RDS_OR(ssize_t, sendto,
       (int fd, const void *buffer, size_t length, int flags, const struct sockaddr *to, socklen_t to_length),
       (fd, buffer, length, flags, to, to_length))
RDS_OR(ssize_t, send, (int fd, const void *buffer, size_t length, int flags), (fd, buffer, length, flags))
RDS_OR(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
RDS_OR(ssize_t, recvfrom,
       (int fd, void *buffer, size_t length, int flags, struct sockaddr *from, socklen_t *from_length),
       (fd, buffer, length, flags, from, from_length))
RDS_OR(ssize_t, recv, (int fd, void *buffer, size_t length, int flags), (fd, buffer, length, flags))
RDS_OR(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t length),
       (fd, level, name, value, length))
RDS_OR(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *length),
       (fd, level, name, value, length))

#undef RDS_OR

/* A child process closes its parent's as the system does. */
static inline int rds_or_close(int fd)
{
    return rds_is_socket(fd) == 1 ? rds_close(fd) : close(fd);
}

static inline ssize_t rds_or_read(int fd, void *buffer, size_t length)
{
    return rds_is_socket(fd) ? rds_recv(fd, buffer, length, 0) : read(fd, buffer, length);
}

static inline ssize_t rds_or_write(int fd, const void *buffer, size_t length)
{
    return rds_is_socket(fd) ? rds_send(fd, buffer, length, 0) : write(fd, buffer, length);
}

static inline int rds_or_ioctl(int fd, unsigned long request, ...)
{
    void *argument;
    va_list rest;

    va_start(rest, request);
    argument = va_arg(rest, void *);
    va_end(rest);
    /* These are the descriptor's. */
    if (request == FIOCLEX || request == FIONCLEX || !rds_is_socket(fd))
        return ioctl(fd, request, argument);
    return rds_ioctl(fd, request, argument);
}

static inline int rds_or_fcntl(int fd, int command, ...)
{
    void *argument;
    va_list rest;

    va_start(rest, command);
    argument = va_arg(rest, void *);
    va_end(rest);
    if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && rds_is_socket(fd)) {
        errno = EINVAL;
        return -1;
    }
    return fcntl(fd, command, argument);
}

static inline int rds_or_dup(int fd)
{
    if (rds_is_socket(fd)) {
        errno = EINVAL;
        return -1;
    }
    return dup(fd);
}

/* The number of a socket goes to another file, and the socket is closed. */
static inline int rds_robbed(int to, int was_socket)
{
    if (to >= 0 && was_socket)
        rds_close(to);
    return to;
}

static inline int rds_or_dup2(int from, int to)
{
    int was_socket = from != to && rds_is_socket(to) == 1;

    if (from != to && rds_is_socket(from)) {
        errno = EINVAL;
        return -1;
    }
    return rds_robbed(dup2(from, to), was_socket);
}

#ifdef _GNU_SOURCE
static inline int rds_or_dup3(int from, int to, int flags)
{
    int was_socket = from != to && rds_is_socket(to) == 1;

    if (rds_is_socket(from)) {
        errno = EINVAL;
        return -1;
    }
    return rds_robbed(dup3(from, to, flags), was_socket);
}
#endif

#ifdef __cplusplus
}
#endif

#define socket rds_or_socket
#define bind rds_or_bind
#define connect rds_or_connect
#define getsockname rds_or_getsockname
#define getpeername rds_or_getpeername
#define sendmsg rds_or_sendmsg
#define sendto rds_or_sendto
#define send rds_or_send
#define recvmsg rds_or_recvmsg
#define recvfrom rds_or_recvfrom
#define recv rds_or_recv
#define setsockopt rds_or_setsockopt
#define getsockopt rds_or_getsockopt
#define close rds_or_close
#define dup rds_or_dup
#define dup2 rds_or_dup2
#ifdef _GNU_SOURCE
#define dup3 rds_or_dup3
#endif
#ifdef CLOSE_RANGE_CLOEXEC
#define close_range rds_close_range
#endif
#define fcntl rds_or_fcntl
#define read rds_or_read
#define write rds_or_write
#define poll(fds, count, timeout) rds_poll((fds), (count), (timeout))
#define ioctl rds_or_ioctl

#endif /* RDS_SOCKETS_H */
