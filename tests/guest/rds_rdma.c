// RDMA by cookie and congestion on AF_RDS sockets: the client and the server of tests/workload/src/rds.
//
//   rds_rdma server OWN                   offers memory, keeps sockets unread, until it is told that this is all
//   rds_rdma rdma OWN PEER ROUNDS         operations on the peer's memory
//   rds_rdma offered OWN PEER ROUNDS      only the operations that the peer allows: two Linux kernels do not reconnect after
//                                         one that fails
//   rds_rdma congestion OWN PEER ROUNDS   fills a port of the peer
//   rds_rdma atomic OWN PEER              tries an atomic operation on the peer's memory
//
// OWN and PEER are IPv4 addresses.

#include "rds_exchange.h"

static uint8_t *arena, *buffer;

// ---- The server

static struct {
    uint32_t number;
    size_t offset, length;
    // Of the last one offered; after so many milliseconds of silence it is freed, which is done once.
    uint64_t cookie, patience_ms;
    int freed;
} region;

static void prepare(enum writer writer) {
    size_t start = region.offset - BEFORE;
    fill(arena + start, BEFORE + region.length + AFTER, writer, region.number, start);
}

static void check(const struct message *request, struct message *answer) {
    size_t start = region.offset - BEFORE, end = region.offset + region.length + AFTER;
    uint64_t from = request->value[0], length = request->value[1], found = 0;
    if (from < start || from > end || length > end - from) fail("a check beyond the region");
    const uint8_t *base = arena + start;
    uint64_t *place = &answer->value[1];
    found = wrong(base, from - start, SERVER, region.number, start, base, found, place);
    found = wrong(arena + from, length, CLIENT, region.number, 0, base, found, place);
    found = wrong(arena + from + length, end - from - length, SERVER, region.number, from + length, base, found, place);
    answer->value[0] = found;
    if (request->value[2]) prepare(OVERWRITTEN);
}

static int free_mr(int fd, uint64_t cookie, uint64_t flags) {
    struct rds_free_mr_args args = {cookie, flags};
    return setsockopt(fd, SOL_RDS, RDS_FREE_MR, &args, sizeof args) ? errno : 0;
}

// Linux shuts a connection down only when the application has freed all regions that were mapped for it (6.1 and 6.12: the
// shutdown waits for `i_fastreg_inuse_count`), and makes no new one before. An operation that fails ends the connection, so the
// message that tells to free its region cannot come.
static void lose_patience(int fd) {
    if (region.patience_ms == 0) return;
    // A peer's new congestion map makes a socket readable, too: there is silence as long as there is no message.
    for (uint64_t end = now_ms() + region.patience_ms; now_ms() < end; usleep(1000)) {
        uint8_t first;
        if (recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) return;
    }
    if (free_mr(fd, region.cookie, RDS_RDMA_INVALIDATE)) fail_by("free after silence");
    region.freed = 1;
    region.patience_ms = 0;
}

static void release(int fd, const struct message *request, struct message *answer) {
    struct arrival arrival = {0};
    for (uint64_t n = 0; n < request->value[1]; n++) {
        receive(fd, buffer, ARENA, &arrival, "a message to release");
        uint64_t place, number = request->value[3] + n;
        int right = arrival.what == MESSAGE && arrival.length == request->value[2] &&
                    wrong(buffer, arrival.length, CLIENT, (uint32_t)number, 0, buffer, 0, &place) == 0;
        answer->value[0] += !right;
    }
    answer->value[1] = try_receive(fd, buffer, ARENA, &arrival) != EAGAIN;
}

