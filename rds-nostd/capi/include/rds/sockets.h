/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The system's socket calls, by librds: for programs whose sockets are all of RDS. Given to the compiler as it is (-include rds/sockets.h),
 * a program written for the kernel's AF_RDS needs no change. fcntl works as it is. */
#ifndef RDS_SOCKETS_H
#define RDS_SOCKETS_H

#include <rds/rds.h>

#include <sys/ioctl.h>
#include <unistd.h>

#define socket rds_socket
#define bind rds_bind
#define connect rds_connect
#define getsockname rds_getsockname
#define getpeername rds_getpeername
#define sendmsg rds_sendmsg
#define sendto rds_sendto
#define send rds_send
#define recvmsg rds_recvmsg
#define recvfrom rds_recvfrom
#define recv rds_recv
#define setsockopt rds_setsockopt
#define getsockopt rds_getsockopt
#define poll(fds, count, timeout) rds_poll((fds), (count), (timeout))
#define ioctl(fd, request, argument) rds_ioctl((fd), (request), (argument))
#define close rds_close

#endif /* RDS_SOCKETS_H */
