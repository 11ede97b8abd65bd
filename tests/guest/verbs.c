// The program of tests/workload/src/verbs on Linux: one reliable connection without a connection manager. The sides take turns at
// sends, writes, reads and atomics and compare every byte.
//
//   verbs server|client qpn=HEX psn=HEX lid=N gid=IPV6 rkey=HEX addr=HEX      (the peer's values)
//   verbs server|client                                             (they come as a line of the same words on standard input)
//
// On Ethernet the peers reach each other by their link-local GIDs for RoCE v2, and lid= is 0.
//
// Prints its own values as a line "@verbs ...", "@result op=... verified=N" for each operation, and "@done verified=true".

#include "payload.h"
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Parts of the memory, of LARGEST bytes each. The peer writes to the target, reads from the source and has its atomics on the
// word.
enum area { TARGET, SOURCE, WORD, OUT, IN, FETCHED, RECEIVED, NOTICE, AREAS };
enum { LARGEST = 65536, SERVER = 1, CLIENT = 2 };
enum op { SEND = 1, WRITE, READ, COMPARE_SWAP, REFUSED_SWAP, FETCH_ADD };
static const char *const NAMES[] = {"", "send", "write", "read", "compare_swap", "refused_swap", "fetch_add"};

static int self, other;
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *region;
static uint8_t *memory;
static uint32_t peer_rkey;
static uint64_t peer_address;
// Length of the message that arrived before it was waited for, or -1.
static long arrived = -1;

static uint8_t *area(enum area part) { return memory + (size_t)part * LARGEST; }

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n@done verified=false\n");
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static size_t size_of(unsigned m) {
    static const uint32_t first[] = {0,    1,    2,    3,    4,    63,   64,   65,   255,  256,  257,   1023,  1024,
                                     1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 16384, 32768, 65535, 65536};
    return m < sizeof first / sizeof first[0] ? first[m] : m * 7919 % 65537;
}

static uint64_t stream(int sender, enum op op) { return (uint64_t)sender << 8 | op; }

static void check(const uint8_t *at, enum op op, unsigned number) {
    size_t wrong = payload_mismatch(at, size_of(number), payload(0, stream(other, op), number));
    if (wrong < size_of(number)) fail("%s %u: byte %zu of %zu is wrong", NAMES[op], number, wrong, size_of(number));
}

static void post_receive(void) {
    struct ibv_sge place = {(uintptr_t)area(RECEIVED), LARGEST, region->lkey};
    struct ibv_recv_wr receive = {.sg_list = &place, .num_sge = 1}, *bad;
    if (ibv_post_recv(qp, &receive, &bad)) fail("post receive: %s", strerror(errno));
}

// Returns the next success: of an own request, or of the one message that may arrive.
static struct ibv_wc completion(void) {
    double deadline = seconds() + 60;
    for (;;) {
        struct ibv_wc wc;
        int found = ibv_poll_cq(cq, 1, &wc);
        if (found < 0) fail("poll: %d", found);
        if (found == 0 && seconds() > deadline) fail("no completion within 60 s");
        if (found == 0) continue;
        if (wc.status != IBV_WC_SUCCESS) fail("completion: %s (vendor %#x)", ibv_wc_status_str(wc.status), wc.vendor_err);
        return wc;
    }
}

static void post(enum ibv_wr_opcode opcode, enum area local, size_t size, enum area there, uint64_t compare_add, uint64_t swap) {
    struct ibv_sge place = {(uintptr_t)area(local), (uint32_t)size, region->lkey};
    uint64_t remote = peer_address + (uint64_t)there * LARGEST;
    struct ibv_send_wr request = {
        .wr_id = 1000, .sg_list = &place, .num_sge = size ? 1 : 0, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = remote;
        request.wr.atomic.rkey = peer_rkey;
        request.wr.atomic.compare_add = compare_add;
        request.wr.atomic.swap = swap;
    } else {
        request.wr.rdma.remote_addr = remote;
        request.wr.rdma.rkey = peer_rkey;
    }
    struct ibv_send_wr *bad;
    if (ibv_post_send(qp, &request, &bad)) fail("post send: %s", strerror(errno));
    // The peer may answer before its acknowledgement is counted.
    for (;;) {
        struct ibv_wc wc = completion();
        if (!(wc.opcode & IBV_WC_RECV)) return;
        if (arrived >= 0) fail("two messages in a turn");
        arrived = wc.byte_len;
    }
}

