// The other side of the unikernel's `app=verbs`: one reliable connection without a connection manager; messages, writes,
// reads and atomics both ways in lockstep, every byte checked.
//
//   verbs server|client qpn=HEX psn=HEX lid=N rkey=HEX addr=HEX      (the peer's values)
//   verbs server|client                                             (they come as a line of the same words on standard input)
//
// Prints its own values as a line "@verbs ...", "@result op=... verified=N" for each operation, and "@done verified=true".

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// The region that the peer reaches: it writes to the target, reads from the source; behind them the word for atomics.
enum { TARGET = 0, SOURCE = 0x10000, WORD = 0x20000, REGION = 0x21000 };
enum { RECEIVES = 16, LARGEST = 65536, MESSAGES = 100, ATOMICS = 50, SERVER = 1, CLIENT = 2 };
enum kind { HELLO = 1, WRITTEN, READY, SWAPPED, ADDED, DONE };
enum phase { SEND = 1, WRITE, READ };

static int self, other;
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *region, *private_region;
static uint8_t *shared, *mine;
static uint32_t peer_rkey;
static uint64_t peer_address;
// Own memory: the receives' buffers, then one for what is sent, one for what is read, and a word that atomics return.
static uint8_t *out, *in;
static volatile uint64_t *returned;
// What has been received and not looked at, in order.
static struct { uint64_t slot; uint32_t length; } waiting[RECEIVES];
static unsigned waiting_count;

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

static uint8_t pattern(uint64_t message, int sender, size_t i) {
    return (uint8_t)(i * 31 + message * 7 + (unsigned)sender * 13 + (i >> 8));
}

static size_t size_of(unsigned m) {
    static const uint32_t first[] = {0,    1,    2,    3,    4,    63,   64,   65,   255,  256,  257,   1023,  1024,
                                     1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 16384, 32768, 65535, 65536};
    return m < sizeof first / sizeof first[0] ? first[m] : m * 7919 % 65537;
}

static void fill(uint8_t *at, uint64_t message, size_t size) {
    for (size_t i = 0; i < size; i++) at[i] = pattern(message, self, i);
}

static void check(const volatile uint8_t *at, uint64_t message, size_t size, const char *what) {
    for (size_t i = 0; i < size; i++)
        if (at[i] != pattern(message, other, i))
            fail("%s, message %lu: byte %zu of %zu is %#x instead of %#x", what, (unsigned long)message, i, size, at[i],
                 pattern(message, other, i));
}

static void post_receive(uint64_t slot) {
    struct ibv_sge place = {(uintptr_t)(mine + slot * LARGEST), LARGEST, private_region->lkey};
    struct ibv_recv_wr receive = {.wr_id = slot, .sg_list = &place, .num_sge = 1}, *bad;
    if (ibv_post_recv(qp, &receive, &bad)) fail("post receive: %s", strerror(errno));
}

// Takes completions until the own request is done (`request`) or a message has come (not `request`).
static void wait_for(int request) {
    double deadline = seconds() + 60;
    while (request || waiting_count == 0) {
        struct ibv_wc wc;
        int found = ibv_poll_cq(cq, 1, &wc);
        if (found < 0) fail("poll: %d", found);
        if (found == 0) {
            if (seconds() > deadline) fail("no completion within 60 s");
            continue;
        }
        if (wc.status != IBV_WC_SUCCESS) fail("completion: %s (vendor %#x)", ibv_wc_status_str(wc.status), wc.vendor_err);
        if (wc.opcode & IBV_WC_RECV) {
            if (waiting_count == RECEIVES) fail("more messages than were expected");
            waiting[waiting_count].slot = wc.wr_id;
            waiting[waiting_count++].length = wc.byte_len;
        } else if (request) {
            return;
        } else {
            fail("a completion that nobody expects");
        }
    }
}

static void post(enum ibv_wr_opcode opcode, void *local, size_t size, uint64_t remote, uint64_t compare_add, uint64_t swap) {
    struct ibv_mr *mr = (uint8_t *)local >= shared && (uint8_t *)local < shared + REGION ? region : private_region;
    struct ibv_sge place = {(uintptr_t)local, (uint32_t)size, mr->lkey};
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
    wait_for(1);
}

