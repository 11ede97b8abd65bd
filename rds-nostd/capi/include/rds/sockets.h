/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The system's socket calls: librds handles sockets of RDS, and the system all other descriptors.
 * With -include rds/sockets.h, a program written for the kernel's AF_RDS needs no change. This
 * header includes the C library's headers before the program's first line, so feature macros belong
 * on the command line: -D_GNU_SOURCE.
 *
 * The check for a socket takes no lock (rds_is_socket), so these calls remain safe in signal
 * handlers on other descriptors. A socket has one number. Duplicates fail with EINVAL. The library
 * owns a second number, a high one: calls on it fail with EBADF, and dup2 to it with EBUSY.
 *
 * A child process made by fork can close its parent's numbers; all other calls on them fail with
 * EBADF. A child made by vfork, _Fork or clone may only close them until it calls an exec function,
 * because the library takes it for its parent. It must exit by _exit.
 *
 * In C the calls' names are macros. In C++, where class members have such names, the system's
 * functions get other symbols. */
#ifndef RDS_SOCKETS_H
#define RDS_SOCKETS_H

#ifdef RDS_SOLARIS
#error "programs for Solaris call the functions of <rds/rds.h>: their structures are not those of this system"
#endif

#ifdef __cplusplus
/* Its inline read and recv would bypass the symbols. */
#undef _FORTIFY_SOURCE
#endif

#include <rds/rds.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Begins a wrapper. RDS_SYSTEM(name) is the system's call. */
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

/* A wrapper for a call of the library with the same arguments. */
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

/* A child process closes its parent's sockets by the system's call. */
RDS_CALL(int, close, (int fd), )
{
    int whose = rds_is_socket(fd);

    return whose == 0 || whose == 2 ? RDS_SYSTEM(close)(fd) : rds_close(fd);
}

/* A read into 0 bytes returns 0 and loses no message. */
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

/* Returns the bytes of all parts, as readv and writev count them, or -1 with errno for invalid
 * parts. */
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

/* Returns a message of these parts only. */
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
    /* Requests on the descriptor itself. */
    if (request == FIOCLEX || request == FIONCLEX || !rds_is_socket(fd))
        return RDS_SYSTEM(ioctl)(fd, request, argument);
    return rds_ioctl(fd, request, argument);
}

/* In C++ with large files the system's function may have another symbol. */
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

/* Returns true if dup2 may be called: neither end may be a socket to duplicate or an own descriptor
 * of the library. */
static inline int rds_may_duplicate(int from, int whose_to)
{
    errno = whose_to == 3 ? EBUSY : EINVAL;
    return whose_to != 3 && !rds_is_socket(from);
}

/* Closes a socket whose number dup2 has given to another file. dup2 cannot report that the HCA
 * still uses memory of the socket, so a program that lends or offers memory calls rds_close first.
 */
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
