// What libmlx5 asks of an HCA beyond moving data: windows, invalidation, atomics, changed regions, resized and moderated
// completion queues, shared receive queues' events. Two connected QPs on the first HCA; every step is checked.
//
// Prints "@step NAME" for each step and at the end "@done verified=true".

#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REGION = 0x10000, RECEIVES = 32 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp[2];
static struct ibv_mr *mr;
static uint8_t *memory;
static uint16_t lid;

static void check(int good, const char *format, ...) {
    if (good) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    printf("@failed ");
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n@done verified=false\n");
    fflush(stdout);
    exit(1);
}

static void step(const char *name) {
    printf("@step %s\n", name);
    fflush(stdout);
}

static struct ibv_wc next(struct ibv_cq *from) {
    struct ibv_wc wc;
    for (int i = 0; i < 20000; i++) {
        int got = ibv_poll_cq(from, 1, &wc);
        check(got >= 0, "poll: %d", got);
        if (got == 1) {
            return wc;
        }
        usleep(500);
    }
    check(0, "no completion after ten seconds");
    exit(1);
}

static void expect(enum ibv_wc_status status, const char *what) {
    struct ibv_wc wc = next(cq);
    check(wc.status == status, "%s: %s instead of %s (vendor %#x)", what, ibv_wc_status_str(wc.status),
          ibv_wc_status_str(status), wc.vendor_err);
}

static struct ibv_qp *make_qp(struct ibv_srq *srq) {
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = {.max_send_wr = 64, .max_recv_wr = RECEIVES, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
    };
    struct ibv_qp *made = ibv_create_qp(pd, &attributes);
    check(made != NULL, "ibv_create_qp");
    return made;
}

static void modify(struct ibv_qp *which, struct ibv_qp_attr attributes, int mask) {
    int error = ibv_modify_qp(which, &attributes, mask);
    check(error == 0, "ibv_modify_qp to %d: %d", attributes.qp_state, error);
}

static void ready(struct ibv_qp *which, uint32_t peer) {
    modify(which, (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE);
    modify(which,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1,
                                .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                                                   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND},
           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(which,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7,
                                .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
                                .ah_attr = {.dlid = lid, .port_num = 1}},
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
               IBV_QP_MIN_RNR_TIMER);
    modify(which,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7,
                                .max_rd_atomic = 4},
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC);
}

// Both from the beginning, without anything left of before.
static void connect_again(void) {
    for (int i = 0; i < 2; i++) {
        modify(qp[i], (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE);
    }
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) > 0) {
    }
    ready(qp[0], qp[1]->qp_num);
    ready(qp[1], qp[0]->qp_num);
}

static void post(struct ibv_qp *which, struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    int error = ibv_post_send(which, wr, &bad);
    check(error == 0, "ibv_post_send: %d", error);
}

static void receive(struct ibv_qp *which, size_t offset, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory + offset, .length = length, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    check(ibv_post_recv(which, &wr, &bad) == 0, "ibv_post_recv");
}

static void transfer(enum ibv_wr_opcode opcode, size_t from, uint32_t length, uint64_t remote, uint32_t rkey) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory + from, .length = length, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.opcode = opcode, .sg_list = &sge, .num_sge = length != 0,
                             .wr.rdma = {.remote_addr = remote, .rkey = rkey}};
    post(qp[0], &wr);
}

static void fill(size_t offset, size_t length, int seed) {
    for (size_t i = 0; i < length; i++) {
        memory[offset + i] = (uint8_t)(i * 31 + (unsigned)seed * 13 + (i >> 8));
    }
}

static void same(size_t a, size_t b, size_t length, const char *what) {
    check(memcmp(memory + a, memory + b, length) == 0, "%s: the data differs", what);
}