static void serve(void) {
    int fd = bound(PORT), held[2] = {-1, -1};
    uint64_t requests = 0, regions = 0;
    printf("@rds server\n");
    for (;;) {
        struct message request, answer;
        struct arrival arrival = {0};
        if (requests == 0) {
            // Whoever starts first waits for the other.
            struct pollfd poll_for = {fd, POLLIN, 0};
            poll(&poll_for, 1, LIMIT_MS);
        }
        lose_patience(fd);
        receive(fd, &request, sizeof request, &arrival, "a request");
        if (arrival.what != MESSAGE || arrival.length != sizeof request) fail("not a request: %zu bytes", arrival.length);
        requests++;
        answer = (struct message){request.kind, request.number, {0}};
        uint64_t port = request.value[0];
        int *place = &held[port % 2], type = 0;
        struct rds_get_mr_args map = {0};
        const void *control = NULL;
        size_t control_length = 0;
        switch (request.kind) {
        case OFFER:
            region.number = request.number;
            region.offset = request.value[0];
            region.length = request.value[1];
            region.patience_ms = request.value[3];
            region.freed = 0;
            if (region.offset < FIRST_OFFSET || region.length > ARENA || region.offset + region.length + AFTER > ARENA)
                fail("a region beyond the arena");
            prepare(SERVER);
            // Whole pages are registered.
            answer.value[1] = ((region.offset + region.length + PAGE - 1) & ~(uint64_t)(PAGE - 1)) - region.offset;
            map.vec = (struct rds_iovec){(uintptr_t)(arena + region.offset), region.length};
            map.flags = request.value[2];
            map.cookie_addr = (uintptr_t)&region.cookie;
            type = RDS_CMSG_RDMA_MAP;
            control = &map;
            control_length = sizeof map;
            break;
        case AGAIN:
            type = RDS_CMSG_RDMA_DEST;
            control = &request.value[0];
            control_length = sizeof request.value[0];
            break;
        case CHECK:
            check(&request, &answer);
            break;
        case FREE:
            region.patience_ms = 0;
            if (region.freed && request.value[0] == region.cookie) break;
            answer.value[0] = (uint64_t)free_mr(fd, request.value[0], request.value[1]);
            // One that its use has freed: access ends with the next flush.
            if (answer.value[0] != 0 && free_mr(fd, 0, 0)) fail_by("flush of regions");
            break;
        case HOLD:
            *place = bound((uint16_t)port);
            set(*place, SOL_SOCKET, SO_RCVBUF, (int)request.value[1]);
            break;
        case RELEASE:
            release(*place, &request, &answer);
            break;
        case CLOSE:
            answer.value[0] = close(*place) ? (uint64_t)errno : 0;
            *place = -1;
            break;
        case DONE:
            break;
        default:
            fail("not a request: kind %u", request.kind);
        }
        int error = send_to(fd, arrival.from, &answer, sizeof answer, type, control, control_length);
        regions += type == RDS_CMSG_RDMA_MAP && error == 0;
        if (error != 0 && type != 0) {
            // The memory, not the message: the client is to hear of it.
            answer.value[0] = error == EMSGSIZE ? TOO_LONG : (uint64_t)error;
            error = send_to(fd, arrival.from, &answer, sizeof answer, 0, NULL, 0);
        }
        if (error != 0) fail("answer of kind %u: %s", answer.kind, strerror(error));
        if (request.kind == DONE) break;
    }
    // Closing takes back what is not acknowledged.
    sleep(1);
    close(fd);
    printf("@server requests=%lu regions=%lu\n", requests, regions);
}

// ---- The client of memory

// After so much silence a server of Linux frees a region, since the operation on it has failed (see `lose_patience`).
enum { PATIENCE_MS = 500 };
enum aim { OFFERED, BEYOND_END, BEFORE_START, OTHER_KEY, FREED, USED, AIMS };
static const size_t LENGTHS[] = {1, 2, 63, 64, 511, 4095, 4096, 4097, 65537, 262143, 1000001, MIB};
static const uint64_t OFFERS[] = {0, RDS_RDMA_INVALIDATE, RDS_RDMA_USE_ONCE, RDS_RDMA_USE_ONCE | RDS_RDMA_INVALIDATE};
static const uint64_t WAYS[] = {RDS_RDMA_NOTIFY_ME, RDS_RDMA_NOTIFY_ME | RDS_RDMA_FENCE, RDS_RDMA_FENCE,
                                RDS_RDMA_NOTIFY_ME | RDS_RDMA_SILENT};
enum { N_LENGTHS = sizeof LENGTHS / sizeof *LENGTHS, GOOD = N_LENGTHS * 4 * 4 * 2, ROUND = GOOD + 2 * (AIMS - 1) };

struct test_case {
    enum aim aim;
    size_t offset, length, skip, bytes;
    uint64_t offer, flags;
};

// With a fence, where there has to be one: the message ends a region for one use, and a read whose answer is lost is done again.
static uint64_t fenced(uint64_t flags, uint64_t offer) {
    int without = (flags & (RDS_RDMA_READWRITE | RDS_RDMA_SILENT)) != 0 || !(offer & RDS_RDMA_USE_ONCE);
    return without ? flags : flags | RDS_RDMA_FENCE;
}

