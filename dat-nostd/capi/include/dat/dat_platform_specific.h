/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 1.2: scalar types of a Linux process, and of firmware, which is compiled as freestanding. */
#ifndef _DAT_PLATFORM_SPECIFIC_H_
#define _DAT_PLATFORM_SPECIFIC_H_

#include <stddef.h>
#include <stdint.h>
#if __STDC_HOSTED__
#include <sys/types.h>
#include <sys/socket.h>
#include <netinet/in.h>
#else
#include <mlx/sockets.h>
#endif

/* Directions of parameters. */
#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif
#ifndef INOUT
#define INOUT
#endif

#ifndef UINT64_C
#define UINT64_C(c) c##ULL
#endif

typedef uint32_t DAT_UINT32;
typedef uint64_t DAT_UINT64;
typedef unsigned long long DAT_UVERYLONG;

typedef void *DAT_PVOID;
typedef int DAT_COUNT;
typedef DAT_UINT64 DAT_PADDR;

typedef struct sockaddr DAT_SOCK_ADDR;
typedef struct sockaddr_in6 DAT_SOCK_ADDR6;
#define DAT_AF_INET AF_INET
#define DAT_AF_INET6 AF_INET6

#ifndef DAT_OPTIMAL_ALIGNMENT
#define DAT_OPTIMAL_ALIGNMENT 256
#endif

#endif /* _DAT_PLATFORM_SPECIFIC_H_ */