static uint32_t bind(struct ibv_mw *mw, uint64_t address, uint64_t length, int access, enum ibv_wc_status status) {
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_BIND_MW,
        .bind_mw = {.mw = mw, .rkey = rkey,
                    .bind_info = {.mr = mr, .addr = address, .length = length, .mw_access_flags = (unsigned)access}},
    };
    post(qp[1], &wr);
    expect(status, "bind");
    if (status == IBV_WC_SUCCESS) {
        mw->rkey = rkey;
    }
    return rkey;
}

static void windows_of_type_two(void) {
    step("windows of type 2");
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    check(mw != NULL, "ibv_alloc_mw");
    uint64_t target = (uintptr_t)memory + 0x4000;
    uint32_t rkey = bind(mw, target, 0x800, IBV_ACCESS_REMOTE_WRITE, IBV_WC_SUCCESS);
    fill(0, 0x800, 1);
    transfer(IBV_WR_RDMA_WRITE, 0, 0x800, target, rkey);
    expect(IBV_WC_SUCCESS, "write through a window");
    same(0, 0x4000, 0x800, "window");
    transfer(IBV_WR_RDMA_READ, 0x1000, 8, target, rkey);
    expect(IBV_WC_REM_ACCESS_ERR, "read through a window for writes");
    connect_again();
    transfer(IBV_WR_RDMA_WRITE, 0, 9, target + 0x7f8, rkey);
    expect(IBV_WC_REM_ACCESS_ERR, "beyond the window");
    connect_again();
    bind(mw, target, 8, IBV_ACCESS_REMOTE_WRITE, IBV_WC_MW_BIND_ERR);
    connect_again();

    step("local invalidation");
    struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey};
    post(qp[1], &invalidate);
    expect(IBV_WC_SUCCESS, "local invalidate");
    transfer(IBV_WR_RDMA_WRITE, 0, 8, target, rkey);
    expect(IBV_WC_REM_ACCESS_ERR, "write through an invalidated window");
    connect_again();

    step("remote invalidation");
    rkey = bind(mw, target, 0x100, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, IBV_WC_SUCCESS);
    receive(qp[1], 0x8000, 64);
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 48, .lkey = mr->lkey};
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND_WITH_INV, .sg_list = &sge, .num_sge = 1, .invalidate_rkey = rkey};
    post(qp[0], &send);
    int seen = 0;
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next(cq);
        check(wc.status == IBV_WC_SUCCESS, "send with invalidate: %s", ibv_wc_status_str(wc.status));
        if (wc.opcode == IBV_WC_RECV) {
            seen = wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == rkey;
        }
    }
    check(seen, "the receiver is told what was invalidated");
    same(0, 0x8000, 48, "send with invalidate");
    transfer(IBV_WR_RDMA_READ, 0x1000, 8, target, rkey);
    expect(IBV_WC_REM_ACCESS_ERR, "read through a window that the peer invalidated");
    connect_again();
    check(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
}

