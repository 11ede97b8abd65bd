// Messages, memory and AF_RDS sockets of rds_rdma.c, as in tests/workload/src/rds/exchange.rs.

#ifndef RDS_EXCHANGE_H
#define RDS_EXCHANGE_H

#include "payload.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef RDS_SOLARIS
#include "rds_solaris.h"
#else
#include "rds_linux.h"
#endif

enum { PORT = 4300, CLIENT_PORT = 4301, FULL = PORT + 10, OPEN = FULL + 1 };
enum { MIB = 1 << 20, PAGE = 4096, ARENA = MIB + (32 << 10), BEFORE = 4096, AFTER = 8192, FIRST_OFFSET = 8192 };
enum { LOCAL = 4096 + 5, GUARD = 64, LIMIT_MS = 60000 };
enum kind { OFFER = 1, CHECK, FREE, HOLD, RELEASE, CLOSE, DONE, AGAIN };
enum writer { SERVER = 1, CLIENT, OVERWRITTEN };
// EMSGSIZE in an answer, whatever number the server's system has for it.
enum { TOO_LONG = 90 };

struct message {
    uint32_t kind, number;
    uint64_t value[4];
};

// What a socket received.
struct arrival {
    enum { STATUS, UPDATE, MESSAGE } what;
    uint64_t token, ports, cookie;
    int status, has_cookie;
    size_t length;
    struct sockaddr_in from;
};

static struct in_addr own, peer;

static inline void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    exit(1);
}

static inline void fail_by(const char *what) { fail("%s: %s", what, strerror(errno)); }

static inline uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// Byte `position` of what `writer` wrote for a number, whose payload begins with `word`.
static inline uint8_t byte(uint64_t word, size_t position) { return (uint8_t)((word + position / 8 * STEP) >> position % 8 * 8); }

static inline void fill(uint8_t *at, size_t length, enum writer writer, uint32_t number, size_t first) {
    uint64_t word = payload(0, writer, number);
    for (size_t i = 0; i < length; i++) at[i] = byte(word, first + i);
}

// Counts bytes that are not as `fill` writes them; `*place` is the first of all, counted from `base`.
static inline uint64_t wrong(const uint8_t *at, size_t length, enum writer writer, uint32_t number, size_t first,
                      const uint8_t *base, uint64_t found, uint64_t *place) {
    uint64_t word = payload(0, writer, number);
    for (size_t i = 0; i < length; i++) {
        if (at[i] == byte(word, first + i)) continue;
        if (found++ == 0) *place = (uint64_t)(at + i - base);
    }
    return found;
}

static inline struct sockaddr_in address(struct in_addr ip, uint16_t port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = ip, .sin_port = htons(port)};
}

static inline int bound(uint16_t port) {
    int fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    if (fd < 0) fail_by("socket");
    struct sockaddr_in name = address(own, port);
    if (bind(fd, (struct sockaddr *)&name, sizeof name)) fail_by("bind");
    return fd;
}

static inline void set(int fd, int level, int option, int value) {
    if (setsockopt(fd, level, option, &value, sizeof value)) fail_by("setsockopt");
}

// One attempt: 0 or an errno.
static inline int try_send(int fd, struct sockaddr_in to, const void *data, size_t length, int type, const void *control,
                    size_t control_length) {
    union {
        char bytes[256];
        struct cmsghdr align;
    } space = {0};
    struct iovec part = {(void *)data, length};
    struct msghdr header = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &part, .msg_iovlen = 1};
    if (type != 0) {
        struct cmsghdr *first = &space.align;
        header.msg_control = space.bytes;
        header.msg_controllen = CMSG_SPACE(control_length);
        *first = (struct cmsghdr){.cmsg_len = CMSG_LEN(control_length), .cmsg_level = SOL_RDS, .cmsg_type = type};
        memcpy(CMSG_DATA(first), control, control_length);
    }
    return sendmsg(fd, &header, MSG_DONTWAIT) < 0 ? errno : 0;
}

// Waits for room, and for a connection where memory is to be mapped.
static inline int send_to(int fd, struct sockaddr_in to, const void *data, size_t length, int type, const void *control,
                   size_t control_length) {
    for (uint64_t end = now_ms() + LIMIT_MS; now_ms() < end; usleep(1000)) {
        int error = try_send(fd, to, data, length, type, control, control_length);
        if (error != EAGAIN && error != ENOBUFS) return error;
    }
    return ETIMEDOUT;
}

// 0 or an errno; EAGAIN if there is nothing.
static inline int try_receive(int fd, void *data, size_t room, struct arrival *arrival) {
    union {
        // Room for one status: Linux gives as many as fit.
        char bytes[CMSG_SPACE(sizeof(struct rds_rdma_notify))];
        struct cmsghdr align;
    } space = {0};
    struct iovec part = {data, room};
    struct msghdr header = {
        .msg_name = &arrival->from,
        .msg_namelen = sizeof arrival->from,
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = space.bytes,
        .msg_controllen = sizeof space,
    };
    ssize_t length = recvmsg(fd, &header, MSG_DONTWAIT);
    if (length < 0) return errno;
    *arrival = (struct arrival){.what = MESSAGE, .length = (size_t)length, .from = arrival->from};
    for (struct cmsghdr *next = CMSG_FIRSTHDR(&header); next != NULL; next = CMSG_NXTHDR(&header, next)) {
        if (next->cmsg_level != SOL_RDS) continue;
        if (next->cmsg_type == RDS_CMSG_RDMA_DEST) {
            memcpy(&arrival->cookie, CMSG_DATA(next), sizeof arrival->cookie);
            arrival->has_cookie = 1;
        } else if (next->cmsg_type == RDS_CMSG_CONG_UPDATE) {
            memcpy(&arrival->ports, CMSG_DATA(next), sizeof arrival->ports);
            arrival->what = UPDATE;
        } else if (next->cmsg_type == RDS_CMSG_RDMA_STATUS) {
            struct rds_rdma_notify notify;
            memcpy(&notify, CMSG_DATA(next), sizeof notify);
            *arrival = (struct arrival){.what = STATUS, .token = notify.user_token, .status = notify.status};
        }
    }
    return 0;
}

static inline void receive(int fd, void *data, size_t room, struct arrival *arrival, const char *what) {
    for (uint64_t end = now_ms() + LIMIT_MS; now_ms() < end;) {
        int error = try_receive(fd, data, room, arrival);
        if (error == 0) return;
        if (error != EAGAIN) fail("recvmsg for %s: %s", what, strerror(error));
        struct pollfd poll_for = {fd, POLLIN, 0};
        poll(&poll_for, 1, 100);
    }
    fail("nothing came: %s", what);
}

// The addresses on the command line.
static inline int addresses(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    return count > 2 && inet_aton(words[2], &own) && (count < 4 || inet_aton(words[3], &peer));
}

#endif
