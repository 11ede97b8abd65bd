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

#endif /* RDS_LINUX_H */