// Waits for the peer's message of this length.
static void receive(size_t length) {
    if (arrived < 0) {
        struct ibv_wc wc = completion();
        if (!(wc.opcode & IBV_WC_RECV)) fail("a completion that no request has");
        arrived = wc.byte_len;
    }
    if ((size_t)arrived != length) fail("a message of %ld bytes instead of %zu", arrived, length);
    arrived = -1;
}

// Returns the word after a turn, and its operand.
static uint64_t apply(enum op op, unsigned number, uint64_t word, uint64_t *operand) {
    *operand = mix(number + 1);
    if (op == COMPARE_SWAP) return *operand;
    if (op == FETCH_ADD) return word + *operand;
    *operand = 0;
    return word;
}

static void expect(const void *at, uint64_t expected, enum op op, unsigned number) {
    uint64_t found = *(const volatile uint64_t *)at;
    if (found != expected)
        fail("%s %u: the word is %#lx, not %#lx", NAMES[op], number, (unsigned long)found, (unsigned long)expected);
}

// Takes this side's turn: the operation, and a message that says so. A send is its own message.
static void act(enum op op, unsigned number, uint64_t word) {
    size_t size = size_of(number);
    uint64_t notice[2] = {op, number}, operand;
    apply(op, number, word, &operand);
    if (op == SEND || op == WRITE) payload_fill(area(OUT), size, payload(0, stream(self, op), number));
    switch (op) {
    case SEND:
        post(IBV_WR_SEND, OUT, size, 0, 0, 0);
        return;
    case WRITE:
        post(IBV_WR_RDMA_WRITE, OUT, size, TARGET, 0, 0);
        break;
    case READ:
        memset(area(IN), 0xee, size);
        post(IBV_WR_RDMA_READ, IN, size, SOURCE, 0, 0);
        check(area(IN), op, number);
        break;
    case FETCH_ADD:
        post(IBV_WR_ATOMIC_FETCH_AND_ADD, FETCHED, 8, WORD, operand, 0);
        expect(area(FETCHED), word, op, number);
        break;
    default:
        post(IBV_WR_ATOMIC_CMP_AND_SWP, FETCHED, 8, WORD, op == COMPARE_SWAP ? word : ~word, operand);
        expect(area(FETCHED), word, op, number);
    }
    memcpy(area(NOTICE), notice, sizeof notice);
    post(IBV_WR_SEND, NOTICE, sizeof notice, 0, 0, 0);
}

static void offer(unsigned number) {
    payload_fill(area(SOURCE), size_of(number), payload(0, stream(self, READ), number));
}

// Compares what the peer did in its turn.
static void verify(enum op op, unsigned number, uint64_t word) {
    uint64_t notice[2] = {op, number}, operand;
    receive(op == SEND ? size_of(number) : sizeof notice);
    if (op != SEND && memcmp(area(RECEIVED), notice, sizeof notice)) fail("%s %u: another message", NAMES[op], number);
    if (op == SEND) check(area(RECEIVED), op, number);
    else if (op == WRITE) check(area(TARGET), op, number);
    else if (op == READ) offer(number + 1);
    else expect(area(WORD), apply(op, number, word, &operand), op, number);
    post_receive();
}

static void exchange(void) {
    uint64_t word = 0, operand;
    for (enum op op = SEND; op <= FETCH_ADD; op++) {
        unsigned count = op <= READ ? 100 : 50;
        uint64_t bytes = 0;
        for (unsigned number = 0; number < count; number++) {
            for (int turn = CLIENT; turn >= SERVER; turn--) (turn == self ? act : verify)(op, number, word);
            word = apply(op, number, word, &operand);
            bytes += op <= READ ? size_of(number) : 8;
        }
        printf("@result op=%s messages=%u bytes=%lu verified=%u\n", NAMES[op], count, (unsigned long)bytes, count);
    }
    // The acknowledgement of the peer's last message may have to be sent again.
    usleep(700000);
}

// Returns the value of `key=` among the words.
static const char *text(int count, char **words, const char *key) {
    size_t length = strlen(key);
    for (int i = 0; i < count; i++)
        if (!strncmp(words[i], key, length) && words[i][length] == '=') return words[i] + length + 1;
    printf("no %s=\n", key);
    exit(2);
}

static uint64_t number(int count, char **words, const char *key, int base) {
    const char *value = text(count, words, key);
    char *end;
    uint64_t parsed = strtoull(value, &end, base);
    if (*end == 0 && end != value) return parsed;
    printf("%s=%s is no number\n", key, value);
    exit(2);
}

