/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* RDS on 64-bit Solaris, as rds(3SOCKET) describes it. Include <rds/rds.h> with RDS_SOLARIS. */
#ifndef RDS_SOLARIS_H
#define RDS_SOLARIS_H

typedef uint32_t rds_user_token_t;

#define AF_INET_OFFLOAD 30
#define PF_INET_OFFLOAD AF_INET_OFFLOAD
#undef AF_RDS
#undef PF_RDS
#undef SOL_RDS
#define AF_RDS AF_INET_OFFLOAD
#define PF_RDS AF_RDS
#define SOL_RDS 272

/* Numbers of Solaris that this system's headers define differently. */
#define RDS_SOCK_SEQPACKET 6
#define RDS_SOL_SOCKET 0xffff
#define RDS_SO_SNDBUF 0x1001
#define RDS_SO_RCVBUF 0x1002
#define RDS_MSG_OOB 0x1
#define RDS_MSG_PEEK 0x2
#define RDS_MSG_CTRUNC 0x10
#define RDS_MSG_TRUNC 0x20
#define RDS_MSG_DONTWAIT 0x80

/* Requests, and the structures that they fill. */
#define RDS_FIONREAD 0x4004667f
#define RDS_FIONBIO 0x8004667e
#define RDS_TIOCOUTQ 0x7473
#define RDS_SIOCGIFADDR 0xc020690d
#define RDS_SIOCGIFFLAGS 0xc0206911
#define RDS_SIOCGIFMTU 0xc0206916
#define RDS_SIOCGIFNUM 0x40046957
#define RDS_SIOCGIFCONF 0xc008695c
#define RDS_O_SIOCGIFCONF 0xc0086914

/* The prefix avoids this system's macros of the same names. */
struct rds_ifreq {
    char rds_ifr_name[16];
    union {
        struct sockaddr rds_ifru_addr;
        short rds_ifru_flags;
        uint32_t rds_ifru_mtu;
    } rds_ifr_ifru;
};

struct rds_ifconf {
    int rds_ifc_len;
    void *rds_ifc_buf;
};

/* Error numbers that differ from Linux. */
#define RDS_EDESTADDRREQ 96
#define RDS_EMSGSIZE 97
#define RDS_ENOPROTOOPT 99
#define RDS_EOPNOTSUPP 122
#define RDS_EAFNOSUPPORT 124
#define RDS_EADDRINUSE 125
#define RDS_EADDRNOTAVAIL 126
#define RDS_ENOTCONN 134

struct rds_msghdr {
    void *msg_name;
    uint32_t msg_namelen;
    struct iovec *msg_iov;
    int msg_iovlen;
    void *msg_control;
    uint32_t msg_controllen;
    int msg_flags;
};

struct rds_cmsghdr {
    uint32_t cmsg_len;
    int cmsg_level;
    int cmsg_type;
};

/* Headers and data are aligned to 4 bytes. */
#define RDS_CMSG_ALIGN(length) (((length) + 3) & ~(size_t)3)

#include <rds/common.h>

#endif /* RDS_SOLARIS_H */
