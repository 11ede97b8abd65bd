// Reliable Datagram Sockets of Linux: the peer of a unikernel, or of another Linux.
//
//   rds ping OWN PEER COUNT INTERVAL_MS       pings from 8 sockets in turn, as rds-ping does
//   rds echo OWN                              sends back what arrives at ports 4000 to 4007, until SIGTERM
//   rds send OWN PEER COUNT SEED              messages of 0 bytes to 100 KiB from 8 sockets to 8 sockets
//   rds receive OWN PEER COUNT SEED           takes and checks them
//
// Messages, their order and their end are those of tests/workload/src/rds/flows.rs. Each ends with a line "@rds ..." or
// "@result ...".

#include "payload.h"
#include "rds_program.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

enum {
    SOCKETS = 8,
    ECHO_PORT = 4000,
    RECEIVER_PORT = 4100,
    SENDER_PORT = 4200,
    MAX_LEN = 100 << 10,
    LAST_LEN = 2048,
    STALL_S = 60,
};

static const uint64_t OCTAVES = (17 << 16) + (MAX_LEN - (1 << 16)) + 1;

struct pattern {
    uint64_t first;
    size_t len;
};

// Messages of each pair of sockets, and of all.
static uint64_t pairs[SOCKETS][SOCKETS], messages, total_bytes;
static int sockets[SOCKETS];
static uint8_t buffer[MAX_LEN];
static volatile sig_atomic_t stopped;

static struct pattern pattern_of(uint64_t seed, unsigned sender, unsigned receiver, uint64_t number) {
    uint64_t pair = ((uint64_t)sender << 56) | ((uint64_t)receiver << 48);
    uint64_t first = payload(seed, pair, number);
    uint64_t size = ((mix(first) >> 32) * OCTAVES) >> 32;
    struct pattern pattern = {first, 0};
    if (size >= 1 << 16) {
        size -= 1 << 16;
        pattern.len = (size_t)((((1ull << 16) + (size & 0xffff)) << (size >> 16)) >> 16);
    }
    return pattern;
}

static void count_message(unsigned sender, unsigned receiver, size_t len) {
    pairs[sender][receiver]++;
    messages++;
    total_bytes += len;
}

static uint64_t share(uint64_t count, unsigned sender) { return count / SOCKETS + (count % SOCKETS > sender); }

// An IPv4 or IPv6 address. The port is at the same place in both.
union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static socklen_t length_of(const union address *address) {
    return address->any.sa_family == AF_INET6 ? sizeof address->v6 : sizeof address->v4;
}

static union address address_of(const char *text, unsigned port) {
    union address address = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)}};
    if (inet_pton(AF_INET6, text, &address.v6.sin6_addr) == 1) return address;
    address = (union address){.v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};
    errno = 0;
    if (inet_pton(AF_INET, text, &address.v4.sin_addr) != 1) fail("%s is no IP address", text);
    return address;
}

// Sockets at ports from `first` on, or at any with 0.
static void bind_all(const char *own, unsigned first) {
    for (unsigned i = 0; i < SOCKETS; i++) {
        sockets[i] = socket(AF_RDS, SOCK_SEQPACKET, 0);
        if (sockets[i] < 0) fail("socket");
        union address address = address_of(own, first ? first + i : 0);
        if (bind(sockets[i], &address.any, length_of(&address))) fail("bind to %s", own);
        if (fcntl(sockets[i], F_SETFL, O_NONBLOCK)) fail("fcntl");
    }
}

// Whether `socket` took it; it may have no room, or the other side has none.
static int sent(int socket, const union address *to, const void *bytes, size_t len) {
    ssize_t done = sendto(socket, bytes, len, 0, &to->any, length_of(to));
    if (done >= 0) {
        if ((size_t)done != len) fail("sendto took %zd of %zu bytes", done, len);
        return 1;
    }
    if (errno != EAGAIN && errno != ENOBUFS) fail("sendto");
    return 0;
}

// The length of the next message, or -1; -2 for one that is longer than the buffer.
static ssize_t received(int socket, union address *from) {
    struct iovec place = {buffer, MAX_LEN};
    struct msghdr message = {.msg_name = from, .msg_namelen = sizeof *from, .msg_iov = &place, .msg_iovlen = 1};
    memset(from, 0, sizeof *from);
    ssize_t len = recvmsg(socket, &message, 0);
    if (len < 0 && errno != EAGAIN) fail("recvmsg");
    return len >= 0 && message.msg_flags & MSG_TRUNC ? -2 : len;
}

static int same_host(const union address *a, const union address *b) {
    if (a->any.sa_family != b->any.sa_family) return 0;
    if (a->any.sa_family == AF_INET6) return !memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof a->v6.sin6_addr);
    return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
}

