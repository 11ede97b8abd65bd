/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sizes and offsets of each system's structures. */
#include "system.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("not so: %s\n", #condition); \
            return EXIT_FAILURE; \
        } \
    } while (0)
#define AT(type, member, offset) CHECK(offsetof(struct type, member) == (offset))

int main(void)
{
#ifdef RDS_SOLARIS
    CHECK(sizeof(struct rds_msghdr) == 48 && sizeof(struct rds_cmsghdr) == 12);
    AT(rds_msghdr, msg_control, 32);
    AT(rds_msghdr, msg_controllen, 40);
    AT(rds_msghdr, msg_flags, 44);
    CHECK(LEN(8) == 20 && SPACE(8) == 20 && SPACE(4) == 16 && SPACE(5) == 20);
    CHECK(sizeof(struct rds_rdma_notify) == 8);
    AT(rds_rdma_args, user_token, 48);
    CHECK(SOL_RDS == 272 && AF_RDS == 30);
#else
    CHECK(sizeof(struct rds_msghdr) == 56 && sizeof(struct rds_cmsghdr) == 16);
    CHECK(LEN(8) == 24 && SPACE(8) == 24 && SPACE(4) == 24);
    CHECK(sizeof(struct rds_rdma_notify) == 16 && sizeof(struct rds_atomic_args) == 72);
    CHECK(SOL_RDS == 276 && AF_RDS == 21);
#endif
    AT(rds_msghdr, msg_iov, 16);
    AT(rds_msghdr, msg_iovlen, 24);
    CHECK(sizeof(struct rds_iovec) == 16 && sizeof(struct rds_get_mr_args) == 32);
    CHECK(sizeof(struct rds_get_mr_for_dest_args) == 160 && sizeof(struct rds_free_mr_args) == 16);
    CHECK(sizeof(struct rds_rdma_args) == 56);
    AT(rds_rdma_args, local_vec_addr, 24);
    AT(rds_rdma_args, flags, 40);
    return EXIT_SUCCESS;
}
