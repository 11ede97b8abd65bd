/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What RDS has on Solaris with 64 bits, as rds(3SOCKET) describes it. Include <rds/rds.h> with RDS_SOLARIS. */
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

/* Of the system's headers, which are another's. */
#define RDS_SOCK_SEQPACKET 6
#define RDS_SOL_SOCKET 0xffff
#define RDS_SO_SNDBUF 0x1001
#define RDS_SO_RCVBUF 0x1002
#define RDS_MSG_OOB 0x1
#define RDS_MSG_PEEK 0x2
#define RDS_MSG_CTRUNC 0x10
#define RDS_MSG_TRUNC 0x20
#define RDS_MSG_DONTWAIT 0x80

/* Numbers of errors that Linux numbers differently. */
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

/* Headers and what follows them are aligned to 4. */
#define RDS_CMSG_ALIGN(length) (((length) + 3) & ~(size_t)3)
#define RDS_CMSG_DATA(cmsg) ((unsigned char *)((cmsg) + 1))
#define RDS_CMSG_LEN(length) (sizeof(struct rds_cmsghdr) + (length))
#define RDS_CMSG_SPACE(length) RDS_CMSG_ALIGN(RDS_CMSG_LEN(length))
#define RDS_CMSG_FIRSTHDR(message) \
    ((message)->msg_controllen >= sizeof(struct rds_cmsghdr) ? (struct rds_cmsghdr *)(message)->msg_control \
                                                             : (struct rds_cmsghdr *)0)
#define RDS_CMSG_NXTHDR(message, cmsg) \
    ((unsigned char *)(cmsg) + RDS_CMSG_ALIGN((cmsg)->cmsg_len) + sizeof(struct rds_cmsghdr) \
             > (unsigned char *)(message)->msg_control + (message)->msg_controllen \
         ? (struct rds_cmsghdr *)0 \
         : (struct rds_cmsghdr *)((unsigned char *)(cmsg) + RDS_CMSG_ALIGN((cmsg)->cmsg_len)))

/* Control messages and options. */

typedef uint64_t rds_rdma_cookie_t;

struct rds_iovec {
    uint64_t addr;
    uint64_t bytes;
};

struct rds_get_mr_args {
    struct rds_iovec vec;
    uint64_t cookie_addr;
    uint64_t flags;
};

struct rds_get_mr_for_dest_args {
    struct sockaddr_storage dest_addr;
    struct rds_iovec vec;
    uint64_t cookie_addr;
    uint64_t flags;
};

struct rds_free_mr_args {
    rds_rdma_cookie_t cookie;
    uint64_t flags;
};

struct rds_rdma_args {
    rds_rdma_cookie_t cookie;
    struct rds_iovec remote_vec;
    uint64_t local_vec_addr;
    uint64_t nr_local;
    uint64_t flags;
    rds_user_token_t user_token;
};

struct rds_rdma_notify {
    rds_user_token_t user_token;
    int32_t status;
};

/* Flags of regions and of operations. */
#define RDS_RDMA_READWRITE 0x0001
#define RDS_RDMA_FENCE 0x0002
#define RDS_RDMA_INVALIDATE 0x0004
#define RDS_RDMA_USE_ONCE 0x0008
#define RDS_RDMA_DONTWAIT 0x0010
#define RDS_RDMA_NOTIFY_ME 0x0020
#define RDS_RDMA_SILENT 0x0040

/* How operations end. */
#define RDS_RDMA_SUCCESS 0
#define RDS_RDMA_REMOTE_ERROR 1
#define RDS_RDMA_CANCELED 2
#define RDS_RDMA_DROPPED 3
#define RDS_RDMA_OTHER_ERROR 4

/* Options, and types of control messages. */
#define RDS_CANCEL_SENT_TO 1
#define RDS_GET_MR 2
#define RDS_FREE_MR 3
#define RDS_RECVERR 5
#define RDS_CONG_MONITOR 6
#define RDS_GET_MR_FOR_DEST 7
#define RDS_CMSG_RDMA_ARGS 1
#define RDS_CMSG_RDMA_DEST 2
#define RDS_CMSG_RDMA_MAP 3
#define RDS_CMSG_RDMA_STATUS 4
#define RDS_CMSG_CONG_UPDATE 5

#endif /* RDS_SOLARIS_H */
