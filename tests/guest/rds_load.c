// Requests and answers over RDS as rds-stress makes them: the Linux side of `cargo xtask bench rds`.
//
//   rds_load serve OWN                                              takes one run that another asks for
//   rds_load run OWN PEER SECONDS DEPTH REQUEST RDMA CHECK          asks for one; REQUEST and RDMA in bytes, CHECK 0 or 1
//
// It speaks to itself, to rds-stress with one task, and to the unikernel's app=rds mode=stress (kernel/apps/src/stress, which says what
// the options on the TCP connection and the headers of messages are). Both sides have DEPTH requests under way and answer those of the
// other. With RDMA a request offers memory, mapped with it and freed after its answer, from which the answer's sender reads or to which
// it writes before. Headers are compared always, all other bytes with CHECK. Both end with a line "@load ...": of the
// measured time, or, the side that serves, of the whole run.

#include "rds_program.h"
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TCP_PORT = 4000, RDS_PORT = TCP_PORT + 1, MAX_DEPTH = 4096, MAX_BYTES = 1 << 20, OPTIONS = 59, ANSWER = 63 };
enum { REQUEST_OP = 1, ANSWER_OP, READ_OP = 1, WRITE_OP };
// Requests without RDMA at the beginning, and how often the end is looked for, in rounds of the loop.
enum { PLAIN = 10, LOOK = 256 };
static const uint64_t SECOND = 1000000000, START = 2 * SECOND, FIRST = 4 * SECOND, STOPPING = SECOND;

// Numbers in network order.
struct header {
    uint32_t sequence, from, to;
    uint16_t from_port, to_port, place;
    uint8_t op, rdma_op;
    uint64_t address, offset, pattern, key;
    uint32_t length, pieces;
    uint8_t unused[3];
} __attribute__((packed));
_Static_assert(sizeof(struct header) == ANSWER, "the header of rds-stress");

static struct {
    uint32_t depth, request, answer, rdma, own, peer, seconds;
    int check, use_once, use_get_mr, cache, fence, monitor, simplex;
    uint8_t direction;
} options;

static struct slot {
    uint64_t *offered, *local, key;
    struct header request;
    int in_flight;
    uint64_t reads, sent_at;
} slots[MAX_DEPTH];

static struct {
    uint32_t sent, received;                                // numbers of the next messages
    uint32_t send_place, receive_place, pending, unanswered; // of requests
    int congested, draining, reads_next;
} state;

static struct count {
    uint64_t sent, received, answers, bytes, rdma_in, rdma_out, waited;
} count;

static int rds, tcp, asks;
static struct sockaddr_in there;
static uint8_t pattern[MAX_BYTES], sent_bytes[MAX_BYTES], received_bytes[MAX_BYTES];

static void sleep_until(uint64_t at) {
    for (uint64_t now; (now = nanoseconds()) < at;) usleep((at - now) / 1000 + 1);
}

static struct sockaddr_in address(uint32_t ip, uint16_t port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(ip), .sin_port = htons(port)};
}

static uint32_t ip_of(const char *text) {
    struct in_addr ip;
    errno = 0;
    if (inet_pton(AF_INET, text, &ip) != 1) fail("%s is no IPv4 address", text);
    return ntohl(ip.s_addr);
}

static uint32_t number(const char *what, const char *text, uint32_t least, uint32_t most) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || value < least || value > most) {
        errno = 0;
        fail("%s: %s is no number from %u to %u", what, text, least, most);
    }
    return (uint32_t)value;
}

// Bytes of the options: 32-bit numbers up to byte 24, and switches of a byte.
enum { AT_PORT = 24, AT_TASKS = 26, AT_SECONDS = 28, AT_CHECK = 35, AT_MONITOR = 38, AT_ONCE, AT_GET_MR, AT_FENCE, AT_CACHE };
enum { AT_SIMPLEX = 45, AT_DIRECTION = 46, AT_PIECES = 47 };

static void put(uint8_t *bytes, int at, uint32_t value) { memcpy(bytes + at, &(uint32_t){htonl(value)}, 4); }

static uint32_t get(const uint8_t *bytes, int at) {
    uint32_t value;
    memcpy(&value, bytes + at, 4);
    return ntohl(value);
}

