/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Options, requests, addresses of both families, and truncation, with either system's numbers.
 * Arguments: the addresses of two HCAs. */
#include "system.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#ifdef RDS_SOLARIS
#define REQUEST(name) RDS_##name
#define ERRNO(name) RDS_##name
#define NO_INTERFACE ENXIO
#define CONTROL_CUT RDS_MSG_CTRUNC
#define PEEK RDS_MSG_PEEK
#define LOOPBACK_NAME "lo0"
#define TRANSPORT 8
#define TOS_SET 0x89e0
#define TOS_GET 0x89e1
typedef struct rds_ifreq interface_request;
typedef struct rds_ifconf interface_list;
#define FLAGS_OF(request) (request).rds_ifr_ifru.rds_ifru_flags
#define MTU_OF(request) (request).rds_ifr_ifru.rds_ifru_mtu
#define ADDRESS_OF(request) (request).rds_ifr_ifru.rds_ifru_addr
#define NAME_OF(request) (request).rds_ifr_name
#define LIST_LENGTH rds_ifc_len
#define LIST_BUFFER rds_ifc_buf
#else
#define REQUEST(name) name
#define ERRNO(name) name
#define NO_INTERFACE ENODEV
#define CONTROL_CUT MSG_CTRUNC
#define PEEK MSG_PEEK
#define LOOPBACK_NAME "lo"
#define TRANSPORT SO_RDS_TRANSPORT
#define TOS_SET SIOCRDSSETTOS
#define TOS_GET SIOCRDSGETTOS
typedef struct ifreq interface_request;
typedef struct ifconf interface_list;
#define FLAGS_OF(request) (request).ifr_flags
#define MTU_OF(request) (request).ifr_mtu
#define ADDRESS_OF(request) (request).ifr_addr
#define NAME_OF(request) (request).ifr_name
#define LIST_LENGTH ifc_len
#define LIST_BUFFER ifc_buf
#endif

static int made(void)
{
    int fd = rds_socket(FAMILY, SEQPACKET, 0);

    HOLDS(fd >= 0);
    return fd;
}

static int sent(int fd, const void *what, size_t length, struct sockaddr_in to)
{
    return rds_sendto(fd, what, length, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)length;
}

static int transport_of(int fd)
{
    int value = -7;
    socklen_t length = sizeof value;

    HOLDS(rds_getsockopt(fd, SOL_RDS, TRANSPORT, &value, &length) == 0 && length == sizeof value);
    return value;
}

static int set_transport(int fd, int value, socklen_t length)
{
    char bytes[8];

    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &value, sizeof value);
    return rds_setsockopt(fd, SOL_RDS, TRANSPORT, bytes, length);
}

static void transports(const char *own)
{
    int fd = made(), value;
    socklen_t length = 3;

    HOLDS(transport_of(fd) == -1);
    FAILS(EINVAL, rds_getsockopt(fd, SOL_RDS, TRANSPORT, &value, &length));
    FAILS(EINVAL, set_transport(fd, 0, 2));
    FAILS(EINVAL, set_transport(fd, 0, 8));
    FAILS(EINVAL, set_transport(fd, -1, 4));
    FAILS(EINVAL, set_transport(fd, 4, 4));
    /* iWARP and TCP are unsupported. */
    FAILS(NO_OPTION, set_transport(fd, 1, 4));
    FAILS(NO_OPTION, set_transport(fd, 2, 4));
    HOLDS(set_transport(fd, 0, 4) == 0 && transport_of(fd) == 0);
    FAILS(ERRNO(EOPNOTSUPP), set_transport(fd, 0, 4));
    HOLDS(rds_close(fd) == 0);
    fd = bound(own, 5000);
    HOLDS(transport_of(fd) == 0);
    FAILS(ERRNO(EOPNOTSUPP), set_transport(fd, 77, 4));
    HOLDS(rds_close(fd) == 0);
}

