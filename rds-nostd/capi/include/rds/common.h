/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Declarations for both systems: control messages, memory offered to peers, operations, options.
 * The including header defines RDS_CMSG_ALIGN, struct rds_cmsghdr and rds_user_token_t. Include
 * <rds/rds.h>. */
#ifndef RDS_COMMON_H
#define RDS_COMMON_H

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

/* Flags of regions and operations. */
#define RDS_RDMA_READWRITE 0x0001
#define RDS_RDMA_FENCE 0x0002
#define RDS_RDMA_INVALIDATE 0x0004
#define RDS_RDMA_USE_ONCE 0x0008
#define RDS_RDMA_DONTWAIT 0x0010
#define RDS_RDMA_NOTIFY_ME 0x0020
#define RDS_RDMA_SILENT 0x0040

/* Status of completed operations. */
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

#endif /* RDS_COMMON_H */
