/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The system's socket calls, by librds where the socket is one of RDS, and by the system otherwise. Given to the compiler as it is
 * (-include rds/sockets.h), a program written for the kernel's AF_RDS needs no change. What the C library declares is chosen before the
 * program's first line then: one that defines _GNU_SOURCE there wants -D_GNU_SOURCE.
 *
 * Whether a number is a socket is asked without a lock (rds_is_socket): on other descriptors these calls are the system's, in handlers of
 * signals, too. A socket has one number; there are no duplicates of it (EINVAL). The library has another one, high up, on
 * which calls are EBADF, and dup2 to it EBUSY.
 *
 * A child process made by fork has its parent's numbers and can close them; all else is EBADF there. One made by vfork, _Fork or clone may
 * close them and nothing else, until it calls one of exec: the library takes it for its parent, and _exit is the only end that it may have.
 *
 * In C the calls' names are macros. In C++, where members of classes have such names, the system's functions get other symbols. */
#ifndef RDS_SOCKETS_H
#define RDS_SOCKETS_H

#ifdef RDS_SOLARIS
#error "programs for Solaris call the functions of <rds/rds.h>: their structures are not those of this system"
#endif

#ifdef __cplusplus
/* Its read and recv would pass the symbols by. */
#undef _FORTIFY_SOURCE
#endif

#include <rds/rds.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Begins a call: RDS_SYSTEM(name) is the system's. */
#ifdef __cplusplus
#if defined __USE_FORTIFY_LEVEL && __USE_FORTIFY_LEVEL > 0
#error "include this before the system's headers, or without _FORTIFY_SOURCE"
#endif
#ifdef __THROW
#define RDS_THROW __THROW
#else
#define RDS_THROW
#endif
#define RDS_SYSTEM(name) rds_system_##name
#define RDS_CALL(type, name, declared, thrown) \
    type rds_system_##name declared thrown __asm__(#name); \
    type name declared thrown __asm__("rds_or_" #name); \
    __attribute__((used)) inline type rds_or_##name declared
extern "C" {
#else
#define RDS_SYSTEM(name) name
#define RDS_CALL(type, name, declared, thrown) static inline type rds_or_##name declared
#endif

RDS_CALL(int, socket, (int domain, int type, int protocol), RDS_THROW)
{
    return domain == AF_RDS ? rds_socket(domain, type, protocol) : RDS_SYSTEM(socket)(domain, type, protocol);
}

/* A call that is the library's under a name of the same arguments. */
#define RDS_OR(type, name, declared, thrown, given) \
    RDS_CALL(type, name, declared, thrown) \
    { \
        return rds_is_socket(fd) ? rds_##name given : RDS_SYSTEM(name) given; \
    }

RDS_OR(int, bind, (int fd, const struct sockaddr *address, socklen_t length), RDS_THROW, (fd, address, length))
RDS_OR(int, connect, (int fd, const struct sockaddr *address, socklen_t length), , (fd, address, length))
RDS_OR(int, getsockname, (int fd, struct sockaddr *address, socklen_t *length), RDS_THROW, (fd, address, length))
RDS_OR(int, getpeername, (int fd, struct sockaddr *address, socklen_t *length), RDS_THROW, (fd, address, length))
RDS_OR(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), , (fd, message, flags))
RDS_OR(ssize_t, sendto,
       (int fd, const void *buffer, size_t length, int flags, const struct sockaddr *to, socklen_t to_length), ,
       (fd, buffer, length, flags, to, to_length))
RDS_OR(ssize_t, send, (int fd, const void *buffer, size_t length, int flags), , (fd, buffer, length, flags))
RDS_OR(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), , (fd, message, flags))
RDS_OR(ssize_t, recvfrom,
       (int fd, void *buffer, size_t length, int flags, struct sockaddr *from, socklen_t *from_length), ,
       (fd, buffer, length, flags, from, from_length))
RDS_OR(ssize_t, recv, (int fd, void *buffer, size_t length, int flags), , (fd, buffer, length, flags))
RDS_OR(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t length), RDS_THROW,
       (fd, level, name, value, length))
RDS_OR(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *length), RDS_THROW,
       (fd, level, name, value, length))

#undef RDS_OR

/* A child process closes its parent's as the system does. */
RDS_CALL(int, close, (int fd), )
{
    int whose = rds_is_socket(fd);

    return whose == 0 || whose == 2 ? RDS_SYSTEM(close)(fd) : rds_close(fd);
}

/* Without room there is nothing to read, and no message is lost. */
RDS_CALL(ssize_t, read, (int fd, void *buffer, size_t length), )
{
    int whose = rds_is_socket(fd);

    if (!whose)
        return RDS_SYSTEM(read)(fd, buffer, length);
    return whose == 1 && length == 0 ? 0 : rds_recv(fd, buffer, length, 0);
}

RDS_CALL(ssize_t, write, (int fd, const void *buffer, size_t length), )
{
    return rds_is_socket(fd) ? rds_send(fd, buffer, length, 0) : RDS_SYSTEM(write)(fd, buffer, length);
}

