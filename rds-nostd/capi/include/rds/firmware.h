/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* RDS for freestanding programs: numbers and structures of 64-bit Linux. Include <rds/rds.h>. */
#ifndef RDS_FIRMWARE_H
#define RDS_FIRMWARE_H

#define AF_RDS 21
#define PF_RDS AF_RDS
#define SOL_RDS 276

struct rds_msghdr {
    void *msg_name;
    socklen_t msg_namelen;
    struct iovec *msg_iov;
    size_t msg_iovlen;
    void *msg_control;
    size_t msg_controllen;
    int msg_flags;
};

struct rds_cmsghdr {
    size_t cmsg_len;
    int cmsg_level;
    int cmsg_type;
};

#define RDS_CMSG_ALIGN(length) (((length) + sizeof(size_t) - 1) & ~(sizeof(size_t) - 1))

typedef uint64_t rds_user_token_t;

#include <rds/common.h>

/* Words: compare, swap; or add; or compare, swap, compare mask, swap mask; or add, no-carry mask. */
struct rds_atomic_args {
    rds_rdma_cookie_t cookie;
    uint64_t local_addr;
    uint64_t remote_addr;
    uint64_t words[4];
    uint64_t flags;
    uint64_t user_token;
};

#define SO_RDS_TRANSPORT 8
#define RDS_CMSG_ATOMIC_FADD 6
#define RDS_CMSG_ATOMIC_CSWP 7
#define RDS_CMSG_MASKED_ATOMIC_FADD 8
#define RDS_CMSG_MASKED_ATOMIC_CSWP 9
#define SIOCRDSSETTOS 0x89e0
#define SIOCRDSGETTOS 0x89e1

#endif /* RDS_FIRMWARE_H */
