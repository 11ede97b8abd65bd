/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two processes exchange messages, offer memory by cookie, and run an operation on it with its
 * notification, in either system's layout.
 *
 *     exchange OWN          waits for memory to write to
 *     exchange OWN PEER     offers it */
#include "system.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT 4000
#define BYTES 10000
#define TOKEN 0x1234

static unsigned char memory[BYTES], text[100];
static unsigned char control[256];
static int fd;

/* Sends a message of two parts with a control message. */
static ssize_t send_with(struct sockaddr_in *to, int type, const void *beside, size_t length)
{
    struct rds_msghdr message;
    struct rds_cmsghdr *cmsg;
    struct iovec parts[2];

    memset(&message, 0, sizeof message);
    memset(control, 0, sizeof control);
    parts[0].iov_base = (void *)text;
    parts[0].iov_len = 10;
    parts[1].iov_base = (void *)(text + 10);
    parts[1].iov_len = sizeof text - 10;
    message.msg_name = to;
    message.msg_namelen = sizeof *to;
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    message.msg_control = control;
    message.msg_controllen = (header_length)SPACE(length);
    cmsg = FIRST(&message);
    cmsg->cmsg_len = (header_length)LEN(length);
    cmsg->cmsg_level = SOL_RDS;
    cmsg->cmsg_type = type;
    memcpy(DATA(cmsg), beside, length);
    return rds_sendmsg(fd, &message, 0);
}

/* Receives a message with a control message of this type. Returns the message's length. */
static ssize_t receive(struct sockaddr_in *from, int type, void *beside, size_t length, int flags)
{
    struct rds_msghdr message;
    struct rds_cmsghdr *cmsg;
    struct iovec part;
    ssize_t got;

    memset(&message, 0, sizeof message);
    part.iov_base = (void *)text;
    part.iov_len = sizeof text;
    message.msg_name = from;
    message.msg_namelen = sizeof *from;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    got = rds_recvmsg(fd, &message, flags);
    if (got < 0)
        return got;
    HOLDS(message.msg_flags == 0);
    cmsg = FIRST(&message);
    if (!type) {
        HOLDS(!cmsg || !message.msg_controllen);
        return got;
    }
    HOLDS(cmsg && cmsg->cmsg_level == SOL_RDS && cmsg->cmsg_type == type && cmsg->cmsg_len == LEN(length));
    memcpy(beside, DATA(cmsg), length);
    HOLDS(!NEXT(&message, cmsg));
    return got;
}

static void readable(void)
{
    struct pollfd one;

    one.fd = fd;
    one.events = POLLIN;
    one.revents = 0;
    /* The system's poll works, too: the socket is a descriptor. */
    HOLDS(poll(&one, 1, 30000) == 1 && one.revents == POLLIN);
}

