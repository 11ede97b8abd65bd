/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reliable Datagram Sockets: the calls of librds, with their numbers and structures.
 *
 * Each call has the arguments of the system call with the same name, and works on descriptors of
 * rds_socket. A failed call returns -1 and sets errno. The system's poll reports whether such a
 * descriptor can be received from; rds_poll also reports whether it can be sent to.
 *
 * A program for Solaris defines RDS_SOLARIS before this include. Then structures and numbers are
 * those of rds(3SOCKET), with names that begin with rds_ and RDS_. The family given to rds_socket
 * selects the system of a socket.
 *
 * In firmware, which is compiled as freestanding, a failed call returns the negative error number
 * of Linux instead. */
#ifndef RDS_RDS_H
#define RDS_RDS_H

#if __STDC_HOSTED__
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#else
#include <mlx/sockets.h>
#endif

#if !__STDC_HOSTED__
#include <rds/firmware.h>
#elif defined RDS_SOLARIS
#include <rds/solaris.h>
#else
#include <rds/linux.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

int rds_socket(int domain, int type, int protocol);
int rds_close(int fd);
int rds_bind(int fd, const struct sockaddr *address, socklen_t length);
int rds_connect(int fd, const struct sockaddr *address, socklen_t length);
int rds_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int rds_getpeername(int fd, struct sockaddr *address, socklen_t *length);
ssize_t rds_sendmsg(int fd, const struct rds_msghdr *message, int flags);
ssize_t rds_sendto(int fd, const void *buffer, size_t length, int flags, const struct sockaddr *to, socklen_t to_length);
ssize_t rds_send(int fd, const void *buffer, size_t length, int flags);
ssize_t rds_lend(int fd, const void *buffer, size_t length, int flags, const struct sockaddr *to, socklen_t to_length,
                 uint64_t token);
ssize_t rds_recvmsg(int fd, struct rds_msghdr *message, int flags);
ssize_t rds_recvfrom(int fd, void *buffer, size_t length, int flags, struct sockaddr *from, socklen_t *from_length);
ssize_t rds_recv(int fd, void *buffer, size_t length, int flags);
int rds_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int rds_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int rds_ioctl(int fd, unsigned long request, void *argument);
int rds_poll(struct pollfd *fds, nfds_t count, int timeout);
#if __STDC_HOSTED__
int rds_is_socket(int fd);
int rds_close_range(unsigned first, unsigned last, int flags);
#endif

#ifdef __cplusplus
}
#endif

#endif /* RDS_RDS_H */
