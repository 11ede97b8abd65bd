/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What RDS has on Linux: the system's own numbers and structures. Include <rds/rds.h>. */
#ifndef RDS_LINUX_H
#define RDS_LINUX_H

#include <linux/rds.h>

#define rds_msghdr msghdr
#define rds_cmsghdr cmsghdr

/* Older C libraries do not have them. */
#ifndef AF_RDS
#define AF_RDS 21
#endif
#ifndef PF_RDS
#define PF_RDS AF_RDS
#endif
#ifndef SOL_RDS
#define SOL_RDS 276
#endif

/* How long messages take from their arrival to their reader: an option of 4 bytes, a count and the parts of the way that are told; and what is
 * told, those 4 bytes and, from byte 8 on, nanoseconds. */
#define SO_RDS_MSG_RXPATH_LATENCY 10
#define RDS_CMSG_RXPATH_LATENCY 11

#endif /* RDS_LINUX_H */