static struct test_case case_of(size_t index) {
    size_t round = index / ROUND, in_round = index % ROUND, at = in_round / 2;
    struct test_case test = {.offset = FIRST_OFFSET + (((index * 1187 + round * 331) % PAGE) | 1)};
    uint64_t write = in_round % 2 == 0 ? RDS_RDMA_READWRITE : 0;
    if (in_round >= GOOD) {
        test.aim = OFFERED + 1 + (in_round - GOOD) / 2;
        test.offer = RDS_RDMA_INVALIDATE | (test.aim == USED ? RDS_RDMA_USE_ONCE : 0);
        test.length = test.bytes = 1001 + round % 7 * 501;
        test.flags = fenced(RDS_RDMA_NOTIFY_ME | write, test.offer);
        return test;
    }
    test.offer = OFFERS[at / 4 % 4];
    test.flags = fenced(WAYS[at % 4] | write, test.offer);
    test.length = LENGTHS[at / 16];
    test.skip = index % 3 == 0 ? test.length / 3 : 0;
    test.bytes = test.length - test.skip - (index % 3 == 0 ? test.length / 5 : 0);
    return test;
}

static int fd;
static size_t at_case;

static void ask(uint32_t kind, uint32_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    struct message request = {kind, number, {a, b, c, d}};
    int error = send_to(fd, address(peer, PORT), &request, sizeof request, 0, NULL, 0);
    if (error) fail("case %zu: request of kind %u: %s", at_case, kind, strerror(error));
}

// The answer to a request; no status may come instead of it.
static struct message answer_of(uint32_t kind, uint32_t number, struct arrival *arrival) {
    struct message answer;
    receive(fd, &answer, sizeof answer, arrival, "an answer");
    if (arrival->what == STATUS) fail("case %zu: status %d of %lu", at_case, arrival->status, arrival->token);
    if (arrival->length != sizeof answer || answer.kind != kind || answer.number != number)
        fail("case %zu: kind %u, number %u instead of an answer of kind %u", at_case, answer.kind, answer.number, kind);
    return answer;
}

static struct message demand(uint32_t kind, uint64_t a, uint64_t b, uint64_t c, uint64_t due) {
    struct arrival arrival = {0};
    ask(kind, (uint32_t)at_case, a, b, c, 0);
    struct message answer = answer_of(kind, (uint32_t)at_case, &arrival);
    if (answer.value[0] != due)
        fail("case %zu: kind %u answered with %lu (at %lu) instead of %lu", at_case, kind, answer.value[0], answer.value[1], due);
    return answer;
}

static int operate(const struct test_case *test, uint64_t cookie, size_t skip, const struct message *check) {
    size_t cuts[] = {0, test->bytes / 7, test->bytes / 7 + test->bytes / 2, test->bytes};
    struct rds_iovec pieces[3];
    uint64_t count = 0;
    for (int i = 0; i < 3; i++)
        if (cuts[i] < cuts[i + 1])
            pieces[count++] = (struct rds_iovec){(uintptr_t)(arena + LOCAL + cuts[i]), cuts[i + 1] - cuts[i]};
    struct rds_rdma_args args = {
        .cookie = cookie,
        .remote_vec = {skip, test->bytes},
        .local_vec_addr = (uintptr_t)pieces,
        .nr_local = count,
        .flags = test->flags,
        .user_token = at_case,
    };
    return send_to(fd, address(peer, PORT), check, check ? sizeof *check : 0, RDS_CMSG_RDMA_ARGS, &args, sizeof args);
}

static int status_of_operation(void) {
    struct arrival arrival = {0};
    receive(fd, buffer, ARENA, &arrival, "a status");
    if (arrival.what != STATUS || arrival.token != at_case) fail("case %zu: no status of it", at_case);
    return arrival.status;
}

static void local_memory(const struct test_case *test, uint32_t number, uint32_t stale) {
    fill(arena + LOCAL - GUARD, test->bytes + 2 * GUARD, OVERWRITTEN, number, 0);
    if (test->flags & RDS_RDMA_READWRITE) fill(arena + LOCAL, test->bytes, CLIENT, number + stale, 0);
}