static void names(const char *own)
{
    struct sockaddr_in to = at(own, 5001), found, nowhere = at("0.0.0.0", 5001), all = at("255.255.255.255", 5001);
    socklen_t length = sizeof found;
    int fd = made();

    FAILS(NOT_CONNECTED, rds_getpeername(fd, (struct sockaddr *)&found, &length));
    memset(&found, 0xff, sizeof found);
#ifdef RDS_SOLARIS
    FAILS(NOT_CONNECTED, rds_getsockname(fd, (struct sockaddr *)&found, &length));
#else
    HOLDS(rds_getsockname(fd, (struct sockaddr *)&found, &length) == 0 && length == sizeof found);
    HOLDS(found.sin_family == AF_UNSPEC && found.sin_port == 0 && found.sin_addr.s_addr == 0);
#endif
    FAILS(ERRNO(EDESTADDRREQ), rds_connect(fd, (struct sockaddr *)&nowhere, sizeof nowhere));
    FAILS(EINVAL, rds_connect(fd, (struct sockaddr *)&all, sizeof all));
    FAILS(EINVAL, rds_connect(fd, (struct sockaddr *)&to, 7));
    HOLDS(rds_connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    FAILS(ERRNO(EOPNOTSUPP), rds_send(fd, "x", 1, MSG_MORE));
#ifndef RDS_SOLARIS
    length = sizeof found;
    HOLDS(rds_getsockname(fd, (struct sockaddr *)&found, &length) == 0 && length == sizeof found);
    HOLDS(found.sin_family == AF_INET && found.sin_port == 0 && found.sin_addr.s_addr == 0);
#endif
    /* The address is cut to the buffer, and its full length is returned. */
    memset(&found, 0xff, sizeof found);
    length = 4;
    HOLDS(rds_getpeername(fd, (struct sockaddr *)&found, &length) == 0 && length == sizeof found);
    HOLDS(found.sin_port == to.sin_port && found.sin_addr.s_addr == 0xffffffff);
    HOLDS(rds_close(fd) == 0);
}

static void cancels(const char *own)
{
    struct sockaddr_in absent = at("10.0.0.77", 5002);
    int fd = made(), bytes = -1;

    FAILS(NOT_CONNECTED, rds_setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &absent, sizeof absent));
    HOLDS(rds_close(fd) == 0);
    fd = bound(own, 5002);
    HOLDS(rds_ioctl(fd, REQUEST(TIOCOUTQ), &bytes) == 0 && bytes == 0);
    HOLDS(sent(fd, "message", 7, absent) && sent(fd, "another", 7, absent));
    HOLDS(rds_ioctl(fd, REQUEST(TIOCOUTQ), &bytes) == 0 && bytes == 14);
    FAILS(EINVAL, rds_setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &absent, 7));
    /* This port was never a destination. */
    absent.sin_port = htons(1);
    HOLDS(rds_setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &absent, sizeof absent) == 0);
    HOLDS(rds_ioctl(fd, REQUEST(TIOCOUTQ), &bytes) == 0 && bytes == 14);
    absent.sin_port = htons(5002);
    HOLDS(rds_setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &absent, sizeof absent) == 0);
    HOLDS(rds_ioctl(fd, REQUEST(TIOCOUTQ), &bytes) == 0 && bytes == 0);
    HOLDS(rds_close(fd) == 0);
}