/* Bytes of all parts, as readv and writev count them: of none they move nothing. -1 and errno for parts that they refuse. */
static inline ssize_t rds_length(const struct iovec *parts, int count)
{
    size_t length = 0;
    int i;

    if (count > 0 && count <= 1024 && !parts) {
        errno = EFAULT;
        return -1;
    }
    for (i = 0; i < count && count <= 1024 && parts[i].iov_len <= SIZE_MAX / 2 - length; i++)
        length += parts[i].iov_len;
    if (i == count)
        return (ssize_t)length;
    errno = EINVAL;
    return -1;
}

/* A message of these parts and nothing else. */
static inline struct msghdr rds_of_parts(const struct iovec *parts, int count)
{
    struct msghdr message;

    memset(&message, 0, sizeof message);
    message.msg_iov = (struct iovec *)parts;
    message.msg_iovlen = (size_t)count;
    return message;
}

RDS_CALL(ssize_t, readv, (int fd, const struct iovec *parts, int count), )
{
    int whose = rds_is_socket(fd);
    struct msghdr message;
    ssize_t length;

    if (!whose)
        return RDS_SYSTEM(readv)(fd, parts, count);
    length = rds_length(parts, count);
    if (whose == 1 && length <= 0)
        return length;
    message = rds_of_parts(parts, count);
    return rds_recvmsg(fd, &message, 0);
}

RDS_CALL(ssize_t, writev, (int fd, const struct iovec *parts, int count), )
{
    int whose = rds_is_socket(fd);
    struct msghdr message;
    ssize_t length;

    if (!whose)
        return RDS_SYSTEM(writev)(fd, parts, count);
    length = rds_length(parts, count);
    if (whose == 1 && length <= 0)
        return length;
    message = rds_of_parts(parts, count);
    return rds_sendmsg(fd, &message, 0);
}

RDS_CALL(int, poll, (struct pollfd *fds, nfds_t count, int timeout), )
{
    nfds_t i;

    for (i = 0; fds && i < count; i++)
        if (rds_is_socket(fds[i].fd))
            return rds_poll(fds, count, timeout);
    return RDS_SYSTEM(poll)(fds, count, timeout);
}

RDS_CALL(int, ioctl, (int fd, unsigned long request, ...), RDS_THROW)
{
    void *argument;
    va_list rest;

    va_start(rest, request);
    argument = va_arg(rest, void *);
    va_end(rest);
    /* These are the descriptor's. */
    if (request == FIOCLEX || request == FIONCLEX || !rds_is_socket(fd))
        return RDS_SYSTEM(ioctl)(fd, request, argument);
    return rds_ioctl(fd, request, argument);
}

/* In C++ it may have another symbol already. */
#if !defined __cplusplus || !defined __USE_FILE_OFFSET64
RDS_CALL(int, fcntl, (int fd, int command, ...), )
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
    return RDS_SYSTEM(fcntl)(fd, command, argument);
}
#endif

RDS_CALL(int, dup, (int fd), RDS_THROW)
{
    if (rds_is_socket(fd)) {
        errno = EINVAL;
        return -1;
    }
    return RDS_SYSTEM(dup)(fd);
}

/* Whether the number of one file may go to another: none of the library's own does. */
static inline int rds_may_duplicate(int from, int whose_to)
{
    errno = whose_to == 3 ? EBUSY : EINVAL;
    return whose_to != 3 && !rds_is_socket(from);
}

/* The number of a socket goes to another file, and the socket is closed. Memory that its HCA still uses nobody can be told of here: who lends or
 * offers any calls rds_close before. */
static inline int rds_robbed(int to, int whose, int before)
{
    if (to >= 0) {
        if (whose == 1)
            rds_close(to);
        errno = before;
    }
    return to;
}

RDS_CALL(int, dup2, (int from, int to), RDS_THROW)
{
    int before = errno, whose = from != to ? rds_is_socket(to) : 0;

    if (from != to && !rds_may_duplicate(from, whose))
        return -1;
    return rds_robbed(RDS_SYSTEM(dup2)(from, to), whose, before);
}

#ifdef _GNU_SOURCE
RDS_CALL(int, dup3, (int from, int to, int flags), RDS_THROW)
{
    int before = errno, whose = from != to ? rds_is_socket(to) : 0;

    if (!rds_may_duplicate(from, whose))
        return -1;
    return rds_robbed(RDS_SYSTEM(dup3)(from, to, flags), whose, before);
}
#endif

#ifdef CLOSE_RANGE_CLOEXEC
RDS_CALL(int, close_range, (unsigned first, unsigned last, int flags), RDS_THROW)
{
    return rds_close_range(first, last, flags);
}
#endif

#undef RDS_CALL
#undef RDS_SYSTEM

#ifdef __cplusplus
}
#undef RDS_THROW
#else
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
#define read rds_or_read
#define write rds_or_write
#define readv rds_or_readv
#define writev rds_or_writev
#define poll rds_or_poll
#define ioctl rds_or_ioctl
#define fcntl rds_or_fcntl
#define dup rds_or_dup
#define dup2 rds_or_dup2
#ifdef _GNU_SOURCE
#define dup3 rds_or_dup3
#endif
#ifdef CLOSE_RANGE_CLOEXEC
#define close_range rds_or_close_range
#endif
#endif

#endif /* RDS_SOCKETS_H */
