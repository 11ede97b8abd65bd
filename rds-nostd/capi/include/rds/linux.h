/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* RDS on Linux: the system's own numbers and structures. Include <rds/rds.h>. */
#ifndef RDS_LINUX_H
#define RDS_LINUX_H

#include <linux/rds.h>

#define rds_msghdr msghdr
#define rds_cmsghdr cmsghdr

/* Missing in older C libraries. */
#ifndef AF_RDS
#define AF_RDS 21
#endif
#ifndef PF_RDS
#define PF_RDS AF_RDS
#endif
#ifndef SOL_RDS
#define SOL_RDS 276
#endif

/* Receive-path latency. The option has 4 bytes: a count, and the trace points to report. The
 * control message repeats them, with nanoseconds from byte 8 on. */
#define SO_RDS_MSG_RXPATH_LATENCY 10
#define RDS_CMSG_RXPATH_LATENCY 11

#endif /* RDS_LINUX_H */