static void send_options(void) {
    uint8_t bytes[OPTIONS] = {0};
    uint32_t numbers[] = {options.depth, options.request, options.answer, options.rdma, options.peer, options.own};
    for (int i = 0; i < 6; i++) put(bytes, 4 * i, numbers[i]);
    put(bytes, AT_PORT, TCP_PORT << 16 | 1);
    put(bytes, AT_SECONDS, options.seconds);
    bytes[AT_CHECK] = (uint8_t)options.check;
    bytes[AT_MONITOR] = bytes[AT_FENCE] = 1;
    put(bytes, AT_PIECES, 1);
    if (write(tcp, bytes, sizeof bytes) != sizeof bytes) fail("options cannot be sent");
}

static void take_options(void) {
    uint8_t bytes[OPTIONS];
    errno = 0;
    if (recv(tcp, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes) fail("no options came");
    options.depth = get(bytes, 0);
    options.request = get(bytes, 4);
    options.answer = get(bytes, 8);
    options.rdma = get(bytes, 12);
    options.peer = get(bytes, 20);
    options.check = bytes[AT_CHECK];
    options.monitor = bytes[AT_MONITOR];
    options.use_once = bytes[AT_ONCE];
    options.use_get_mr = bytes[AT_GET_MR];
    options.fence = bytes[AT_FENCE];
    options.cache = bytes[AT_CACHE];
    options.simplex = bytes[AT_SIMPLEX];
    options.direction = bytes[AT_DIRECTION];
    uint32_t places = get(bytes, AT_PORT);
    if (places != (TCP_PORT << 16 | 1) || get(bytes, AT_PIECES) != 1) fail("only one task, one piece and port %d", TCP_PORT);
    if (options.depth < 1 || options.depth > MAX_DEPTH || options.request < ANSWER || options.request > MAX_BYTES ||
        options.answer < ANSWER || options.answer > MAX_BYTES || options.rdma > MAX_BYTES || options.rdma % 8)
        fail("options out of range");
}

static void exchange_byte(int first) {
    uint8_t byte = 1;
    errno = 0;
    for (int turn = 0; turn < 2; turn++)
        if ((turn == 0) == first ? write(tcp, &byte, 1) != 1 : recv(tcp, &byte, 1, MSG_WAITALL) != 1)
            fail("the other side has gone");
}

static void set(int level, int option, int value, const char *name) {
    if (setsockopt(rds, level, option, &value, sizeof value)) fail("%s", name);
}

static void prepare(void) {
    rds = socket(AF_RDS, SOCK_SEQPACKET, 0);
    struct sockaddr_in own = address(options.own, RDS_PORT);
    if (rds < 0 || bind(rds, (struct sockaddr *)&own, sizeof own)) fail("an RDS socket");
    int room = (int)(options.depth * (options.request + options.answer) * 2);
    set(SOL_SOCKET, SO_SNDBUF, room, "SO_SNDBUF");
    set(SOL_SOCKET, SO_RCVBUF, room, "SO_RCVBUF");
    set(SOL_RDS, RDS_CONG_MONITOR, options.monitor, "RDS_CONG_MONITOR");
    if (fcntl(rds, F_SETFL, O_NONBLOCK)) fail("fcntl");
    there = address(options.peer, RDS_PORT);
    uint32_t k = 11;
    for (uint32_t at = 0; at < sizeof pattern; at++) {
        pattern[at] = (uint8_t)k;
        k = (k + 3) * 41 + ((at + 1) >> 8);
    }
    if (!options.rdma) return;
    size_t bytes = 2ull * options.depth * options.rdma;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) fail("memory for RDMA");
    for (uint32_t i = 0; i < options.depth; i++, memory += 2 * options.rdma) {
        slots[i].offered = (uint64_t *)memory;
        slots[i].local = (uint64_t *)(memory + options.rdma);
    }
}

static void fill(uint64_t *memory, uint64_t word) {
    for (uint32_t i = 0; options.check && i < options.rdma / 8; i++) memory[i] = word;
}

static void compare(const uint64_t *memory, uint64_t word) {
    errno = 0;
    for (uint32_t i = 0; options.check && i < options.rdma / 8; i++)
        if (memory[i] != word) fail("byte %u of RDMA is wrong", i * 8);
}