static void rdma(size_t rounds, int offered_only) {
    fd = bound(CLIENT_PORT);
    uint64_t done = 0, bytes = 0, failed = 0;
    struct arrival arrival = {0};
    demand(OFFER, FIRST_OFFSET, 0, 0, EINVAL);
    demand(OFFER, FIRST_OFFSET, MIB + 8192, 0, TOO_LONG);
    demand(FREE, 0x00000100fffffe00, 0, 0, EINVAL);
    for (at_case = 0; at_case < rounds * ROUND; at_case++) {
        struct test_case test = case_of(at_case);
        if (offered_only && test.aim != OFFERED) continue;
        uint32_t number = (uint32_t)at_case;
        int writes = (test.flags & RDS_RDMA_READWRITE) != 0, told = (test.flags & RDS_RDMA_NOTIFY_ME) != 0;
        int silent = (test.flags & RDS_RDMA_SILENT) != 0;
        int denied = test.aim == BEYOND_END || test.aim == OTHER_KEY || test.aim == BEFORE_START;
        ask(OFFER, number, test.offset, test.length, test.offer, denied ? PATIENCE_MS : 0);
        struct message answer = answer_of(OFFER, number, &arrival);
        if (answer.value[0] != 0 || !arrival.has_cookie) fail("case %zu: no region: %lu", at_case, answer.value[0]);
        uint64_t cookie = arrival.cookie, reach = answer.value[1], used = cookie;
        if (at_case % 4 == 1) {
            ask(AGAIN, number, cookie, 0, 0, 0);
            answer_of(AGAIN, number, &arrival);
            if (!arrival.has_cookie || arrival.cookie != cookie) fail("case %zu: another cookie", at_case);
        }
        size_t skip = test.skip;
        int fails = test.aim == BEYOND_END || test.aim == OTHER_KEY || (test.aim == BEFORE_START && reach == test.length);
        if (test.aim == BEYOND_END) skip = reach + 1 - test.bytes;
        if (test.aim == BEFORE_START && fails) used = cookie - (1ULL << 32);
        if (test.aim == OTHER_KEY) used = cookie ^ 0xa5;
        struct message check = {CHECK, number, {test.offset, 0, 0, 0}};
        if (!fails && writes) {
            check.value[0] = test.offset + skip;
            check.value[1] = test.bytes;
        } else if (test.aim == OFFERED && (test.flags & RDS_RDMA_FENCE)) {
            // The fence is there so that this does not come too early for the read.
            check.value[2] = 1;
        }
        local_memory(&test, number, 0);
        int error = operate(&test, used, skip, silent ? NULL : &check);
        if (error) fail("case %zu: operation: %s", at_case, strerror(error));
        if (fails) {
            int status = status_of_operation();
            if (status != RDS_RDMA_REMOTE_ERROR) fail("case %zu: status %d of what has to fail", at_case, status);
            failed++;
            demand(CHECK, check.value[0], check.value[1], check.value[2], 0);
        } else {
            // A silent operation is told of when something behind it is sent.
            if (silent) ask(CHECK, number, check.value[0], check.value[1], check.value[2], 0);
            for (int left = 1 + told; left > 0; left--) {
                receive(fd, &answer, sizeof answer, &arrival, "the end of an operation");
                if (arrival.what == STATUS && told && arrival.token == at_case) {
                    if (arrival.status != RDS_RDMA_SUCCESS) fail("case %zu: status %d", at_case, arrival.status);
                    told = 0;
                } else if (arrival.what == MESSAGE && arrival.length == sizeof answer && answer.kind == CHECK) {
                    if (answer.number != number) fail("case %zu: answer to %u", at_case, answer.number);
                    if (answer.value[0] != 0) fail("case %zu: %lu bytes wrong there, from %lu on", at_case, answer.value[0], answer.value[1]);
                } else {
                    fail("case %zu: something else came", at_case);
                }
            }
            uint64_t place = 0, found = 0;
            const uint8_t *base = arena + LOCAL - GUARD, *data = arena + LOCAL;
            found = wrong(base, GUARD, OVERWRITTEN, number, 0, base, found, &place);
            found = wrong(data, test.bytes, writes ? CLIENT : SERVER, number, writes ? 0 : test.offset + skip, base, found, &place);
            found = wrong(data + test.bytes, GUARD, OVERWRITTEN, number, GUARD + test.bytes, base, found, &place);
            if (found) fail("case %zu: %lu bytes wrong here, from %lu on", at_case, found, place);
            done++;
            bytes += test.bytes;
        }
        int used_up = (test.offer & RDS_RDMA_USE_ONCE) && !silent;
        demand(FREE, cookie, RDS_RDMA_INVALIDATE, 0, used_up ? EINVAL : 0);
        if (test.aim == FREED || test.aim == USED) {
            local_memory(&test, number, 1);
            error = operate(&test, cookie, skip, &check);
            if (error) fail("case %zu: stale operation: %s", at_case, strerror(error));
            int status = status_of_operation();
            if (status != RDS_RDMA_REMOTE_ERROR) fail("case %zu: status %d of a stale cookie", at_case, status);
            failed++;
            demand(CHECK, check.value[0], check.value[1], check.value[2], 0);
        }
    }
    // Without being asked for, a failure is told by RDS_RECVERR: in Linux when the message is given up, as dropped.
    set(fd, SOL_RDS, RDS_RECVERR, 1);
    struct test_case test = {.length = 1001, .bytes = 1001, .flags = RDS_RDMA_READWRITE};
    struct message check = {CHECK, (uint32_t)at_case, {0}};
    local_memory(&test, 0, 0);
    int unasked = 0;
    if (!offered_only) {
        if (operate(&test, 0x00000100fffffe00, 0, &check)) fail_by("operation without a notification");
        unasked = status_of_operation();
    }
    demand(DONE, 0, 0, 0, 0);
    printf("@rdma done=%lu bytes=%lu failed=%lu unasked=%d\n", done, bytes, failed, unasked);
}

