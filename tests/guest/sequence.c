// Sequence-numbered messages over an unreliable service: what arrives has to be whole, in order and at most once; how many
// were lost is for the fabric to say.
//
//   sequence ud|uc receive COUNT SIZE           listens at TCP port 18600
//   sequence ud|uc send COUNT SIZE HOST
//
// Both end with a line "@sequence sent=N" or "@sequence received=N wrong=N".

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TCP_PORT = 18600, Q_KEY = 0x11111111, HEADER = 40, BATCH = 64, QUIET_MS = 1500 };

struct peer {
    uint32_t qpn;
    uint32_t psn;
    uint32_t lid;
};

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(": %s\n", strerror(errno));
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

// Byte `i` of message `number`, behind the number itself.
static uint8_t pattern(uint64_t number, size_t i) {
    return i < 8 ? (uint8_t)(number >> (8 * i)) : (uint8_t)(i * 31 + number * 7 + (i >> 8));
}

static void transfer(int tcp, void *data, size_t length, int sending) {
    char *at = data;
    while (length > 0) {
        ssize_t done = sending ? write(tcp, at, length) : read(tcp, at, length);
        if (done <= 0) fail("the peer is gone");
        at += done;
        length -= (size_t)done;
    }
}

static int connect_or_accept(const char *host) {
    if (host == NULL) {
        int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1)) fail("cannot listen");
        int tcp = accept(listener, NULL, NULL);
        if (tcp < 0) fail("accept");
        close(listener);
        return tcp;
    }
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, NULL, &hints, &found)) fail("no host %s", host);
    struct sockaddr_in address = *(struct sockaddr_in *)found->ai_addr;
    address.sin_port = htons(TCP_PORT);
    int tcp = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(tcp, (struct sockaddr *)&address, sizeof address)) fail("cannot connect to %s", host);
    return tcp;
}