static void make(const char *own)
{
    struct sockaddr_in here = at(own, PORT), found, foreign = at("10.9.9.9", PORT);
    socklen_t length = sizeof found;
    int number = 50000, again;

    FAILS(EBADF, rds_bind(-1, (struct sockaddr *)&here, sizeof here));
    fd = rds_socket(FAMILY, SEQPACKET, 0);
    HOLDS(fd >= 0);
    FAILS(NOT_CONNECTED, rds_send(fd, text, 1, 0));
    FAILS(NOT_OURS, rds_bind(fd, (struct sockaddr *)&foreign, sizeof foreign));
    FAILS(EFAULT, rds_bind(fd, NULL, sizeof here));
    FAILS(EINVAL, rds_bind(fd, (struct sockaddr *)&here, 7));
    HOLDS(rds_bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    HOLDS(rds_getsockname(fd, (struct sockaddr *)&found, &length) == 0 && length == sizeof found);
    HOLDS(memcmp(&found, &here, 8) == 0);
    again = rds_socket(FAMILY, SEQPACKET, 0);
    FAILS(IN_USE, rds_bind(again, (struct sockaddr *)&here, sizeof here));
    HOLDS(rds_close(again) == 0);
    FAILS(EBADF, rds_close(again));
    HOLDS(rds_setsockopt(fd, LEVEL_SOCKET, SEND_BUFFER, &number, sizeof number) == 0);
    number = 0;
    length = sizeof number;
    HOLDS(rds_getsockopt(fd, LEVEL_SOCKET, SEND_BUFFER, &number, &length) == 0 && number == BUFFER_IS(50000));
    FAILS(NO_OPTION, rds_setsockopt(fd, SOL_RDS, 999, &number, sizeof number));
    FAILS(EFAULT, rds_sendmsg(fd, NULL, 0));
    FAILS(EAGAIN, rds_recv(fd, text, sizeof text, NO_WAIT));
}

/* Sends a message without a copy. */
static void lend(struct sockaddr_in *to)
{
    struct rds_rdma_notify notify;
    int number = 1 << 20, i;

    FAILS(EBADF, rds_lend(-1, memory, BYTES, 0, (struct sockaddr *)to, sizeof *to, 1));
    FAILS(EFAULT, rds_lend(fd, NULL, BYTES, 0, (struct sockaddr *)to, sizeof *to, 1));
    FAILS(EINVAL, rds_lend(fd, memory, 0, 0, (struct sockaddr *)to, sizeof *to, 1));
    FAILS(EINVAL, rds_lend(fd, memory, BYTES, 0, (struct sockaddr *)to, 7, 1));
    FAILS(NOT_CONNECTED, rds_lend(fd, memory, BYTES, 0, NULL, 0, 1));
    HOLDS(rds_setsockopt(fd, LEVEL_SOCKET, SEND_BUFFER, &number, sizeof number) == 0);
    for (i = 0; i < BYTES; i++)
        memory[i] = (unsigned char)(i * 11);
    HOLDS(rds_lend(fd, memory, BYTES, 0, (struct sockaddr *)to, sizeof *to, TOKEN + 1) == BYTES);
    readable();
    HOLDS(receive(to, RDS_CMSG_RDMA_STATUS, &notify, sizeof notify, 0) == 0);
    HOLDS(notify.user_token == TOKEN + 1 && notify.status == RDS_RDMA_SUCCESS);
    /* The buffer belongs to the program again. Closing the socket releases the second one. */
    memset(memory, 1, sizeof memory);
    HOLDS(rds_lend(fd, memory, 1, NO_WAIT, (struct sockaddr *)to, sizeof *to, 0) == 1);
}

static void serve(void)
{
    struct sockaddr_in from;
    struct rds_rdma_notify notify;
    struct rds_rdma_args args;
    struct rds_iovec local[2];
    rds_rdma_cookie_t cookie;
    int i;

    readable();
    HOLDS(receive(&from, RDS_CMSG_RDMA_DEST, &cookie, sizeof cookie, 0) == sizeof text && text[99] == 9);
    for (i = 0; i < BYTES; i++)
        memory[i] = (unsigned char)(i * 7);
    local[0].addr = (uint64_t)(uintptr_t)memory;
    local[0].bytes = 1234;
    local[1].addr = (uint64_t)(uintptr_t)(memory + 1234);
    local[1].bytes = BYTES - 1234 - 100;
    memset(&args, 0, sizeof args);
    args.cookie = cookie;
    args.remote_vec.addr = 100;
    args.remote_vec.bytes = BYTES - 100;
    args.local_vec_addr = (uint64_t)(uintptr_t)local;
    args.nr_local = 2;
    args.flags = RDS_RDMA_READWRITE | RDS_RDMA_NOTIFY_ME;
    args.user_token = TOKEN;
    HOLDS(send_with(&from, RDS_CMSG_RDMA_ARGS, &args, sizeof args) == sizeof text);
    readable();
    HOLDS(receive(&from, RDS_CMSG_RDMA_STATUS, &notify, sizeof notify, 0) == 0);
    HOLDS(notify.user_token == TOKEN && notify.status == RDS_RDMA_SUCCESS);
    /* The cookie was freed. */
    HOLDS(receive(&from, 0, NULL, 0, 0) == sizeof text);
    HOLDS(send_with(&from, RDS_CMSG_RDMA_ARGS, &args, sizeof args) == sizeof text);
    HOLDS(receive(&from, RDS_CMSG_RDMA_STATUS, &notify, sizeof notify, 0) == 0);
    HOLDS(notify.status == RDS_RDMA_REMOTE_ERROR);
    HOLDS(rds_sendto(fd, "end", 3, 0, (struct sockaddr *)&from, sizeof from) == 3);
    lend(&from);
}

static void ask(const char *peer)
{
    struct sockaddr_in to = at(peer, PORT), from;
    struct rds_get_mr_args offer;
    struct rds_free_mr_args end;
    rds_rdma_cookie_t cookie = 0;
    int i;

    memset(&offer, 0, sizeof offer);
    offer.vec.addr = (uint64_t)(uintptr_t)memory;
    offer.vec.bytes = BYTES;
    offer.cookie_addr = (uint64_t)(uintptr_t)&cookie;
    if (getenv("RDS_SHARED_KEYS")) {
        HOLDS(rds_setsockopt(fd, SOL_RDS, RDS_GET_MR, &offer, sizeof offer) == 0 && cookie != 0);
    } else {
        FAILS(NOT_SUPPORTED, rds_setsockopt(fd, SOL_RDS, RDS_GET_MR, &offer, sizeof offer));
        cookie = offered_to(fd, &to, memory, BYTES);
        HOLDS(cookie != 0);
    }
    text[99] = 9;
    HOLDS(send_with(&to, RDS_CMSG_RDMA_DEST, &cookie, sizeof cookie) == sizeof text);
    HOLDS(receive(&from, 0, NULL, 0, 0) == sizeof text && from.sin_port == to.sin_port);
    for (i = 0; i < BYTES; i++)
        HOLDS(memory[i] == (i < 100 ? 0 : (unsigned char)((i - 100) * 7)));
    memset(&end, 0, sizeof end);
    end.cookie = cookie;
    HOLDS(rds_setsockopt(fd, SOL_RDS, RDS_FREE_MR, &end, sizeof end) == 0);
    FAILS(EINVAL, rds_setsockopt(fd, SOL_RDS, RDS_FREE_MR, &end, sizeof end));
    HOLDS(rds_connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    HOLDS(rds_send(fd, text, sizeof text, 0) == sizeof text);
    HOLDS(rds_recv(fd, text, sizeof text, 0) == 3 && memcmp(text, "end", 3) == 0);
    HOLDS(rds_recv(fd, memory, sizeof memory, 0) == BYTES);
    for (i = 0; i < BYTES; i++)
        HOLDS(memory[i] == (unsigned char)(i * 11));
    HOLDS(rds_recv(fd, memory, sizeof memory, 0) == 1 && memory[0] == 1);
}

int main(int count, char **words)
{
    HOLDS(count == 2 || count == 3);
    make(words[1]);
    if (count == 2) {
        printf("ready\n");
        fflush(stdout);
        serve();
        /* Wait for the acknowledgement of the last message. */
        poll(NULL, 0, 200);
    } else {
        ask(words[2]);
    }
    HOLDS(rds_close(fd) == 0);
    return EXIT_SUCCESS;
}