// ---- The client that fills a port

enum { LENGTH = 3000, FULL_BUFFER = 20000, OPEN_BUFFER = 100000, BESIDE = 20, LATER = 5 };
static uint64_t accepted, refused, updates;

// 0, ENOBUFS, or EAGAIN after a moment.
static int message_to(int socket, uint16_t port, uint64_t number) {
    uint8_t data[LENGTH];
    fill(data, LENGTH, CLIENT, (uint32_t)number, 0);
    int error = try_send(socket, address(peer, port), data, LENGTH, 0, NULL, 0);
    if (error == EAGAIN) usleep(1000);
    accepted += error == 0;
    refused += error == ENOBUFS;
    if (error && error != EAGAIN && error != ENOBUFS) fail("message to port %u: %s", port, strerror(error));
    return error;
}

static void must_go(int socket, uint16_t port, uint64_t number) {
    for (uint64_t end = now_ms() + LIMIT_MS;;) {
        int error = message_to(socket, port, number);
        if (error == 0) return;
        if (error == ENOBUFS || now_ms() > end) fail("port %u takes no message: %s", port, strerror(error));
    }
}

static uint64_t until_full(int socket, uint64_t first) {
    uint64_t next = first, end = now_ms() + LIMIT_MS;
    for (;;) {
        int error = message_to(socket, FULL, next);
        if (error == 0) next++;
        if (error == ENOBUFS) break;
        if (now_ms() > end) fail("the port does not close after %lu messages", next - first);
    }
    if ((next - first) * LENGTH <= FULL_BUFFER) fail("the port closed after %lu messages", next - first);
    return next;
}

// A request whose answer may come before or after the one congestion update that is due.
static void demand_update(uint32_t kind, uint32_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    struct message answer;
    struct arrival arrival = {0};
    int answered = 0, updated = 0;
    ask(kind, number, a, b, c, d);
    while (!answered || !updated) {
        receive(fd, &answer, sizeof answer, &arrival, answered ? "an update" : "an answer");
        if (arrival.what == UPDATE && !updated) {
            if (arrival.ports != 1ULL << FULL % 64) fail("update %#lx", arrival.ports);
            updated = 1;
            updates++;
        } else if (arrival.what == MESSAGE && !answered && answer.kind == kind && answer.number == number) {
            if (answer.value[0] || answer.value[1]) fail("kind %u: %lu wrong, more: %lu", kind, answer.value[0], answer.value[1]);
            answered = 1;
        } else {
            fail("something else came");
        }
    }
}

