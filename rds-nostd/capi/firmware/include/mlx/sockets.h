/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Addresses and other socket declarations of DAT and RDS for freestanding programs: layouts and
 * numbers of 64-bit Linux. */
#ifndef MLX_SOCKETS_H
#define MLX_SOCKETS_H

#include <stddef.h>
#include <stdint.h>

#define AF_INET 2
#define AF_INET6 10
#define SOCK_SEQPACKET 5
#define SOCK_NONBLOCK 04000
#define SOL_SOCKET 1
#define SO_SNDBUF 7
#define SO_RCVBUF 8
#define FIONBIO 0x5421

#define MSG_PEEK 0x2
#define MSG_CTRUNC 0x8
#define MSG_TRUNC 0x20
#define MSG_DONTWAIT 0x40

#define POLLIN 0x1
#define POLLPRI 0x2
#define POLLOUT 0x4
#define POLLERR 0x8
#define POLLHUP 0x10
#define POLLNVAL 0x20

typedef uint32_t socklen_t;
typedef long ssize_t;
typedef uint16_t sa_family_t;
typedef unsigned long nfds_t;

struct sockaddr {
    sa_family_t sa_family;
    char sa_data[14];
};

struct in_addr {
    uint32_t s_addr;
};

/* Port and address are in network byte order. */
struct sockaddr_in {
    sa_family_t sin_family;
    uint16_t sin_port;
    struct in_addr sin_addr;
    unsigned char sin_zero[8];
};

struct in6_addr {
    uint8_t s6_addr[16];
};

struct sockaddr_in6 {
    sa_family_t sin6_family;
    uint16_t sin6_port;
    uint32_t sin6_flowinfo;
    struct in6_addr sin6_addr;
    uint32_t sin6_scope_id;
};

struct sockaddr_storage {
    sa_family_t ss_family;
    char ss_padding[118];
    unsigned long ss_align;
};

struct iovec {
    void *iov_base;
    size_t iov_len;
};

struct pollfd {
    int fd;
    short events;
    short revents;
};

#endif /* MLX_SOCKETS_H */
