/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The freestanding headers declare Linux's layout. This file is compiled but not run. */
#include <dat/udat.h>
#include <mlx/firmware.h>
#include <rds/rds.h>

#define SIZE(type, bytes) typedef char size_of_##type[sizeof(type) == (bytes) ? 1 : -1]
#define PLACE(type, member, bytes) typedef char type##_##member[offsetof(struct type, member) == (bytes) ? 1 : -1]

typedef struct rds_msghdr msghdr;
typedef struct rds_cmsghdr cmsghdr;
typedef struct rds_rdma_args rdma_args;
typedef struct rds_atomic_args atomic_args;
typedef struct rds_rdma_notify notify;
typedef struct rds_get_mr_for_dest_args for_dest;
typedef struct sockaddr_in in;
typedef struct sockaddr_in6 in6;
typedef struct sockaddr_storage storage;
typedef struct pollfd polled;
typedef struct mlx_platform platform;
typedef struct mlx_config config;

SIZE(msghdr, 56);
SIZE(cmsghdr, 16);
SIZE(rdma_args, 56);
SIZE(atomic_args, 72);
SIZE(notify, 16);
SIZE(for_dest, 160);
SIZE(in, 16);
SIZE(in6, 28);
SIZE(storage, 128);
SIZE(polled, 8);
SIZE(platform, 120);
SIZE(config, 48);
SIZE(DAT_EVENT, 48);
SIZE(DAT_EP_PARAM, 192);
SIZE(DAT_IA_ATTR, 688);
SIZE(DAT_PROVIDER_ATTR, 504);
PLACE(rds_msghdr, msg_iovlen, 24);
PLACE(rds_msghdr, msg_control, 32);
PLACE(rds_msghdr, msg_flags, 48);
PLACE(rds_cmsghdr, cmsg_type, 12);
PLACE(rds_atomic_args, flags, 56);
PLACE(sockaddr_in, sin_addr, 4);
PLACE(sockaddr_in6, sin6_addr, 8);
PLACE(mlx_platform, read_config, 72);
PLACE(mlx_platform, bus_master, 96);
PLACE(mlx_platform, sync_for_cpu, 112);
PLACE(mlx_config, boot, 24);
PLACE(mlx_config, shared_keys, 40);