static void congestion(uint64_t rounds) {
    fd = bound(CLIENT_PORT);
    int other = bound(CLIENT_PORT + 1);
    set(fd, SOL_RDS, RDS_CONG_MONITOR, 1);
    uint64_t next = 0;
    for (at_case = 0; at_case < rounds; at_case++) {
        uint32_t number = (uint32_t)at_case;
        struct arrival arrival = {0};
        demand(HOLD, FULL, FULL_BUFFER, 0, 0);
        demand(HOLD, OPEN, OPEN_BUFFER, 0, 0);
        uint64_t first = next;
        next = until_full(fd, first);
        if (message_to(fd, FULL, next) != ENOBUFS || message_to(other, FULL, next) != ENOBUFS) fail("the full port is open");
        for (uint64_t n = 0; n < BESIDE; n++) must_go(fd, OPEN, n);
        ask(RELEASE, number, OPEN, BESIDE, LENGTH, 0);
        struct message answer = answer_of(RELEASE, number, &arrival);
        if (arrival.what != MESSAGE || answer.value[0] || answer.value[1]) fail("messages beside: %lu wrong", answer.value[0]);
        if (message_to(fd, FULL, next) != ENOBUFS || message_to(other, FULL, next) != ENOBUFS) fail("the full port is open");
        demand_update(RELEASE, number, FULL, next - first, LENGTH, first);
        first = next;
        for (; next < first + LATER; next++) must_go(fd, FULL, next);
        ask(RELEASE, number, FULL, LATER, LENGTH, first);
        answer = answer_of(RELEASE, number, &arrival);
        if (answer.value[0] || answer.value[1]) fail("messages after: %lu wrong", answer.value[0]);
        // Closing opens it, too.
        next = until_full(fd, next);
        demand_update(CLOSE, number, FULL, 0, 0, 0);
        must_go(other, FULL, next++);
        demand(CLOSE, OPEN, 0, 0, 0);
    }
    demand(DONE, 0, 0, 0, 0);
    printf("@congestion times=%lu messages=%lu refused=%lu updates=%lu\n", rounds, accepted, refused, updates);
}

#ifndef RDS_SOLARIS
// mlx5_ib knows no atomic operations of the kernel's own: the message stays in the queue until its socket closes.
static void atomic(void) {
    fd = bound(CLIENT_PORT);
    struct arrival arrival = {0};
    ask(OFFER, 0, FIRST_OFFSET, 64, RDS_RDMA_INVALIDATE, 0);
    struct message answer = answer_of(OFFER, 0, &arrival);
    uint64_t old = 0;
    struct rds_atomic_args args = {
        .cookie = arrival.cookie,
        .local_addr = (uintptr_t)&old,
        .fadd = {.add = 1},
        .flags = RDS_RDMA_NOTIFY_ME,
        .user_token = 1,
    };
    int error = try_send(fd, address(peer, PORT), &answer, sizeof answer, RDS_CMSG_ATOMIC_FADD, &args, sizeof args);
    struct pollfd poll_for = {fd, POLLIN, 0};
    poll(&poll_for, 1, 2000);
    int came = try_receive(fd, buffer, ARENA, &arrival) == 0;
    close(fd);
    fd = bound(CLIENT_PORT);
    demand(CHECK, FIRST_OFFSET, 0, 0, 0);
    demand(DONE, 0, 0, 0, 0);
    printf("@atomic errno=%d came=%d status=%d\n", error, came, came && arrival.what == STATUS ? arrival.status : -1);
}
#else
static void atomic(void) { fail("atomic operations are Linux's"); }
#endif

int main(int count, char **words) {
    if (!addresses(count, words)) {
        printf("usage: rds_rdma server|rdma|offered|congestion|atomic OWN [PEER [ROUNDS]]\n");
        return 2;
    }
    uint64_t rounds = count > 4 ? strtoull(words[4], NULL, 10) : 1;
    void *memory[2];
    for (int i = 0; i < 2; i++)
        if (posix_memalign(&memory[i], PAGE, ARENA + PAGE)) fail("no memory");
    arena = memory[0];
    buffer = memory[1];
    memset(arena, 0, ARENA + PAGE);
    if (!strcmp(words[1], "server")) {
        serve();
    } else if (!strcmp(words[1], "rdma") && count > 3) {
        rdma(rounds, 0);
    } else if (!strcmp(words[1], "offered") && count > 3) {
        rdma(rounds, 1);
    } else if (!strcmp(words[1], "congestion") && count > 3) {
        congestion(rounds);
    } else if (!strcmp(words[1], "atomic") && count > 3) {
        atomic();
    } else {
        fail("nothing is called %s", words[1]);
    }
    printf("@done\n");
    return 0;
}
