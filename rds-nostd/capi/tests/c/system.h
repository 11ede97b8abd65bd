/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Common names for both systems, and the assertions of all programs. */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <rds/rds.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef RDS_SOLARIS
#define FAMILY AF_INET_OFFLOAD
#define SEQPACKET RDS_SOCK_SEQPACKET
#define LEVEL_SOCKET RDS_SOL_SOCKET
#define SEND_BUFFER RDS_SO_SNDBUF
#define NO_WAIT RDS_MSG_DONTWAIT
#define CUT RDS_MSG_TRUNC
#define NOT_CONNECTED RDS_ENOTCONN
#define NO_OPTION RDS_ENOPROTOOPT
#define NOT_SUPPORTED RDS_EOPNOTSUPP
#define NOT_OURS RDS_EADDRNOTAVAIL
#define IN_USE RDS_EADDRINUSE
#define FIRST RDS_CMSG_FIRSTHDR
#define NEXT RDS_CMSG_NXTHDR
#define DATA RDS_CMSG_DATA
#define LEN RDS_CMSG_LEN
#define SPACE RDS_CMSG_SPACE
#define BUFFER_IS(asked) (asked)
typedef uint32_t header_length;
#else
#define FAMILY AF_RDS
#define SEQPACKET SOCK_SEQPACKET
#define LEVEL_SOCKET SOL_SOCKET
#define SEND_BUFFER SO_SNDBUF
#define NO_WAIT MSG_DONTWAIT
#define CUT MSG_TRUNC
#define NOT_CONNECTED ENOTCONN
#define NO_OPTION ENOPROTOOPT
#define NOT_SUPPORTED EOPNOTSUPP
#define NOT_OURS EADDRNOTAVAIL
#define IN_USE EADDRINUSE
#define FIRST CMSG_FIRSTHDR
#define NEXT CMSG_NXTHDR
#define DATA CMSG_DATA
#define LEN CMSG_LEN
#define SPACE CMSG_SPACE
#define BUFFER_IS(asked) (2 * (asked))
typedef uint64_t rds_user_token_t;
typedef size_t header_length;
#endif

/* The family of addresses. */
#ifdef RDS_SOLARIS
#define ADDRESS_FAMILY AF_INET_OFFLOAD
#else
#define ADDRESS_FAMILY AF_INET
#endif

#define HOLDS(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(EXIT_FAILURE); \
        } \
    } while (0)
#define FAILS(number, call) HOLDS((call) == -1 && errno == (number))

static inline struct sockaddr_in at(const char *text, int port)
{
    struct sockaddr_in address;

    memset(&address, 0, sizeof address);
    address.sin_family = ADDRESS_FAMILY;
    address.sin_port = htons((uint16_t)port);
    HOLDS(inet_pton(AF_INET, text, &address.sin_addr) == 1);
    return address;
}

/* A socket with an address. */
static inline int bound(const char *text, int port)
{
    struct sockaddr_in address = at(text, port);
    int fd = rds_socket(FAMILY, SEQPACKET, 0);

    HOLDS(fd >= 0 && rds_bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* Offers memory to the node of an address. */
static inline rds_rdma_cookie_t offered_to(int fd, const struct sockaddr_in *to, void *start, size_t length)
{
    struct rds_get_mr_for_dest_args offer;
    rds_rdma_cookie_t cookie = 0;

    memset(&offer, 0, sizeof offer);
    memcpy(&offer.dest_addr, to, sizeof *to);
    offer.vec.addr = (uint64_t)(uintptr_t)start;
    offer.vec.bytes = length;
    offer.cookie_addr = (uint64_t)(uintptr_t)&cookie;
    return rds_setsockopt(fd, SOL_RDS, RDS_GET_MR_FOR_DEST, &offer, sizeof offer) == 0 ? cookie : 0;
}

#endif /* SYSTEM_H */
