// Many bytes by RDMA between Linux and a unikernel (`app=rds mode=bulk`, kernel/apps/src/rds/bulk.rs) on AF_RDS sockets.
//
//   rds_bulk sink OWN               offers memory for one use, again and again, and compares what is written there
//   rds_bulk write OWN PEER BYTES   writes there
//
// OWN and PEER are IPv4 addresses.

#include "rds_exchange.h"
#include <sys/mman.h>

enum { SLOTS = 4 };

static int fd;

// Offers a slot of the sink's memory, for one use.
static void offer_slot(uint8_t *slots, uint32_t slot, struct sockaddr_in client) {
    struct message offer = {SLOT, slot, {MIB, 0, 0, 0}};
    struct rds_get_mr_args map = {
        .vec = {(uintptr_t)(slots + (size_t)slot * MIB), MIB},
        .flags = RDS_RDMA_USE_ONCE | RDS_RDMA_INVALIDATE,
    };
    int error = send_to(fd, client, &offer, sizeof offer, RDS_CMSG_RDMA_MAP, &map, sizeof map);
    if (error) fail("offer of slot %u: %s", slot, strerror(error));
}

static void bulk_report(uint64_t blocks, uint64_t bytes, uint64_t began) {
    printf("@bulk blocks=%lu bytes=%lu ms=%lu\n", blocks, bytes, now_ms() - began);
}

static void sink(uint8_t *slots) {
    fd = bound(BULK_PORT);
    printf("@rds server\n");
    struct message message;
    struct arrival arrival = {0};
    receive(fd, &message, sizeof message, &arrival, "a client");
    if (arrival.length != sizeof message || message.kind != OFFER) fail("not a client");
    uint64_t blocks = 0, bytes = 0, began = now_ms();
    for (uint32_t slot = 0; slot < SLOTS && slot < message.value[0]; slot++) offer_slot(slots, slot, arrival.from);
    do {
        receive(fd, &message, sizeof message, &arrival, "a block");
        uint64_t length = message.value[1], place = 0;
        if (arrival.what != MESSAGE || arrival.length != sizeof message || message.kind != SLOT || message.number >= SLOTS ||
            length > MIB || message.value[0] != blocks)
            fail("block %lu: not a block", blocks);
        const uint8_t *slot = slots + (size_t)message.number * MIB;
        uint64_t found = wrong(slot, length, CLIENT, (uint32_t)blocks, 0, slot, 0, &place);
        if (found) fail("block %lu: %lu bytes are wrong, from %lu on", blocks, found, place);
        blocks++;
        bytes += length;
        if (!message.value[2]) offer_slot(slots, message.number, arrival.from);
    } while (!message.value[2]);
    struct message last = {DONE, 0, {blocks, bytes, 0, 0}};
    int error = send_to(fd, arrival.from, &last, sizeof last, 0, NULL, 0);
    if (error) fail("the last message: %s", strerror(error));
    bulk_report(blocks, bytes, began);
    // Closing takes back what is not acknowledged.
    sleep(1);
}

static void bulk(uint8_t *slots, uint64_t left) {
    fd = bound(BULK_PORT + 1);
    struct message message = {OFFER, 0, {SLOTS, MIB, 0, 0}};
    int error = send_to(fd, address(peer, BULK_PORT), &message, sizeof message, 0, NULL, 0);
    if (error) fail("begin: %s", strerror(error));
    uint64_t sent = 0, done = 0, bytes = 0, began = now_ms(), cookie[SLOTS];
    int offered[SLOTS] = {0}, busy[SLOTS] = {0}, told = 0;
    struct arrival arrival = {0};
    while (!told || done < sent) {
        receive(fd, &message, sizeof message, &arrival, "an offer");
        if (arrival.what == STATUS) {
            if (arrival.status != RDS_RDMA_SUCCESS) fail("block: status %d", arrival.status);
            busy[arrival.token >> 32] = 0;
            bytes += (uint32_t)arrival.token;
            done++;
        } else if (arrival.has_cookie && message.kind == SLOT && message.number < SLOTS) {
            cookie[message.number] = arrival.cookie;
            offered[message.number] = 1;
        } else if (message.kind == DONE && left == 0) {
            told = 1;
            if (message.value[0] != sent) fail("the peer has seen %lu blocks of %lu", message.value[0], sent);
        } else {
            fail("something else came");
        }
        for (uint64_t slot = 0; slot < SLOTS && left > 0; slot++) {
            if (!offered[slot] || busy[slot]) continue;
            uint64_t length = left < MIB ? left : MIB;
            fill(slots + slot * MIB, length, CLIENT, (uint32_t)sent, 0);
            left -= length;
            struct message behind = {SLOT, (uint32_t)slot, {sent++, length, left == 0, 0}};
            struct rds_iovec piece = {(uintptr_t)(slots + slot * MIB), length};
            struct rds_rdma_args args = {
                .cookie = cookie[slot],
                .remote_vec = {0, length},
                .local_vec_addr = (uintptr_t)&piece,
                .nr_local = 1,
                .flags = RDS_RDMA_READWRITE | RDS_RDMA_NOTIFY_ME,
                .user_token = slot << 32 | length,
            };
            offered[slot] = 0;
            busy[slot] = 1;
            error = send_to(fd, address(peer, BULK_PORT), &behind, sizeof behind, RDS_CMSG_RDMA_ARGS, &args, sizeof args);
            if (error) fail("block %lu: %s", sent - 1, strerror(error));
        }
    }
    bulk_report(done, bytes, began);
}

int main(int count, char **words) {
    if (!addresses(count, words)) {
        printf("usage: rds_bulk sink|write OWN [PEER BYTES]\n");
        return 2;
    }
    void *slots;
    if (posix_memalign(&slots, PAGE, SLOTS * MIB)) fail("no memory");
    // Linux's RDS pins pages and puts them back as if it had not; of a huge page it leaves the pin count, which 6.12 finds when the
    // page is freed ("Bad page state").
    if (madvise(slots, SLOTS * MIB, MADV_NOHUGEPAGE)) fail_by("madvise");
    memset(slots, 0, SLOTS * MIB);
    if (!strcmp(words[1], "sink")) {
        sink(slots);
    } else if (!strcmp(words[1], "write") && count > 4) {
        bulk(slots, strtoull(words[4], NULL, 10));
    } else {
        fail("nothing is called %s", words[1]);
    }
    printf("@done\n");
    return 0;
}