static void services(const char *own)
{
    struct sockaddr_in here = at(own, 5003);
    unsigned char service = 9;
    char text[4];
    int fd = made();

    FAILS(ENOTTY, rds_ioctl(fd, TOS_SET, &service));
    HOLDS(rds_bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    HOLDS(rds_ioctl(fd, TOS_GET, &service) == 0 && service == 0);
    service = 5;
    HOLDS(rds_ioctl(fd, TOS_SET, &service) == 0);
    service = 0;
    HOLDS(rds_ioctl(fd, TOS_GET, &service) == 0 && service == 5);
    service = 6;
    FAILS(EINVAL, rds_ioctl(fd, TOS_SET, &service));
    HOLDS(sent(fd, "tos", 3, here) && rds_recv(fd, text, sizeof text, 0) == 3);
    FAILS(EFAULT, rds_ioctl(fd, TOS_GET, NULL));
    FAILS(ENOTTY, rds_ioctl(fd, 0x12345678, &service));
    HOLDS(rds_close(fd) == 0);
}

static void waits_or_not(const char *own)
{
    struct epoll_event event;
    struct sockaddr_in here = at(own, 5004);
    int fd = bound(own, 5004), on = 1, bytes = -1, set = epoll_create1(0);
    char text[16];

    FAILS(EAGAIN, rds_recv(fd, text, sizeof text, NO_WAIT));
    HOLDS(rds_ioctl(fd, REQUEST(FIONBIO), &on) == 0);
    FAILS(EAGAIN, rds_recv(fd, text, sizeof text, 0));
    HOLDS(rds_ioctl(fd, REQUEST(FIONREAD), &bytes) == 0 && bytes == 0);
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    HOLDS(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0 && epoll_wait(set, &event, 1, 0) == 0);
    HOLDS(sent(fd, "seven..", 7, here) && sent(fd, "eight...", 8, here));
    HOLDS(epoll_wait(set, &event, 1, 30000) == 1 && event.events == EPOLLIN);
    HOLDS(rds_ioctl(fd, REQUEST(FIONREAD), &bytes) == 0 && bytes == 7);
    HOLDS(rds_recv(fd, text, sizeof text, 0) == 7);
    HOLDS(epoll_wait(set, &event, 1, 0) == 1);
    on = 0;
    HOLDS(rds_ioctl(fd, REQUEST(FIONBIO), &on) == 0);
    HOLDS(rds_recv(fd, text, sizeof text, 0) == 8);
    HOLDS(epoll_wait(set, &event, 1, 0) == 0);
    close(set);
    HOLDS(rds_close(fd) == 0);
}

/* Messages and control messages longer than their buffer. */
static void cut(const char *own, const char *other)
{
    union {
        struct rds_cmsghdr first;
        unsigned char bytes[64];
    } control;
    struct sockaddr_in there = at(other, 5005), from;
    struct rds_msghdr message;
    rds_rdma_cookie_t cookie = 0;
    struct rds_cmsghdr *cmsg;
    struct iovec part;
    char text[100], memory[100];
    int fd = bound(own, 5005), far = bound(other, 5005);

    memset(text, 7, sizeof text);
    HOLDS(sent(fd, text, sizeof text, there));
    memset(&message, 0, sizeof message);
    part.iov_base = (void *)text;
    part.iov_len = 10;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_name = (char *)&from;
    message.msg_namelen = sizeof from;
    HOLDS(rds_recvmsg(far, &message, PEEK) == 10 && message.msg_flags == CUT);
    HOLDS(rds_recvmsg(far, &message, PEEK | CUT) == 100 && message.msg_flags == CUT);
    part.iov_len = 100;
    HOLDS(rds_recvmsg(far, &message, PEEK) == 100 && message.msg_flags == 0);
    part.iov_len = 10;
    HOLDS(rds_recvmsg(far, &message, 0) == 10 && message.msg_flags == CUT && from.sin_addr.s_addr == at(own, 0).sin_addr.s_addr);
    /* The rest is discarded. */
    FAILS(EAGAIN, rds_recvmsg(far, &message, NO_WAIT));
    /* A cookie without space, and one with half of the space. */
    cookie = offered_to(fd, &there, memory, sizeof memory);
    HOLDS(cookie != 0);
    memset(&control, 0, sizeof control);
    message.msg_name = (char *)&there;
    message.msg_namelen = sizeof there;
    message.msg_control = control.bytes;
    message.msg_controllen = (header_length)SPACE(sizeof cookie);
    cmsg = FIRST(&message);
    cmsg->cmsg_level = SOL_RDS;
    cmsg->cmsg_type = RDS_CMSG_RDMA_DEST;
    cmsg->cmsg_len = (header_length)LEN(sizeof cookie);
    memcpy(DATA(cmsg), &cookie, sizeof cookie);
    HOLDS(rds_sendmsg(fd, &message, 0) == 10 && rds_sendmsg(fd, &message, 0) == 10 && rds_sendmsg(fd, &message, 0) == 10);
    message.msg_name = NULL;
    message.msg_namelen = 0;
    message.msg_controllen = 0;
    HOLDS(rds_recvmsg(far, &message, 0) == 10 && message.msg_flags == CONTROL_CUT && message.msg_controllen == 0);
    message.msg_controllen = (header_length)LEN(4);
    HOLDS(rds_recvmsg(far, &message, 0) == 10 && message.msg_flags == CONTROL_CUT);
    part.iov_len = 5;
    memset(&control, 0, sizeof control);
    message.msg_controllen = sizeof control;
    HOLDS(rds_recvmsg(far, &message, 0) == 5 && message.msg_flags == CUT);
    cmsg = FIRST(&message);
    HOLDS(cmsg && cmsg->cmsg_type == RDS_CMSG_RDMA_DEST && memcmp(DATA(cmsg), &cookie, sizeof cookie) == 0);
    HOLDS(rds_close(fd) == 0 && rds_close(far) == 0);
}

/* The same address in IPv6, which Solaris lacks. */
static void families(const char *own)
{
    static const char *const many[] = { "::", "ff02::1", "::ffff:0.0.0.0", "::ffff:255.255.255.255", "::ffff:224.0.0.1" };
    struct sockaddr_in here = at(own, 5006);
    struct sockaddr_in6 mapped, other;
    size_t i;
    char text[64], found[64];
    socklen_t length;
    int fd = made();

    memset(&mapped, 0, sizeof mapped);
    mapped.sin6_family = AF_INET6;
    mapped.sin6_port = htons(5006);
    snprintf(text, sizeof text, "::ffff:%s", own);
    HOLDS(inet_pton(AF_INET6, text, &mapped.sin6_addr) == 1);
#ifdef RDS_SOLARIS
    FAILS(EINVAL, rds_bind(fd, (struct sockaddr *)&mapped, sizeof mapped));
    (void)many;
    (void)i;
    (void)here;
    (void)other;
    (void)found;
    (void)length;
#else
    other = mapped;
    HOLDS(inet_pton(AF_INET6, "fe80::1", &other.sin6_addr) == 1);
    FAILS(EINVAL, rds_bind(fd, (struct sockaddr *)&mapped, sizeof mapped - 1));
    HOLDS(rds_bind(fd, (struct sockaddr *)&other, sizeof other) == -1);
    HOLDS(rds_bind(fd, (struct sockaddr *)&mapped, sizeof mapped) == 0);
    length = sizeof found;
    /* Returned as an IPv4 address. */
    HOLDS(rds_getsockname(fd, (struct sockaddr *)found, &length) == 0 && length == sizeof here);
    HOLDS(memcmp(found, &here, 8) == 0);
    for (i = 0; i < sizeof many / sizeof *many; i++) {
        HOLDS(inet_pton(AF_INET6, many[i], &other.sin6_addr) == 1);
        FAILS(EPROTOTYPE, rds_connect(fd, (struct sockaddr *)&other, sizeof other));
    }
    HOLDS(rds_connect(fd, (struct sockaddr *)&mapped, sizeof mapped) == 0);
    HOLDS(rds_send(fd, "mapped", 6, 0) == 6 && rds_recv(fd, text, sizeof text, 0) == 6);
    HOLDS(rds_sendto(fd, "mapped", 6, 0, (struct sockaddr *)&mapped, sizeof mapped) == 6);
    length = sizeof found;
    HOLDS(rds_recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)found, &length) == 6 && length == sizeof here);
    HOLDS(memcmp(found, &here, 8) == 0);
    HOLDS(rds_setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &mapped, sizeof mapped) == 0);