// Sends a message with a control message, if it has a type. 0 or an errno.
static int send_message(struct header *header, uint32_t length, int type, const void *data, size_t size) {
    union {
        uint8_t bytes[128];
        struct cmsghdr align;
    } space;
    header->sequence = htonl(state.sent);
    memcpy(sent_bytes, header, sizeof *header);
    if (options.check) memcpy(sent_bytes + sizeof *header, pattern, length - sizeof *header);
    struct iovec part = {sent_bytes, length};
    struct msghdr message = {.msg_name = &there, .msg_namelen = sizeof there, .msg_iov = &part, .msg_iovlen = 1};
    if (type) {
        message.msg_control = space.bytes;
        message.msg_controllen = CMSG_SPACE(size);
        space.align = (struct cmsghdr){.cmsg_len = CMSG_LEN(size), .cmsg_level = SOL_RDS, .cmsg_type = type};
        memcpy(CMSG_DATA(&space.align), data, size);
    }
    if (sendmsg(rds, &message, 0) < 0) {
        if (errno != EAGAIN && errno != ENOBUFS) fail("sendmsg");
        return errno;
    }
    state.sent++;
    count.bytes += length;
    return 0;
}

static struct header header_of(uint8_t op, uint32_t place) {
    return (struct header){
        .from = htonl(options.own), .to = htonl(options.peer), .from_port = htons(RDS_PORT), .to_port = htons(RDS_PORT),
        .place = htons((uint16_t)place), .op = op,
    };
}

static int send_request(void) {
    uint32_t place = state.send_place;
    struct slot *slot = &slots[place];
    struct header header = header_of(REQUEST_OP, place);
    uint64_t cookie, began = nanoseconds();
    int error;
    if (options.rdma && state.sent > PLAIN) {
        int reads = options.direction == 0 ? state.reads_next : options.direction == 1;
        uint64_t word = (uint64_t)state.sent << 32 | place;
        struct rds_get_mr_args map = {
            .vec = {(uintptr_t)slot->offered, options.rdma}, .cookie_addr = (uintptr_t)&cookie,
            .flags = RDS_RDMA_READWRITE | (options.use_once ? RDS_RDMA_USE_ONCE : 0),
        };
        if (options.use_get_mr && !slot->key) {
            map.cookie_addr = (uintptr_t)&slot->key;
            if (setsockopt(rds, SOL_RDS, RDS_GET_MR, &map, sizeof map)) fail("RDS_GET_MR");
        }
        header.rdma_op = reads ? READ_OP : WRITE_OP;
        header.address = htobe64((uintptr_t)slot->offered);
        header.pattern = htobe64(word);
        header.key = htobe64(slot->key);
        header.length = htonl(options.rdma);
        header.pieces = htonl(1);
        fill(slot->offered, reads ? word : 0);
        if (slot->key) error = send_message(&header, options.request, RDS_CMSG_RDMA_DEST, &slot->key, sizeof slot->key);
        else error = send_message(&header, options.request, RDS_CMSG_RDMA_MAP, &map, sizeof map);
        if (!error) state.reads_next = !reads;
        if (!error && !options.cache) slot->key = 0;
    } else {
        error = send_message(&header, options.request, 0, NULL, 0);
    }
    if (error) return error;
    slot->sent_at = began;
    state.send_place = (place + 1) % options.depth;
    state.pending++;
    count.sent++;
    return 0;
}

static int send_answer(void) {
    uint32_t place = (state.receive_place + options.depth - state.unanswered) % options.depth;
    struct slot *slot = &slots[place];
    struct header header = header_of(ANSWER_OP, place), *asked = &slot->request;
    int error;
    if (asked->key) {
        if (slot->in_flight) {
            state.draining = 1;
            return EBUSY;
        }
        header.rdma_op = asked->rdma_op;
        header.address = asked->address;
        header.offset = asked->offset;
        header.pattern = asked->pattern;
        header.key = asked->key;
        header.length = asked->length;
        header.pieces = asked->pieces;
        int writes = asked->rdma_op == WRITE_OP;
        uint64_t word = be64toh(asked->pattern);
        struct rds_iovec part = {(uintptr_t)slot->local, options.rdma};
        struct rds_rdma_args args = {
            .cookie = be64toh(asked->key), .remote_vec = {be64toh(asked->offset), options.rdma}, .local_vec_addr = (uintptr_t)&part,
            .nr_local = 1, .user_token = place,
            .flags = RDS_RDMA_NOTIFY_ME | (writes ? RDS_RDMA_READWRITE : options.fence ? RDS_RDMA_FENCE : 0),
        };
        fill(slot->local, writes ? word : ~word);
        error = send_message(&header, options.answer, RDS_CMSG_RDMA_ARGS, &args, sizeof args);
        if (error) return error;
        slot->in_flight = 1;
        slot->reads = writes ? 0 : word;
        *(writes ? &count.rdma_out : &count.rdma_in) += options.rdma;
    } else {
        error = send_message(&header, options.answer, 0, NULL, 0);
        if (error) return error;
    }
    state.unanswered--;
    return 0;
}