// The next message's slot; `length` is what it has to have.
static uint64_t next_message(size_t length) {
    if (waiting_count == 0) wait_for(0);
    uint64_t slot = waiting[0].slot;
    if (waiting[0].length != length) fail("a message of %u bytes instead of %zu", waiting[0].length, length);
    memmove(&waiting[0], &waiting[1], --waiting_count * sizeof waiting[0]);
    return slot;
}

static void tell(enum kind kind, uint64_t number) {
    memset(out, 0, 16);
    out[0] = (uint8_t)kind;
    memcpy(out + 8, &number, 8);
    post(IBV_WR_SEND, out, 16, 0, 0, 0);
}

static void hear(enum kind kind, uint64_t number) {
    uint64_t slot = next_message(16), told;
    const uint8_t *message = mine + slot * LARGEST;
    memcpy(&told, message + 8, 8);
    if (message[0] != kind || told != number)
        fail("control message %u, %lu instead of %u, %lu", message[0], (unsigned long)told, kind, (unsigned long)number);
    post_receive(slot);
}

static void result(const char *operation, unsigned messages, uint64_t bytes) {
    printf("@result op=%s messages=%u bytes=%lu verified=%u\n", operation, messages, (unsigned long)bytes, messages);
}

static void send_one(unsigned m) {
    fill(out, SEND * 1000 + m, size_of(m));
    post(IBV_WR_SEND, out, size_of(m), 0, 0, 0);
}

static void receive_one(unsigned m) {
    uint64_t slot = next_message(size_of(m));
    check(mine + slot * LARGEST, SEND * 1000 + m, size_of(m), "send");
    post_receive(slot);
}

static void write_one(unsigned m) {
    fill(out, WRITE * 1000 + m, size_of(m));
    post(IBV_WR_RDMA_WRITE, out, size_of(m), peer_address + TARGET, 0, 0);
    tell(WRITTEN, m);
}

static void written_one(unsigned m) {
    hear(WRITTEN, m);
    check(shared + TARGET, WRITE * 1000 + m, size_of(m), "write");
}

static void offer_one(unsigned m) {
    fill(shared + SOURCE, READ * 1000 + m, size_of(m));
    tell(READY, m);
}

static void read_one(unsigned m) {
    hear(READY, m);
    memset(in, 0xee, size_of(m));
    post(IBV_WR_RDMA_READ, in, size_of(m), peer_address + SOURCE, 0, 0);
    check(in, READ * 1000 + m, size_of(m), "read");
}

static uint64_t word_value(unsigned k) { return 0x0102030405060708ull * (k + 1); }
static uint64_t addend(unsigned m) { return 0x0000000100000001ull * (m + 1); }

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap) {
    *returned = 0;
    post(opcode, (void *)returned, 8, peer_address + WORD, compare_add, swap);
    return *returned;
}

static void expect(uint64_t found, uint64_t expected, const char *what, unsigned m) {
    if (found != expected)
        fail("%s %u: %#lx instead of %#lx", what, m, (unsigned long)found, (unsigned long)expected);
}

static uint64_t own_word(void) { return *(volatile uint64_t *)(shared + WORD); }

static void swap_one(unsigned m) {
    expect(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, word_value(m), word_value(m + 1)), word_value(m), "swap", m);
    expect(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, ~word_value(m), 0), word_value(m + 1), "swap without match", m);
    tell(SWAPPED, m);
}

static void swapped_one(unsigned m) {
    hear(SWAPPED, m);
    expect(own_word(), word_value(m + 1), "own word after swap", m);
}

static void add_one(unsigned m, uint64_t before) {
    expect(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, addend(m), 0), before, "add", m);
    tell(ADDED, m);
}

static void added_one(unsigned m, uint64_t after) {
    hear(ADDED, m);
    expect(own_word(), after, "own word after add", m);
}

