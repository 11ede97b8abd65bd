// Names of Linux that rds_exchange.h and its programs use, as a program for Solaris has them with librds: layouts, numbers and errors
// are that system's.

#ifndef TESTS_RDS_SOLARIS_H
#define TESTS_RDS_SOLARIS_H

#include <rds/rds.h>

#undef AF_INET
#define AF_INET AF_INET_OFFLOAD
#undef SOCK_SEQPACKET
#define SOCK_SEQPACKET RDS_SOCK_SEQPACKET
#undef SOL_SOCKET
#define SOL_SOCKET RDS_SOL_SOCKET
#undef SO_RCVBUF
#define SO_RCVBUF RDS_SO_RCVBUF
#undef MSG_DONTWAIT
#define MSG_DONTWAIT RDS_MSG_DONTWAIT
#undef EMSGSIZE
#define EMSGSIZE RDS_EMSGSIZE

// Sockets of this program are all of RDS: no call is left to the system, whose layouts are others.
#define socket rds_socket
#define bind rds_bind
#define sendmsg rds_sendmsg
#define recvmsg rds_recvmsg
#define recv rds_recv
#define setsockopt rds_setsockopt
#define getsockopt rds_getsockopt
#define poll(fds, count, timeout) rds_poll((fds), (count), (timeout))
#define close rds_close

#define msghdr rds_msghdr
#define cmsghdr rds_cmsghdr
#undef CMSG_DATA
#define CMSG_DATA RDS_CMSG_DATA
#undef CMSG_LEN
#define CMSG_LEN RDS_CMSG_LEN
#undef CMSG_SPACE
#define CMSG_SPACE RDS_CMSG_SPACE
#undef CMSG_FIRSTHDR
#define CMSG_FIRSTHDR RDS_CMSG_FIRSTHDR
#undef CMSG_NXTHDR
#define CMSG_NXTHDR RDS_CMSG_NXTHDR

#endif