// 0, or why nothing more can be sent.
static int send_all(void) {
    int error = 0;
    while (!error && state.unanswered) error = send_answer();
    while (!error && (asks || !options.simplex) && state.pending < options.depth) error = send_request();
    return error;
}

static void ended(const struct rds_rdma_notify *notify) {
    errno = 0;
    if (notify->user_token >= options.depth) fail("an operation that there is not");
    if (notify->status) fail("RDMA ended with status %d", notify->status);
    struct slot *slot = &slots[notify->user_token];
    slot->in_flight = state.draining = 0;
    if (slot->reads) compare(slot->local, slot->reads);
}

static void expect(const char *what, uint64_t expected, uint64_t found) {
    errno = 0;
    if (expected != found) fail("a message's %s is %llu, not %llu", what, (unsigned long long)found, (unsigned long long)expected);
}

static void answered(const struct header *header, struct slot *slot) {
    count.answers++;
    count.waited += nanoseconds() - slot->sent_at;
    if (state.pending) state.pending--;
    if (!header->key) return;
    struct rds_free_mr_args args = {.cookie = be64toh(header->key)};
    // Whoever broke the connection may have used it up.
    if (!options.use_once && !options.cache) (void)!setsockopt(rds, SOL_RDS, RDS_FREE_MR, &args, sizeof args);
    if (header->rdma_op == WRITE_OP) compare(slot->offered, be64toh(header->pattern));
    *(header->rdma_op == WRITE_OP ? &count.rdma_in : &count.rdma_out) += options.rdma;
}

static void arrived(size_t length, const struct sockaddr_in *from, uint64_t cookie) {
    struct header header;
    if (length < sizeof header) expect("length", sizeof header, length);
    memcpy(&header, received_bytes, sizeof header);
    int asked = header.op == REQUEST_OP;
    if (!asked) expect("kind", ANSWER_OP, header.op);
    uint32_t place = asked ? state.receive_place : (state.send_place + options.depth - state.pending) % options.depth;
    expect("length", asked ? options.request : options.answer, length);
    expect("number", state.received, ntohl(header.sequence));
    expect("place", place, ntohs(header.place));
    expect("sender", options.peer, ntohl(header.from));
    expect("receiver", options.own, ntohl(header.to));
    expect("sender's port", ntohs(from->sin_port), ntohs(header.from_port));
    expect("receiver's port", RDS_PORT, ntohs(header.to_port));
    errno = 0;
    if (options.check && memcmp(received_bytes + sizeof header, pattern, length - sizeof header)) fail("a message's bytes are wrong");
    count.bytes += length;
    state.received++;
    struct slot *slot = &slots[place];
    if (!asked) return answered(&header, slot);
    if (cookie) header.key = htobe64(cookie);
    if (header.key) expect("length of RDMA", options.rdma, ntohl(header.length));
    slot->request = header;
    state.receive_place = (place + 1) % options.depth;
    state.unanswered++;
    count.received++;
}

// Takes one thing from the socket. Whether there was one.
static int receive_one(void) {
    union {
        uint8_t bytes[256];
        struct cmsghdr align;
    } space;
    struct sockaddr_in from = {0};
    struct iovec part = {received_bytes, sizeof received_bytes};
    struct msghdr message = {
        .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = space.bytes, .msg_controllen = sizeof space,
    };
    ssize_t length = recvmsg(rds, &message, MSG_DONTWAIT);
    if (length < 0) {
        if (errno != EAGAIN) fail("recvmsg");
        return 0;
    }
    uint64_t cookie = 0, ports;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        struct rds_rdma_notify notify;
        if (c->cmsg_level != SOL_RDS) continue;
        if (c->cmsg_type == RDS_CMSG_RDMA_DEST) memcpy(&cookie, CMSG_DATA(c), sizeof cookie);
        if (c->cmsg_type == RDS_CMSG_RDMA_STATUS) ended(memcpy(&notify, CMSG_DATA(c), sizeof notify));
        if (c->cmsg_type == RDS_CMSG_CONG_UPDATE) {
            memcpy(&ports, CMSG_DATA(c), sizeof ports);
            if (ports >> (RDS_PORT % 64) & 1) state.congested = 0;
        }
    }
    if (length) arrived((size_t)length, &from, cookie);
    return 1;
}