static void exchange(void) {
    uint64_t bytes = 0;
    int client = self == CLIENT;
    if (client) tell(HELLO, 0);
    hear(HELLO, 0);
    if (!client) tell(HELLO, 0);
    for (unsigned m = 0; m < MESSAGES; m++) bytes += size_of(m);
    for (unsigned m = 0; m < MESSAGES; m++) {
        if (client) send_one(m);
        receive_one(m);
        if (!client) send_one(m);
    }
    result("send", MESSAGES, bytes);
    for (unsigned m = 0; m < MESSAGES; m++) {
        if (client) write_one(m);
        written_one(m);
        if (!client) write_one(m);
    }
    result("write", MESSAGES, bytes);
    for (unsigned m = 0; m < MESSAGES; m++) {
        if (!client) offer_one(m);
        read_one(m);
        if (client) offer_one(m);
    }
    result("read", MESSAGES, bytes);
    for (unsigned m = 0; m < ATOMICS; m++) {
        if (client) swap_one(m);
        swapped_one(m);
        if (!client) swap_one(m);
    }
    result("compare_swap", ATOMICS, ATOMICS * 8);
    uint64_t value = word_value(ATOMICS);
    for (unsigned m = 0; m < ATOMICS; m++) {
        if (client) add_one(m, value);
        added_one(m, value + addend(m));
        if (!client) add_one(m, value);
        value += addend(m);
    }
    result("fetch_add", ATOMICS, ATOMICS * 8);
    if (client) tell(DONE, 0);
    hear(DONE, 0);
    if (!client) tell(DONE, 0);
    // The acknowledgement of the peer's last message may have to be sent again, on either side.
    usleep(700000);
}

// The value of `key=` among the words.
static uint64_t number(int count, char **words, const char *key, int base) {
    size_t length = strlen(key);
    for (int i = 0; i < count; i++)
        if (!strncmp(words[i], key, length) && words[i][length] == '=') {
            char *end;
            uint64_t value = strtoull(words[i] + length + 1, &end, base);
            if (*end == 0 && end != words[i] + length + 1) return value;
        }
    printf("no %s=\n", key);
    exit(2);
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
    if (ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, 0, &gid)) fail("query port: %s", strerror(errno));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    size_t own_size = (RECEIVES + 2) * LARGEST + 64;
    shared = aligned_alloc(4096, REGION);
    mine = aligned_alloc(4096, own_size);
    if (pd == NULL || shared == NULL || mine == NULL) fail("no memory");
    memset(shared, 0, REGION);
    memset(mine, 0, own_size);
    out = mine + RECEIVES * LARGEST;
    in = out + LARGEST;
    returned = (volatile uint64_t *)(in + LARGEST);
    uint64_t first = word_value(0);
    memcpy(shared + WORD, &first, 8);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    region = ibv_reg_mr(pd, shared, REGION, access);
    private_region = ibv_reg_mr(pd, mine, own_size, IBV_ACCESS_LOCAL_WRITE);
    cq = ibv_create_cq(context, 2 * RECEIVES, NULL, NULL, 0);
    if (region == NULL || private_region == NULL || cq == NULL) fail("register memory, create cq: %s", strerror(errno));
    struct ibv_qp_init_attr make = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
    };
    qp = ibv_create_qp(pd, &make);
    if (qp == NULL) fail("create qp: %s", strerror(errno));
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access};
    if (ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("to INIT: %s", strerror(errno));
    for (uint64_t slot = 0; slot < RECEIVES; slot++) post_receive(slot);

    uint32_t psn = (uint32_t)(getpid() * 2654435761u) & 0xffffff;
    printf("@verbs qpn=%x psn=%x lid=%u gid=", qp->qp_num, psn, port.lid);
    for (int i = 0; i < 16; i += 2) printf("%s%02x%02x", i ? ":" : "", gid.raw[i], gid.raw[i + 1]);
    printf(" rkey=%x addr=%lx\n", region->rkey, (unsigned long)(uintptr_t)shared);

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
    if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(region) || ibv_dereg_mr(private_region) ||
        ibv_dealloc_pd(pd) || ibv_close_device(context))
        fail("tear-down: %s", strerror(errno));
    ibv_free_device_list(list);
    printf("@done verified=true\n");
    return 0;
}