#endif
    HOLDS(rds_close(fd) == 0);
}

static void interfaces(const char *own)
{
    struct sockaddr_in here = at(own, 0), *found;
    interface_request two[3], one;
    interface_list list;
    int fd = made();

    memset(two, 0xff, sizeof two);
    memset(&list, 0, sizeof list);
    list.LIST_LENGTH = sizeof two;
    list.LIST_BUFFER = (char *)two;
    HOLDS(rds_ioctl(fd, REQUEST(SIOCGIFCONF), &list) == 0 && list.LIST_LENGTH == 2 * (int)sizeof *two);
    HOLDS(strcmp(NAME_OF(two[0]), LOOPBACK_NAME) == 0 && strcmp(NAME_OF(two[1]), "ib0") == 0);
    found = (struct sockaddr_in *)(void *)&ADDRESS_OF(two[1]);
    HOLDS(memcmp(found, &here, sizeof here) == 0);
    found = (struct sockaddr_in *)(void *)&ADDRESS_OF(two[0]);
    HOLDS(found->sin_family == ADDRESS_FAMILY && found->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    HOLDS((unsigned char)NAME_OF(two[2])[0] == 0xff);
    /* Space for one and a half entries. */
    list.LIST_LENGTH = sizeof *two * 3 / 2;
#ifdef RDS_SOLARIS
    FAILS(EINVAL, rds_ioctl(fd, RDS_SIOCGIFCONF, &list));
    HOLDS(rds_ioctl(fd, RDS_O_SIOCGIFCONF, &list) == 0 && list.LIST_LENGTH == (int)sizeof *two);
    {
        int number = 0;

        HOLDS(rds_ioctl(fd, RDS_SIOCGIFNUM, &number) == 0 && number == 2);
    }
#else
    HOLDS(rds_ioctl(fd, SIOCGIFCONF, &list) == 0 && list.LIST_LENGTH == (int)sizeof *two);
    list.LIST_LENGTH = 0;
    list.LIST_BUFFER = NULL;
    HOLDS(rds_ioctl(fd, SIOCGIFCONF, &list) == 0 && list.LIST_LENGTH == 2 * (int)sizeof *two);
#endif
    list.LIST_LENGTH = -1;
#ifdef RDS_SOLARIS
    FAILS(EINVAL, rds_ioctl(fd, RDS_SIOCGIFCONF, &list));
#else
    HOLDS(rds_ioctl(fd, SIOCGIFCONF, &list) == 0 && list.LIST_LENGTH == 2 * (int)sizeof *two);
    list.LIST_LENGTH = -1;
    list.LIST_BUFFER = (char *)two;
    HOLDS(rds_ioctl(fd, SIOCGIFCONF, &list) == 0 && list.LIST_LENGTH == 0);
#endif
    memset(&one, 0, sizeof one);
    strcpy(NAME_OF(one), "ib0");
    HOLDS(rds_ioctl(fd, REQUEST(SIOCGIFFLAGS), &one) == 0 && strcmp(NAME_OF(one), "ib0") == 0);
    HOLDS((FLAGS_OF(one) & (IFF_UP | IFF_RUNNING | IFF_LOOPBACK)) == (IFF_UP | IFF_RUNNING));
    HOLDS(rds_ioctl(fd, REQUEST(SIOCGIFMTU), &one) == 0 && (int)MTU_OF(one) >= 2044);
    HOLDS(rds_ioctl(fd, REQUEST(SIOCGIFADDR), &one) == 0 && memcmp(&ADDRESS_OF(one), &here, sizeof here) == 0);
    strcpy(NAME_OF(one), LOOPBACK_NAME);
    HOLDS(rds_ioctl(fd, REQUEST(SIOCGIFFLAGS), &one) == 0 && (FLAGS_OF(one) & IFF_LOOPBACK));
    strcpy(NAME_OF(one), "ib");
    FAILS(NO_INTERFACE, rds_ioctl(fd, REQUEST(SIOCGIFMTU), &one));
    memset(NAME_OF(one), 'i', sizeof NAME_OF(one));
    FAILS(NO_INTERFACE, rds_ioctl(fd, REQUEST(SIOCGIFMTU), &one));
    HOLDS(rds_close(fd) == 0);
}

int main(int count, char **words)
{
    HOLDS(count == 3);
    alarm(60);
    HOLDS(rds_is_socket(0) == 0 && rds_is_socket(-1) == 0);
    transports(words[1]);
    names(words[1]);
    cancels(words[1]);
    services(words[1]);
    waits_or_not(words[1]);
    cut(words[1], words[2]);
    families(words[1]);
    interfaces(words[1]);
    return EXIT_SUCCESS;
}
