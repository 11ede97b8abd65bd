// AF_RDS of Linux, with the numbers that older headers of libc do not have.

#ifndef RDS_LINUX_H
#define RDS_LINUX_H

#include <linux/rds.h>
#include <sys/socket.h>

#ifndef AF_RDS
#define AF_RDS 21
#endif
#ifndef SOL_RDS
#define SOL_RDS 276
#endif

#endif