int main(int count_of_words, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count_of_words < 5) {
        printf("usage: sequence ud|uc receive|send COUNT SIZE [HOST]\n");
        return 2;
    }
    int datagrams = !strcmp(words[1], "ud"), sending = !strcmp(words[2], "send");
    uint64_t count = strtoull(words[3], NULL, 10);
    size_t size = strtoull(words[4], NULL, 10), slot = size + HEADER;
    if (size < 8 || count == 0 || count > 4096) {
        printf("at most 4096 messages of at least 8 bytes\n");
        return 2;
    }

    int devices = 0;
    struct ibv_device **list = ibv_get_device_list(&devices);
    if (list == NULL || devices == 0) fail("no device");
    struct ibv_context *context = ibv_open_device(list[0]);
    if (context == NULL) fail("cannot open the device");
    struct ibv_port_attr port;
    if (ibv_query_port(context, 1, &port)) fail("query port");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    if (pd == NULL) fail("alloc pd");
    size_t slots = sending ? BATCH : count;
    uint8_t *memory = calloc(slots, slot);
    struct ibv_mr *mr = memory ? ibv_reg_mr(pd, memory, slots * slot, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (mr == NULL) fail("register memory");
    struct ibv_cq *cq = ibv_create_cq(context, (int)slots + 1, NULL, NULL, 0);
    if (cq == NULL) fail("create cq");
    struct ibv_qp_init_attr make = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_UC,
        .cap = {.max_send_wr = BATCH, .max_recv_wr = sending ? 1 : (uint32_t)count, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &make);
    if (qp == NULL) fail("create qp");
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = Q_KEY};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (ibv_modify_qp(qp, &attributes, mask | (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS))) fail("to INIT");
    // All that will be received is posted before the sender hears of us: nothing is lost for lack of a receive.
    for (uint64_t n = 0; !sending && n < count; n++) {
        struct ibv_sge place = {(uintptr_t)(memory + n * slot), (uint32_t)slot, mr->lkey};
        struct ibv_recv_wr receive = {.wr_id = n, .sg_list = &place, .num_sge = 1}, *bad;
        if (ibv_post_recv(qp, &receive, &bad)) fail("post receive %lu", (unsigned long)n);
    }

    int tcp = connect_or_accept(sending ? (count_of_words > 5 ? words[5] : "guest0") : NULL);
    struct peer own = {qp->qp_num, 0x5a5a5a & 0xffffff, port.lid}, peer;
    transfer(tcp, &own, sizeof own, 1);
    transfer(tcp, &peer, sizeof peer, 0);
    attributes = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = port.active_mtu,
        .dest_qp_num = peer.qpn,
        .rq_psn = peer.psn,
        .ah_attr = {.dlid = (uint16_t)peer.lid, .port_num = 1},
    };
    mask = IBV_QP_STATE | (datagrams ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
    if (ibv_modify_qp(qp, &attributes, mask)) fail("to RTR");
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = own.psn};
    if (ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN)) fail("to RTS");
    struct ibv_ah *ah = NULL;
    if (datagrams && sending) {
        struct ibv_ah_attr address = {.dlid = (uint16_t)peer.lid, .port_num = 1};
        ah = ibv_create_ah(pd, &address);
        if (ah == NULL) fail("create ah");
    }
    char ready = 'r';
    transfer(tcp, &ready, 1, !sending);

    if (sending) {
        for (uint64_t n = 0; n < count;) {
            unsigned posted = 0;
            for (; posted < BATCH && n < count; posted++, n++) {
                uint8_t *bytes = memory + posted * slot;
                for (size_t i = 0; i < size; i++) bytes[i] = pattern(n, i);
                struct ibv_sge place = {(uintptr_t)bytes, (uint32_t)size, mr->lkey};
                struct ibv_send_wr send = {
                    .wr_id = n, .sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
                if (datagrams) {
                    send.wr.ud.ah = ah;
                    send.wr.ud.remote_qpn = peer.qpn;
                    send.wr.ud.remote_qkey = Q_KEY;
                }
                struct ibv_send_wr *bad;
                if (ibv_post_send(qp, &send, &bad)) fail("post send");
            }
            double deadline = seconds() + 30;
            for (unsigned done = 0; done < posted;) {
                struct ibv_wc wc;
                int found = ibv_poll_cq(cq, 1, &wc);
                if (found < 0 || seconds() > deadline) fail("completions of sends");
                if (found == 0) continue;
                if (wc.status != IBV_WC_SUCCESS) fail("send %lu: %s", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
                done++;
            }
        }
        char done = 'd';
        transfer(tcp, &done, 1, 1);
        transfer(tcp, &done, 1, 0);
        printf("@sequence sent=%lu\n", (unsigned long)count);
    } else {
        uint64_t received = 0, wrong = 0, next = 0;
        double quiet_since = 0;
        for (;;) {
            struct ibv_wc wc;
            int found = ibv_poll_cq(cq, 1, &wc);
            if (found < 0) fail("poll");
            if (found > 0) {
                if (wc.status != IBV_WC_SUCCESS) fail("receive: %s", ibv_wc_status_str(wc.status));
                const uint8_t *bytes = memory + wc.wr_id * slot + (datagrams ? HEADER : 0);
                uint64_t number = 0;
                for (int i = 7; i >= 0; i--) number = number << 8 | bytes[i];
                int right = wc.byte_len == size + (datagrams ? HEADER : 0) && number >= next && number < count;
                for (size_t i = 0; right && i < size; i++) right = bytes[i] == pattern(number, i);
                if (right) {
                    next = number + 1;
                } else {
                    printf("message %lu is wrong: %u bytes, number %lu, expected at least %lu\n", (unsigned long)received,
                           wc.byte_len, (unsigned long)number, (unsigned long)next);
                    wrong++;
                }
                received++;
                if (quiet_since != 0) quiet_since = seconds();
                continue;
            }
            char done;
            if (quiet_since == 0 && recv(tcp, &done, 1, MSG_DONTWAIT) == 1) quiet_since = seconds();
            if (quiet_since != 0 && (seconds() - quiet_since) * 1000 > QUIET_MS) break;
        }
        char done = 'd';
        transfer(tcp, &done, 1, 1);
        printf("@sequence received=%lu wrong=%lu\n", (unsigned long)received, (unsigned long)wrong);
    }
    if (ah) ibv_destroy_ah(ah);
    if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(context))
        fail("tear-down");
    ibv_free_device_list(list);
    return 0;
}