static int same(const union address *a, const union address *b) {
    return same_host(a, b) && a->v4.sin_port == b->v4.sin_port;
}

// Waits for something to read, or to write where `write` has a bit.
static void wait_for(unsigned write, int timeout_ms) {
    struct pollfd polled[SOCKETS];
    for (unsigned i = 0; i < SOCKETS; i++) {
        polled[i] = (struct pollfd){.fd = sockets[i], .events = (short)(POLLIN | (write >> i & 1 ? POLLOUT : 0))};
    }
    poll(polled, SOCKETS, timeout_ms);
}

static void stalled(uint64_t moved_at, uint64_t moved) {
    errno = 0;
    if (nanoseconds() - moved_at > STALL_S * 1000000000ull)
        fail("nothing moved for %d s after %llu messages", STALL_S, (unsigned long long)moved);
}

static int ping(const char *own, const char *peer_text, uint64_t count, uint64_t interval) {
    bind_all(own, 0);
    union address peer = address_of(peer_text, 0), from;
    uint64_t asked_at[SOCKETS] = {0}, number = 0, answers = 0, next_at = 0;
    uint64_t least = UINT64_MAX, most = 0, total = 0, moved_at = nanoseconds();
    while (answers < count) {
        uint64_t now = nanoseconds();
        for (unsigned i = 0; i < SOCKETS; i++) {
            ssize_t len = received(sockets[i], &from);
            if (len == -1) continue;
            errno = 0;
            if (len != 0 || !same(&from, &peer) || !asked_at[i]) fail("socket %u received what is no answer", i);
            uint64_t trip = now - asked_at[i];
            least = trip < least ? trip : least;
            most = trip > most ? trip : most;
            total += trip;
            asked_at[i] = 0;
            answers++;
            moved_at = now;
        }
        unsigned turn = number % SOCKETS;
        if (number < count && !asked_at[turn] && now >= next_at && sent(sockets[turn], &peer, "", 0)) {
            asked_at[turn] = now;
            next_at = now + interval * 1000000;
            number++;
            moved_at = now;
            continue;
        }
        stalled(moved_at, answers);
        wait_for(0, number < count && !asked_at[turn] ? (int)interval : 1000);
    }
    printf("@rds ping sent=%llu received=%llu min_us=%llu avg_us=%llu max_us=%llu\n", (unsigned long long)number,
           (unsigned long long)answers, (unsigned long long)least / 1000, (unsigned long long)(total / answers / 1000),
           (unsigned long long)most / 1000);
    return 0;
}

static void stop(int signal) {
    (void)signal;
    stopped = 1;
}

static int echo(const char *own) {
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    bind_all(own, ECHO_PORT);
    printf("@rds listening port=%d\n", ECHO_PORT);
    uint64_t messages = 0, bytes = 0;
    while (!stopped) {
        union address from;
        int moved = 0;
        for (unsigned i = 0; i < SOCKETS; i++) {
            ssize_t len = received(sockets[i], &from);
            if (len < 0 || from.v4.sin_port == 0) continue;
            while (!stopped && !sent(sockets[i], &from, buffer, (size_t)len)) wait_for(1u << i, 10);
            messages++;
            bytes += (uint64_t)len;
            moved = 1;
        }
        if (!moved) wait_for(0, 200);
    }
    printf("@rds echo messages=%llu bytes=%llu\n", (unsigned long long)messages, (unsigned long long)bytes);
    return 0;
}

static void tell(uint64_t began) {
    printf("@result op=rds_messages messages=%llu bytes=%llu verified=%llu ns=%llu\n", (unsigned long long)messages,
           (unsigned long long)total_bytes, (unsigned long long)messages, (unsigned long long)(nanoseconds() - began));
}

// Messages of this machine that no peer has acknowledged, as rds-info lists them.
static int unacknowledged(void) {
    static uint8_t list[1 << 16];
    int total = 0;
    for (int option = RDS_INFO_SEND_MESSAGES; option <= RDS_INFO_RETRANS_MESSAGES; option++) {
        socklen_t len = sizeof list;
        int size = getsockopt(sockets[0], SOL_RDS, option, list, &len);
        if (size < 0 && errno != ENOSPC) fail("getsockopt");
        total += size < 0 ? 1 : (int)len / size;
    }
    return total;
}