// The index of the link-local GID for RoCE v2, or 0 on InfiniBand.
static int own_gid(struct ibv_context *context, const struct ibv_port_attr *port) {
    if (port->link_layer != IBV_LINK_LAYER_ETHERNET) return 0;
    for (int index = 0; index < port->gid_tbl_len; index++) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(context, 1, (uint32_t)index, &entry, 0)) continue;
        if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.gid.raw[0] == 0xfe && entry.gid.raw[1] == 0x80) return index;
    }
    fail("no link-local GID for RoCE v2");
    return -1;
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 2 || (strcmp(words[1], "server") && strcmp(words[1], "client"))) {
        printf("usage: verbs server|client [qpn= psn= lid= rkey= addr=]\n");
        return 2;
    }
    self = strcmp(words[1], "server") ? CLIENT : SERVER;
    other = SERVER + CLIENT - self;

    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    if (context == NULL) fail("no device: %s", strerror(errno));
    struct ibv_port_attr port;
    union ibv_gid gid;
    if (ibv_query_port(context, 1, &port)) fail("query port: %s", strerror(errno));
    int gid_index = own_gid(context, &port);
    if (ibv_query_gid(context, 1, gid_index, &gid)) fail("query gid: %s", strerror(errno));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    memory = aligned_alloc(4096, AREAS * LARGEST);
    if (pd == NULL || memory == NULL) fail("no memory");
    memset(memory, 0, AREAS * LARGEST);
    offer(0);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    region = ibv_reg_mr(pd, memory, AREAS * LARGEST, access);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    if (region == NULL || cq == NULL) fail("register memory, create cq: %s", strerror(errno));
    struct ibv_qp_init_attr make = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    qp = ibv_create_qp(pd, &make);
    if (qp == NULL) fail("create qp: %s", strerror(errno));
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access};
    if (ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("to INIT: %s", strerror(errno));
    post_receive();

    uint32_t psn = (uint32_t)(getpid() * 2654435761u) & 0xffffff;
    printf("@verbs qpn=%x psn=%x lid=%u gid=", qp->qp_num, psn, port.lid);
    for (int i = 0; i < 16; i += 2) printf("%s%02x%02x", i ? ":" : "", gid.raw[i], gid.raw[i + 1]);
    printf(" rkey=%x addr=%lx\n", region->rkey, (unsigned long)(uintptr_t)memory);

    // The peer's values.
    char line[512], *heard[16];
    int told = count - 2;
    char **values = words + 2;
    if (told == 0) {
        if (fgets(line, sizeof line, stdin) == NULL) fail("no values of the peer");
        for (char *word = strtok(line, " \n"); word && told < 16; word = strtok(NULL, " \n")) heard[told++] = word;
        values = heard;
    }
    uint32_t peer_qpn = (uint32_t)number(told, values, "qpn", 16), peer_psn = (uint32_t)number(told, values, "psn", 16);
    uint16_t peer_lid = (uint16_t)number(told, values, "lid", 10);
    peer_rkey = (uint32_t)number(told, values, "rkey", 16);
    peer_address = number(told, values, "addr", 16);

    attributes = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = port.active_mtu,
        .dest_qp_num = peer_qpn,
        .rq_psn = peer_psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = peer_lid, .port_num = 1},
    };
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        attributes.ah_attr.is_global = 1;
        // The peer's frames are not jumbo frames.
        attributes.path_mtu = IBV_MTU_1024;
        attributes.ah_attr.grh = (struct ibv_global_route){.sgid_index = (uint8_t)gid_index, .hop_limit = 64};
        if (inet_pton(AF_INET6, text(told, values, "gid"), &attributes.ah_attr.grh.dgid) != 1) fail("gid= is no IPv6 address");
    }
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
               IBV_QP_MIN_RNR_TIMER;
    if (ibv_modify_qp(qp, &attributes, mask)) fail("to RTR: %s", strerror(errno));
    // How long to wait for an acknowledgement, as its code; the environment may have a shorter one.
    const char *shorter = getenv("ACK_TIMEOUT");
    uint8_t timeout = shorter ? (uint8_t)(atoi(shorter) & 31) : 18;
    attributes = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = timeout, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (ibv_modify_qp(qp, &attributes, mask)) fail("to RTS: %s", strerror(errno));

    exchange();
    if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(region) ||
        ibv_dealloc_pd(pd) || ibv_close_device(context))
        fail("tear-down: %s", strerror(errno));
    ibv_free_device_list(list);
    printf("@done verified=true\n");
    return 0;
}
