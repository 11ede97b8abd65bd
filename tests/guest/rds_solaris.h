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