static void windows_of_type_one(void) {
    step("windows of type 1");
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    check(mw != NULL, "ibv_alloc_mw");
    for (int i = 0; i < 3; i++) {
        uint64_t target = (uintptr_t)memory + 0x4000 + (unsigned)i * 0x1000;
        struct ibv_mw_bind request = {
            .bind_info = {.mr = mr, .addr = target, .length = 0x1000, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
        uint32_t before = mw->rkey;
        int error = ibv_bind_mw(qp[1], mw, &request);
        check(error == 0, "ibv_bind_mw: %d", error);
        expect(IBV_WC_SUCCESS, "bind of type 1");
        fill(0, 0x1000, i + 20);
        transfer(IBV_WR_RDMA_WRITE, 0, 0x1000, target, mw->rkey);
        expect(IBV_WC_SUCCESS, "write");
        same(0, 0x4000 + (unsigned)i * 0x1000, 0x1000, "window of type 1");
        if (i != 0) {
            transfer(IBV_WR_RDMA_WRITE, 0, 8, target, before);
            expect(IBV_WC_REM_ACCESS_ERR, "write by the key before");
            connect_again();
        }
    }
    check(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
}

static void atomics(void) {
    step("atomics");
    uint64_t *word = (uint64_t *)(memory + 0xc000), *result = (uint64_t *)(memory + 0xc100);
    *word = 0x1122334455667788;
    struct ibv_sge sge = {.addr = (uintptr_t)result, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1,
                             .wr.atomic = {.remote_addr = (uintptr_t)word, .rkey = mr->rkey, .compare_add = 0x10}};
    post(qp[0], &wr);
    expect(IBV_WC_SUCCESS, "fetch and add");
    check(*result == 0x1122334455667788 && *word == 0x1122334455667798, "fetch and add: %#lx, %#lx", *result, *word);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic.compare_add = 1;
    wr.wr.atomic.swap = 5;
    post(qp[0], &wr);
    expect(IBV_WC_SUCCESS, "compare and swap of another value");
    check(*result == 0x1122334455667798 && *word == 0x1122334455667798, "nothing is swapped");
    wr.wr.atomic.compare_add = 0x1122334455667798;
    post(qp[0], &wr);
    expect(IBV_WC_SUCCESS, "compare and swap");
    check(*result == 0x1122334455667798 && *word == 5, "swapped");
}

static void changed_regions(void) {
    step("a region re-registered");
    uint8_t *other = aligned_alloc(4096, 0x4000);
    memset(other, 0, 0x4000);
    struct ibv_mr *changed = ibv_reg_mr(pd, other, 0x1000, IBV_ACCESS_LOCAL_WRITE);
    check(changed != NULL, "ibv_reg_mr");
    transfer(IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)other, changed->rkey);
    expect(IBV_WC_REM_ACCESS_ERR, "write without the right");
    connect_again();
    int error = ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(error == 0, "ibv_rereg_mr of the rights: %d", error);
    transfer(IBV_WR_RDMA_WRITE, 0, 64, (uintptr_t)other, changed->rkey);
    expect(IBV_WC_SUCCESS, "write with the right");
    check(memcmp(other, memory, 64) == 0, "re-registered: the data differs");
    error = ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other + 0x1000, 0x3000, 0);
    check(error == 0, "ibv_rereg_mr of the place: %d", error);
    transfer(IBV_WR_RDMA_WRITE, 0, 0x2000, (uintptr_t)other + 0x2000, changed->rkey);
    expect(IBV_WC_SUCCESS, "write at the new place");
    check(memcmp(other + 0x2000, memory, 0x2000) == 0, "moved: the data differs");
    check(ibv_dereg_mr(changed) == 0, "ibv_dereg_mr");
    transfer(IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)other + 0x2000, changed->rkey);
    expect(IBV_WC_REM_ACCESS_ERR, "write to a region that is gone");
    connect_again();
    free(other);
}

static void completion_queues(void) {
    step("a CQ resized with completions in it");
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 30; i++) {
            struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
            struct ibv_send_wr wr = {.wr_id = (uint64_t)(round * 100 + i), .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge,
                                     .num_sge = 1,
                                     .wr.rdma = {.remote_addr = (uintptr_t)memory + 0x9000, .rkey = mr->rkey}};
            post(qp[0], &wr);
            if (i == 19) {
                usleep(20000);
                int error = ibv_resize_cq(cq, round % 2 == 0 ? 1000 : 100);
                check(error == 0, "ibv_resize_cq: %d", error);
            }
        }
        for (int i = 0; i < 30; i++) {
            struct ibv_wc wc = next(cq);
            check(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)(round * 100 + i), "completion %d of round %d is %lu",
                  i, round, wc.wr_id);
        }
    }
    step("a CQ moderated");
    struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 4, .cq_period = 2000}};
    int error = ibv_modify_cq(cq, &moderation);
    check(error == 0, "ibv_modify_cq: %d", error);
}