static int send_all(const char *own, const char *peer_text, uint64_t count, uint64_t seed) {
    bind_all(own, SENDER_PORT);
    union address peer = address_of(peer_text, RECEIVER_PORT), from;
    uint64_t sent_by[SOCKETS] = {0}, began = nanoseconds(), moved_at = began;
    while (messages < count) {
        unsigned blocked = 0;
        int moved = 0;
        for (unsigned sender = 0; sender < SOCKETS; sender++) {
            if (sent_by[sender] == share(count, sender)) continue;
            unsigned receiver = (unsigned)(sender + sent_by[sender]) % SOCKETS;
            struct pattern pattern = pattern_of(seed, sender, receiver, pairs[sender][receiver]);
            payload_fill(buffer, pattern.len, pattern.first);
            union address to = peer;
            to.v4.sin_port = htons((uint16_t)(RECEIVER_PORT + receiver));
            if (!sent(sockets[sender], &to, buffer, pattern.len)) {
                blocked |= 1u << sender;
                continue;
            }
            count_message(sender, receiver, pattern.len);
            sent_by[sender]++;
            moved = 1;
        }
        if (moved) {
            moved_at = nanoseconds();
        } else {
            stalled(moved_at, messages);
            // Room in the send buffer says nothing about the other side's: look again after a while.
            wait_for(blocked, 2);
            usleep(200);
        }
    }
    uint64_t other;
    ssize_t len;
    while ((len = received(sockets[0], &from)) == -1) {
        stalled(moved_at, messages);
        wait_for(0, 100);
    }
    errno = 0;
    if (len != 8 || !same(&from, &peer)) fail("not the receiver's count");
    memcpy(&other, buffer, 8);
    if (other != count) fail("%llu messages arrived", (unsigned long long)other);
    // A message of more than half the send buffer is acknowledged at once.
    int small = 1;
    if (setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small)) fail("setsockopt");
    memset(buffer, 0, LAST_LEN);
    while (!sent(sockets[0], &peer, buffer, LAST_LEN)) {
        stalled(moved_at, messages);
        wait_for(1, 100);
    }
    for (int wait = 0; wait < 500 && unacknowledged(); wait++) usleep(10000);
    tell(began);
    return 0;
}

static int receive_all(const char *own, const char *peer_text, uint64_t count, uint64_t seed) {
    bind_all(own, RECEIVER_PORT);
    printf("@rds listening port=%d\n", RECEIVER_PORT);
    union address peer = address_of(peer_text, SENDER_PORT), from;
    uint64_t began = nanoseconds(), moved_at = began;
    while (messages < count) {
        int moved = 0;
        for (unsigned receiver = 0; receiver < SOCKETS; receiver++) {
            ssize_t len = received(sockets[receiver], &from);
            if (len == -1) continue;
            unsigned sender = (unsigned)(uint16_t)(ntohs(from.v4.sin_port) - SENDER_PORT);
            errno = 0;
            if (!same_host(&from, &peer) || sender >= SOCKETS)
                fail("a message to socket %u from somebody else", receiver);
            struct pattern pattern = pattern_of(seed, sender, receiver, pairs[sender][receiver]);
            if ((size_t)len != pattern.len || payload_mismatch(buffer, pattern.len, pattern.first) < pattern.len)
                fail("message %llu from socket %u to socket %u is wrong: %zd bytes instead of %zu",
                     (unsigned long long)pairs[sender][receiver], sender, receiver, len, pattern.len);
            count_message(sender, receiver, (size_t)len);
            moved = 1;
        }
        if (moved) {
            moved_at = nanoseconds();
        } else {
            stalled(moved_at, messages);
            wait_for(0, 1000);
        }
    }
    moved_at = nanoseconds();
    while (!sent(sockets[0], &peer, &messages, sizeof messages)) {
        stalled(moved_at, messages);
        wait_for(1, 100);
    }
    ssize_t len;
    while ((len = received(sockets[0], &from)) == -1) {
        stalled(moved_at, messages);
        wait_for(0, 100);
    }
    errno = 0;
    if (len != LAST_LEN || !same(&from, &peer)) fail("one message too many");
    tell(began);
    return 0;
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end || errno) {
        errno = 0;
        fail("%s is no number", text);
    }
    return value;
}

int main(int words, char **word) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (words == 3 && !strcmp(word[1], "echo")) return echo(word[2]);
    if (words == 6) {
        uint64_t count = number(word[4]), last = number(word[5]);
        if (count == 0) fail("a count of 0");
        if (!strcmp(word[1], "ping")) return ping(word[2], word[3], count, last);
        if (!strcmp(word[1], "send")) return send_all(word[2], word[3], count, last);
        if (!strcmp(word[1], "receive")) return receive_all(word[2], word[3], count, last);
    }
    printf("usage: rds ping OWN PEER COUNT INTERVAL_MS | echo OWN | send OWN PEER COUNT SEED | receive OWN PEER COUNT SEED\n");
    return 2;
}