// Exchanges messages until the time is over, or the other side has ended the run; then answers are taken for a moment.
static void exchange(uint64_t agreed) {
    struct count first = {0};
    uint64_t from = 0, until = 0, over = 0;
    short wanted = POLLIN | POLLOUT;
    sleep_until(agreed + START);
    for (unsigned turn = 0;; turn++) {
        struct pollfd polled = {.fd = rds, .events = wanted};
        if (poll(&polled, 1, 100) < 0 && errno != EINTR) fail("poll");
        wanted = POLLIN;
        if (polled.revents & POLLIN) while (receive_one()) {}
        if (!over && !(options.monitor && state.congested) && !state.draining) {
            int error = polled.revents & POLLOUT || !(polled.events & POLLOUT) ? send_all() : EAGAIN;
            if (error == ENOBUFS) state.congested = 1;
            if (error == EAGAIN) wanted |= POLLOUT;
        }
        if (turn % LOOK && polled.revents) continue;
        uint64_t now = nanoseconds();
        if (over) {
            if (now >= over) break;
        } else if (!from) {
            if (now >= agreed + FIRST) {
                from = asks ? now : agreed + START;
                if (asks) first = count;
            }
        } else {
            uint8_t byte;
            ssize_t left = recv(tcp, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
            int ended = asks ? now >= from + options.seconds * SECOND : left >= 0 || errno != EAGAIN;
            if (ended) {
                shutdown(tcp, SHUT_WR);
                until = now;
                over = now + STOPPING;
                printf("@load requests=%llu answers=%llu received=%llu bytes=%llu rdma_in=%llu rdma_out=%llu rtt_ns=%llu ns=%llu\n",
                       (unsigned long long)(count.sent - first.sent), (unsigned long long)(count.answers - first.answers),
                       (unsigned long long)(count.received - first.received), (unsigned long long)(count.bytes - first.bytes),
                       (unsigned long long)(count.rdma_in - first.rdma_in), (unsigned long long)(count.rdma_out - first.rdma_out),
                       (unsigned long long)((count.waited - first.waited) / (count.answers - first.answers + 1)),
                       (unsigned long long)(until - from));
                fflush(stdout);
            }
        }
    }
}

static int connection(const char *peer) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in name = address(peer ? options.peer : options.own, TCP_PORT);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (peer) {
        if (connect(fd, (struct sockaddr *)&name, sizeof name)) fail("connect to %s", peer);
        return fd;
    }
    if (bind(fd, (struct sockaddr *)&name, sizeof name) || listen(fd, 1)) fail("TCP port %d", TCP_PORT);
    printf("@load listening\n");
    fflush(stdout);
    int accepted = accept(fd, NULL, NULL);
    if (accepted < 0) fail("accept");
    close(fd);
    return accepted;
}

int main(int argc, char **argv) {
    errno = 0;
    asks = argc == 9 && !strcmp(argv[1], "run");
    if (!asks && !(argc == 3 && !strcmp(argv[1], "serve")))
        fail("usage: rds_load serve OWN | rds_load run OWN PEER SECONDS DEPTH REQUEST RDMA CHECK");
    options.own = ip_of(argv[2]);
    options.monitor = options.fence = 1;
    options.answer = ANSWER;
    if (asks) {
        options.peer = ip_of(argv[3]);
        options.seconds = number("SECONDS", argv[4], 1, 3600);
        options.depth = number("DEPTH", argv[5], 1, MAX_DEPTH);
        options.request = number("REQUEST", argv[6], ANSWER, MAX_BYTES);
        options.rdma = number("RDMA", argv[7], 0, MAX_BYTES) & ~7u;
        options.check = (int)number("CHECK", argv[8], 0, 1);
    }
    tcp = connection(asks ? argv[3] : NULL);
    if (asks) send_options();
    else take_options();
    prepare();
    exchange_byte(asks);
    state.reads_next = 1;
    exchange(nanoseconds());
    return 0;
}