// The next asynchronous event, but for those that the refused accesses before it have left.
static struct ibv_async_event next_event(void) {
    struct ibv_async_event event;
    for (;;) {
        struct pollfd readable = {.fd = context->async_fd, .events = POLLIN};
        check(poll(&readable, 1, 5000) == 1, "no event after five seconds");
        check(ibv_get_async_event(context, &event) == 0, "ibv_get_async_event");
        ibv_ack_async_event(&event);
        if (event.event_type != IBV_EVENT_QP_ACCESS_ERR) {
            return event;
        }
    }
}

static void shared_receives(void) {
    step("a shared receive queue's limit and last entry");
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 31, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &attributes);
    check(srq != NULL, "ibv_create_srq");
    struct ibv_qp *own = qp[1];
    qp[1] = make_qp(srq);
    connect_again();
    for (int i = 0; i < 8; i++) {
        struct ibv_sge sge = {.addr = (uintptr_t)memory + 0x8000 + (unsigned)i * 64, .length = 64, .lkey = mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1}, *bad;
        check(ibv_post_srq_recv(srq, &wr, &bad) == 0, "ibv_post_srq_recv");
    }
    struct ibv_srq_attr limit = {.srq_limit = 5};
    check(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0, "ibv_modify_srq");
    check(ibv_query_srq(srq, &limit) == 0 && limit.srq_limit == 5, "the limit is armed");
    // Sizes that the completion carries, and that it does not.
    static const uint32_t sizes[] = {1, 32, 33, 64};
    for (int i = 0; i < 4; i++) {
        fill(0, 64, i + 40);
        transfer(IBV_WR_SEND, 0, sizes[i], 0, 0);
        for (int j = 0; j < 2; j++) {
            struct ibv_wc wc = next(cq);
            check(wc.status == IBV_WC_SUCCESS, "send %d: %s", i, ibv_wc_status_str(wc.status));
            if (wc.opcode == IBV_WC_RECV) {
                check(wc.byte_len == sizes[i] && wc.wr_id == (uint64_t)i, "receive %d: %u bytes", i, wc.byte_len);
            }
        }
        same(0, 0x8000 + (unsigned)i * 64, sizes[i], "shared receive");
    }
    struct ibv_async_event event = next_event();
    check(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq, "event %s",
          ibv_event_type_str(event.event_type));
    modify(qp[1], (struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE);
    event = next_event();
    check(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp[1], "event %s",
          ibv_event_type_str(event.event_type));
    check(ibv_destroy_qp(qp[1]) == 0, "ibv_destroy_qp");
    qp[1] = own;
    check(ibv_destroy_srq(srq) == 0, "ibv_destroy_srq");
    connect_again();
}

int main(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    check(devices != NULL && devices[0] != NULL, "no HCA");
    context = ibv_open_device(devices[0]);
    check(context != NULL, "ibv_open_device");
    struct ibv_port_attr port;
    check(ibv_query_port(context, 1, &port) == 0, "ibv_query_port");
    lid = port.lid;
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 200, NULL, NULL, 0);
    check(pd != NULL && cq != NULL, "ibv_alloc_pd, ibv_create_cq");
    memory = aligned_alloc(4096, REGION);
    memset(memory, 0, REGION);
    mr = ibv_reg_mr(pd, memory, REGION,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                        IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
    check(mr != NULL, "ibv_reg_mr");
    qp[0] = make_qp(NULL);
    qp[1] = make_qp(NULL);
    connect_again();
    windows_of_type_two();
    windows_of_type_one();
    atomics();
    changed_regions();
    completion_queues();
    shared_receives();
    step("all freed");
    check(ibv_destroy_qp(qp[0]) == 0 && ibv_destroy_qp(qp[1]) == 0, "ibv_destroy_qp");
    check(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0, "the rest");
    check(ibv_close_device(context) == 0, "ibv_close_device");
    printf("@done verified=true\n");
    return 0;
}
