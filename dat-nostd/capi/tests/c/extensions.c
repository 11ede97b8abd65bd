/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The calls of <dat/dat_ib_extensions.h> between two processes: every completion, every byte.
 *
 *     extensions passive IA
 *     extensions active IA ADDRESS
 *
 * ADDRESS is the passive side's. */
#include <dat/dat_ib_extensions.h>
#include "check.h"
#include <arpa/inet.h>

#define PORT 7200
#define BYTES 8192
#define REFUSAL 148
#define IMMEDIATE 0x89abcdefu
/* Places in the passive side's memory. */
#define WRITTEN 100
#define WRITTEN_BYTES 1000
#define COUNTER 4096
#define WINDOW 5000
#define WINDOW_BYTES 300
/* A zero-based region's bytes that are written. */
#define OFFSET 16
#define OFFSET_BYTES 2000

/* What the passive side invites to. */
struct invitation {
    DAT_RMR_TRIPLET memory, zero_based, window;
};

static DAT_IA_HANDLE ia;
static DAT_EVD_HANDLE async_evd, dto, conn, cr;
static DAT_PZ_HANDLE pz;
static DAT_EP_HANDLE ep;
static DAT_LMR_HANDLE lmr, zero_lmr;
static DAT_LMR_TRIPLET local, zero_local;
static DAT_RMR_TRIPLET remote, zero_remote;
static DAT_UINT64 words[BYTES / 8];
static unsigned char *const memory = (unsigned char *)words;
static unsigned char zero_based[BYTES];
/* Of messages, beside the memory that peers reach. */
static struct invitation message;
static DAT_LMR_HANDLE message_lmr;
static DAT_LMR_TRIPLET message_local;

static unsigned char pattern(unsigned at, unsigned seed)
{
    return (unsigned char)(at * 7 + at / 256 * 13 + seed);
}

static DAT_LMR_TRIPLET part(DAT_LMR_TRIPLET of, DAT_VLEN from, DAT_VLEN length)
{
    of.virtual_address += from;
    of.segment_length = length;
    return of;
}

static DAT_RMR_TRIPLET remote_part(DAT_RMR_TRIPLET of, DAT_VLEN from, DAT_VLEN length)
{
    of.target_address += from;
    of.segment_length = length;
    return of;
}

/* These bytes have the pattern, and no other byte has changed. */
static void only(const unsigned char *bytes, unsigned from, unsigned length, unsigned seed, unsigned char rest)
{
    unsigned i;

    for (i = 0; i < BYTES; i++)
        HOLDS(bytes[i] == (i >= from && i < from + length ? pattern(i, seed) : rest));
}

static DAT_IB_EVENT next_event(DAT_UINT64 cookie, DAT_VLEN length)
{
    DAT_IB_EVENT event;
    DAT_DTO_COMPLETION_EVENT_DATA *data = &event.event_data.dto_completion_event_data;
    DAT_COUNT more;

    memset(&event, 0xee, sizeof event);
    OK(dat_ib_evd_wait(dto, PATIENCE, 1, &event, &more));
    HOLDS(event.evd_handle == dto && data->ep_handle == ep && data->user_cookie.as_64 == cookie);
    HOLDS(data->status == DAT_DTO_SUCCESS && data->transfered_length == length);
    return event;
}

static DAT_IB_EXTENSION_EVENT_DATA extension_of(const DAT_IB_EVENT *event)
{
    DAT_IB_EXTENSION_EVENT_DATA data;

    HOLDS(event->event_number == DAT_IB_DTO_EVENT);
    memcpy(&data, event->event_extension_data, sizeof data);
    HOLDS(data.status == DAT_OP_SUCCESS);
    return data;
}

/* A completion without extension data. */
static void completed(DAT_UINT64 cookie, DAT_VLEN length)
{
    DAT_IB_EVENT event = next_event(cookie, length);
    int i;

    HOLDS(event.event_number == DAT_DTO_COMPLETION_EVENT);
    for (i = 0; i < 8; i++)
        HOLDS(event.event_extension_data[i] == 0);
}

/* A completion with extension data of this type. */
static DAT_IB_EXTENSION_EVENT_DATA extended(DAT_UINT64 cookie, DAT_VLEN length, DAT_IB_EXT_TYPE type)
{
    DAT_IB_EVENT event = next_event(cookie, length);
    DAT_IB_EXTENSION_EVENT_DATA data = extension_of(&event);

    HOLDS(data.type == type);
    return data;
}

static void receive(DAT_UINT64 cookie)
{
    OK(dat_ep_post_recv(ep, 1, &message_local, cookie_of(cookie), DAT_COMPLETION_DEFAULT_FLAG));
}

static void open_side(char *name)
{
    DAT_REGION_DESCRIPTION region;
    DAT_RMR_TRIPLET unused;
    DAT_MEM_PRIV_FLAGS all = PRIVILEGES(DAT_MEM_PRIV_ALL_FLAG | DAT_IB_MEM_PRIV_REMOTE_ATOMIC);
    DAT_VLEN size;
    DAT_VADDR address;

    async_evd = DAT_HANDLE_NULL;
    OK(dat_ia_open(name, 8, &async_evd, &ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, EVD_FLAGS(DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG), &dto));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr));
    OK(dat_ep_create(ia, pz, dto, dto, conn, NULL, &ep));
    message_local = REGION(ia, pz, &message, sizeof message, &message_lmr, &unused);

    memset(&local, 0, sizeof local);
    memset(&remote, 0, sizeof remote);
    memset(&zero_local, 0, sizeof zero_local);
    memset(&zero_remote, 0, sizeof zero_remote);
    region.for_va = memory;
    FAILS(DAT_INVALID_PARAMETER, dat_ib_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, pz,
        PRIVILEGES(DAT_IB_MEM_PRIV_REMOTE_ATOMIC), DAT_VA_TYPE_VA, &lmr, &local.lmr_context, NULL, NULL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, pz,
        PRIVILEGES(0x80), DAT_VA_TYPE_VA, &lmr, &local.lmr_context, NULL, NULL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, pz, all,
        (DAT_VA_TYPE)2, &lmr, &local.lmr_context, NULL, NULL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, pz, all,
        DAT_VA_TYPE_ZB, NULL, &local.lmr_context, NULL, NULL, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_ib_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, ia, all,
        DAT_VA_TYPE_ZB, &lmr, &local.lmr_context, NULL, NULL, NULL));
    OK(dat_ib_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, pz, all, DAT_VA_TYPE_VA, &lmr, &local.lmr_context,
        &remote.rmr_context, &size, &address));
    HOLDS(address == (DAT_VADDR)(uintptr_t)memory && size == BYTES);
    local.virtual_address = remote.target_address = address;
    local.segment_length = remote.segment_length = size;
    region.for_lmr_handle = lmr;
    FAILS(DAT_MODEL_NOT_SUPPORTED, dat_ib_lmr_create(ia, DAT_MEM_TYPE_LMR, region, 0, pz, all, DAT_VA_TYPE_ZB,
        &zero_lmr, &zero_local.lmr_context, NULL, NULL, NULL));

    region.for_va = zero_based;
    OK(dat_ib_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_ZB, &zero_lmr,
        &zero_local.lmr_context, &zero_remote.rmr_context, &size, &address));
    /* Offsets count from the beginning of the page. */
    HOLDS(address == (DAT_VADDR)(uintptr_t)zero_based % 4096 && size == BYTES);
    zero_local.virtual_address = zero_remote.target_address = address;
    zero_local.segment_length = zero_remote.segment_length = size;
}

static void close_side(void)
{
    OK(dat_ep_free(ep));
    OK(dat_lmr_free(lmr));
    OK(dat_lmr_free(zero_lmr));
    OK(dat_lmr_free(message_lmr));
    OK(dat_evd_free(dto));
    OK(dat_evd_free(conn));
    OK(dat_evd_free(cr));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

/* Waits and dequeues that take nothing. */
static void of_events(void)
{
    DAT_IB_EVENT event;
    DAT_COUNT more;

    FAILS(DAT_QUEUE_EMPTY, dat_ib_evd_dequeue(dto, &event));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_evd_dequeue(dto, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_ib_evd_dequeue(ep, &event));
    FAILS(DAT_TIMEOUT_EXPIRED, dat_ib_evd_wait(dto, 1000, 1, &event, &more));
    HOLDS(more == 0);
    FAILS(DAT_INVALID_PARAMETER, dat_ib_evd_wait(dto, 0, 1, NULL, &more));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_evd_wait(dto, 0, 1, &event, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_ib_evd_wait(DAT_HANDLE_NULL, 0, 1, &event, &more));
}

/* Posts that fail at once, and leave the connection as it is. */
static void of_wrong_posts(void)
{
    DAT_LMR_TRIPLET word = part(local, 0, 8), half = part(local, 0, 4), message_part = part(message_local, 0, 8);
    DAT_RMR_TRIPLET target = remote_part(message.memory, COUNTER, 8);
    DAT_RMR_TRIPLET odd = remote_part(message.memory, COUNTER + 4, 8);
    DAT_RMR_TRIPLET short_target = remote_part(message.memory, 0, 7);
    DAT_CONTEXT none = cookie_of(0);
    DAT_COMPLETION_FLAGS usual = DAT_COMPLETION_DEFAULT_FLAG, wrong = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
    DAT_RMR_HANDLE window;

    FAILS(DAT_INVALID_HANDLE, dat_ib_post_rdma_write_immed(dto, 1, &word, none, &target, 1, usual));
    FAILS(DAT_INVALID_HANDLE, dat_ib_post_rdma_write_immed(dto, 1, NULL, none, &target, 1, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_rdma_write_immed(ep, 1, NULL, none, &target, 1, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_rdma_write_immed(ep, -1, &word, none, &target, 1, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_rdma_write_immed(ep, 1, &word, none, NULL, 1, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_rdma_write_immed(ep, 1, &word, none, &target, 1, wrong));
    FAILS(DAT_LENGTH_ERROR, dat_ib_post_rdma_write_immed(ep, 1, &word, none, &short_target, 1, usual));

    FAILS(DAT_INVALID_HANDLE, dat_ib_post_cmp_and_swap(dto, 1, 2, &word, none, &target, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_cmp_and_swap(ep, 1, 2, NULL, none, &target, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_cmp_and_swap(ep, 1, 2, &word, none, NULL, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_cmp_and_swap(ep, 1, 2, &word, none, &odd, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_cmp_and_swap(ep, 1, 2, &word, none, &target, wrong));
    FAILS(DAT_LENGTH_ERROR, dat_ib_post_cmp_and_swap(ep, 1, 2, &half, none, &target, usual));
    FAILS(DAT_LENGTH_ERROR, dat_ib_post_cmp_and_swap(ep, 1, 2, &word, none, &short_target, usual));

    FAILS(DAT_INVALID_HANDLE, dat_ib_post_fetch_and_add(dto, 1, &word, none, &target, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_fetch_and_add(ep, 1, NULL, none, &target, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_fetch_and_add(ep, 1, &word, none, NULL, usual));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_post_fetch_and_add(ep, 1, &word, none, &odd, usual));
    FAILS(DAT_LENGTH_ERROR, dat_ib_post_fetch_and_add(ep, 1, &half, none, &target, usual));
    word.lmr_context ^= 0x10000;
    FAILS(DAT_PRIVILEGES_VIOLATION, dat_ib_post_fetch_and_add(ep, 1, &word, none, &target, usual));

    FAILS(DAT_INVALID_HANDLE, dat_ep_post_send_with_invalidate(dto, 1, &message_part, none, usual, DAT_TRUE, 1));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_post_send_with_invalidate(ep, 1, NULL, none, usual, DAT_TRUE, 1));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_post_send_with_invalidate(ep, 1, &message_part, none, wrong, DAT_TRUE, 1));
    FAILS(DAT_INVALID_HANDLE, dat_rmr_create_for_ep(ep, &window));
    FAILS(DAT_INVALID_PARAMETER, dat_rmr_create_for_ep(pz, NULL));
}

static DAT_CR_HANDLE requested(void)
{
    DAT_EVENT event = EXPECT(cr, DAT_CONNECTION_REQUEST_EVENT);

    return event.event_data.cr_arrival_event_data.cr_handle;
}

static void passive_side(char *name)
{
    DAT_PSP_HANDLE psp;
    DAT_CR_HANDLE request;
    DAT_RMR_HANDLE window;
    DAT_RMR_PARAM window_param;
    DAT_LMR_TRIPLET exposed;
    DAT_EVENT event;
    unsigned char refusal[REFUSAL];
    unsigned i;

    open_side(name);
    memset(memory, 0xaa, BYTES);
    memset(zero_based, 0xbb, BYTES);
    OK(dat_psp_create(ia, PORT, cr, DAT_PSP_CONSUMER_FLAG, &psp));
    puts("ready");
    fflush(stdout);

    /* A rejection with private data. */
    for (i = 0; i < REFUSAL; i++)
        refusal[i] = pattern(i, 3);
    request = requested();
    FAILS(DAT_INVALID_HANDLE, dat_ib_cr_reject(DAT_HANDLE_NULL, REFUSAL, refusal));
    FAILS(DAT_INVALID_HANDLE, dat_ib_cr_reject(DAT_HANDLE_NULL, -1, refusal));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_cr_reject(request, -1, refusal));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_cr_reject(request, REFUSAL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_ib_cr_reject(request, REFUSAL + 1, memory));
    OK(dat_ib_cr_reject(request, REFUSAL, refusal));
    FAILS(DAT_INVALID_HANDLE, dat_ib_cr_reject(request, REFUSAL, refusal));

    /* The invitation, with a window that the peer can end. */
    request = requested();
    for (i = 1; i <= 4; i++)
        receive(i);
    OK(dat_cr_accept(request, ep, 0, NULL));
    EXPECT(conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    OK(dat_rmr_create_for_ep(pz, &window));
    exposed = part(local, WINDOW, WINDOW_BYTES);
    memset(&message, 0, sizeof message);
    message.window = remote_part(remote, WINDOW, WINDOW_BYTES);
    OK(dat_rmr_bind(window, &exposed, PRIVILEGES(DAT_MEM_PRIV_WRITE_FLAG), ep, cookie_of(5), DAT_COMPLETION_DEFAULT_FLAG,
        &message.window.rmr_context));
    EXPECT(dto, DAT_RMR_BIND_COMPLETION_EVENT);
    message.memory = remote;
    message.zero_based = zero_remote;
    words[COUNTER / 8] = 5;
    OK(dat_ep_post_send(ep, 1, &message_local, cookie_of(6), DAT_COMPLETION_DEFAULT_FLAG));
    completed(6, sizeof message);

    /* A write with immediate data, and one of no bytes that a program of DAT 1.2 takes. */
    HOLDS(extended(1, WRITTEN_BYTES, DAT_IB_RDMA_WRITE_IMMED_DATA).val.immed.data == IMMEDIATE);
    words[COUNTER / 8] = UINT64_C(0xaaaaaaaaaaaaaaaa);
    only(memory, WRITTEN, WRITTEN_BYTES, 1, 0xaa);
    words[COUNTER / 8] = 5;
    OK(dat_ep_post_send(ep, 0, NULL, cookie_of(7), DAT_COMPLETION_SUPPRESS_FLAG));
    event = EXPECT(dto, DAT_DTO_COMPLETION_EVENT);
    HOLDS(event.event_data.dto_completion_event_data.user_cookie.as_64 == 2);
    HOLDS(event.event_data.dto_completion_event_data.transfered_length == 0);

    /* After the peer's atomics and its write into the zero-based region: a send that ends nothing. */
    completed(3, 8);
    HOLDS(words[COUNTER / 8] == UINT64_C(0x1122334455667798));
    only(zero_based, OFFSET, OFFSET_BYTES, 2, 0xbb);

    /* The window has been written through, and ends with the message. */
    FAILS(DAT_INVALID_STATE, dat_lmr_free(lmr));
    OK(dat_ep_post_send(ep, 0, NULL, cookie_of(8), DAT_COMPLETION_SUPPRESS_FLAG));
    HOLDS(extended(4, 8, DAT_IB_RECV_INVALIDATED).val.rmr_context == message.window.rmr_context);
    for (i = WINDOW; i < WINDOW + WINDOW_BYTES; i++)
        HOLDS(memory[i] == pattern(i, 4));
    HOLDS(memory[WINDOW - 1] == 0xaa && memory[WINDOW + WINDOW_BYTES] == 0xaa);
    OK(dat_rmr_query(window, DAT_RMR_FIELD_ALL, &window_param));
    HOLDS(window_param.lmr_triplet.segment_length == 0 && window_param.rmr_context == 0);
    OK(dat_rmr_free(window));

    /* The peer tries it once more, which ends the connection. */
    OK(dat_ep_post_send(ep, 0, NULL, cookie_of(9), DAT_COMPLETION_SUPPRESS_FLAG));
    event = NEXT(conn);
    HOLDS(event.event_number == DAT_CONNECTION_EVENT_BROKEN || event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED);
    for (i = WINDOW; i < WINDOW + WINDOW_BYTES; i++)
        HOLDS(memory[i] == pattern(i, 4));
    OK(dat_psp_free(psp));
    close_side();
}

/* An atomic operation has completed; what the peer's word was. */
static DAT_UINT64 returned(DAT_UINT64 cookie, DAT_IB_EXT_TYPE type)
{
    DAT_UINT64 was;

    extended(cookie, 8, type);
    was = words[0];
    words[0] = 0;
    return was;
}

static void active_side(char *name, const char *address)
{
    struct sockaddr_in peer;
    DAT_EVENT event;
    DAT_IB_EVENT failed;
    DAT_IB_EXTENSION_EVENT_DATA failure;
    DAT_CONNECTION_EVENT_DATA *data = &event.event_data.connect_event_data;
    DAT_LMR_TRIPLET iov[2], word;
    DAT_RMR_TRIPLET target;
    DAT_CONTEXT none = cookie_of(0);
    DAT_COMPLETION_FLAGS usual = DAT_COMPLETION_DEFAULT_FLAG;
    DAT_COUNT more;
    unsigned i;

    open_side(name);
    of_events();
    memset(&peer, 0, sizeof peer);
    peer.sin_family = AF_INET;
    HOLDS(inet_pton(AF_INET, address, &peer.sin_addr) == 1);
    word = part(local, 0, 8);
    target = remote_part(remote, 0, 8);
    FAILS(DAT_INVALID_STATE, dat_ib_post_rdma_write_immed(ep, 1, &word, none, &target, 1, usual));
    FAILS(DAT_INVALID_STATE, dat_ib_post_cmp_and_swap(ep, 1, 2, &word, none, &target, usual));
    FAILS(DAT_INVALID_STATE, dat_ib_post_fetch_and_add(ep, 1, &word, none, &target, usual));
    FAILS(DAT_INVALID_STATE, dat_ep_post_send_with_invalidate(ep, 1, &word, none, usual, DAT_TRUE, 1));

    OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&peer, PORT, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
        DAT_CONNECT_DEFAULT_FLAG));
    event = EXPECT(conn, DAT_CONNECTION_EVENT_PEER_REJECTED);
    HOLDS(data->private_data_size >= REFUSAL);
    for (i = 0; i < REFUSAL; i++)
        HOLDS(((unsigned char *)data->private_data)[i] == pattern(i, 3));
    OK(dat_ep_reset(ep));

    for (i = 1; i <= 4; i++)
        receive(i);
    OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&peer, PORT, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
        DAT_CONNECT_DEFAULT_FLAG));
    EXPECT(conn, DAT_CONNECTION_EVENT_ESTABLISHED);
    completed(1, sizeof message);
    of_wrong_posts();

    /* Immediate data: of two segments, and of none. */
    for (i = 0; i < WRITTEN_BYTES; i++)
        memory[2048 + i] = pattern(WRITTEN + i, 1);
    iov[0] = part(local, 2048, 600);
    iov[1] = part(local, 2648, 400);
    target = remote_part(message.memory, WRITTEN, WRITTEN_BYTES);
    OK(dat_ib_post_rdma_write_immed(ep, 2, iov, cookie_of(20), &target, IMMEDIATE, usual));
    completed(20, WRITTEN_BYTES);
    completed(2, 0);
    target = remote_part(message.memory, 0, 0);
    OK(dat_ib_post_rdma_write_immed(ep, 0, NULL, cookie_of(21), &target, 7, usual));
    completed(21, 0);

    /* A comparison that fails, one that holds, and two sums. */
    target = remote_part(message.memory, COUNTER, 8);
    OK(dat_ib_post_cmp_and_swap(ep, 4, 9, &word, cookie_of(30), &target, usual));
    HOLDS(returned(30, DAT_IB_CMP_AND_SWAP) == 5);
    OK(dat_ib_post_cmp_and_swap(ep, 5, UINT64_C(0x1122334455667788), &word, cookie_of(31), &target, usual));
    HOLDS(returned(31, DAT_IB_CMP_AND_SWAP) == 5);
    OK(dat_ib_post_fetch_and_add(ep, 0x20, &word, cookie_of(32), &target, usual));
    HOLDS(returned(32, DAT_IB_FETCH_AND_ADD) == UINT64_C(0x1122334455667788));
    OK(dat_ib_post_fetch_and_add(ep, ~UINT64_C(0xf), &word, cookie_of(33), &target, usual));
    HOLDS(returned(33, DAT_IB_FETCH_AND_ADD) == UINT64_C(0x11223344556677a8));

    /* From a zero-based region into the peer's, and back into another place. */
    memset(zero_based, 0xcc, BYTES);
    for (i = 0; i < OFFSET_BYTES; i++)
        zero_based[OFFSET + i] = pattern(OFFSET + i, 2);
    iov[0] = part(zero_local, OFFSET, OFFSET_BYTES);
    target = remote_part(message.zero_based, OFFSET, OFFSET_BYTES);
    OK(dat_ep_post_rdma_write(ep, 1, iov, cookie_of(40), &target, usual));
    completed(40, OFFSET_BYTES);
    iov[0] = part(local, OFFSET, OFFSET_BYTES);
    memset(memory, 0xdd, BYTES);
    OK(dat_ep_post_rdma_read(ep, 1, iov, cookie_of(41), &target, usual));
    completed(41, OFFSET_BYTES);
    only(memory, OFFSET, OFFSET_BYTES, 2, 0xdd);
    iov[0] = part(zero_local, BYTES - 8, 9);
    FAILS(DAT_INVALID_PARAMETER, dat_ep_post_rdma_write(ep, 1, iov, none, &target, usual));
    word = part(local, 0, 8);
    OK(dat_ep_post_send_with_invalidate(ep, 1, &word, cookie_of(42), usual, DAT_FALSE, message.window.rmr_context));
    completed(42, 8);
    completed(3, 0);

    /* Through the window, which then ends. */
    for (i = 0; i < WINDOW_BYTES; i++)
        memory[i] = pattern(WINDOW + i, 4);
    iov[0] = part(local, 0, WINDOW_BYTES);
    OK(dat_ep_post_rdma_write(ep, 1, iov, cookie_of(50), &message.window, usual));
    completed(50, WINDOW_BYTES);
    OK(dat_ep_post_send_with_invalidate(ep, 1, &word, cookie_of(51), usual, DAT_TRUE, message.window.rmr_context));
    completed(51, 8);
    completed(4, 0);
    memset(memory, 0, WINDOW_BYTES);
    target = message.window;
    target.target_address = target.target_address / 8 * 8;
    target.segment_length = 8;
    OK(dat_ib_post_fetch_and_add(ep, 1, &word, cookie_of(52), &target, usual));
    OK(dat_ib_evd_wait(dto, PATIENCE, 1, &failed, &more));
    HOLDS(failed.event_number == DAT_IB_DTO_EVENT);
    HOLDS(failed.event_data.dto_completion_event_data.user_cookie.as_64 == 52);
    HOLDS(failed.event_data.dto_completion_event_data.status == DAT_DTO_ERR_REMOTE_ACCESS);
    memcpy(&failure, failed.event_extension_data, sizeof failure);
    HOLDS(failure.type == DAT_IB_FETCH_AND_ADD && failure.status == DAT_IB_OP_ERR);
    event = NEXT(conn);
    HOLDS(event.event_number == DAT_CONNECTION_EVENT_BROKEN || event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED);
    close_side();
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "passive") == 0)
        passive_side(arguments[2]);
    else if (count == 4 && strcmp(arguments[1], "active") == 0)
        active_side(arguments[2], arguments[3]);
    else
        return EXIT_FAILURE;
    puts("all extensions did as they should");
    return EXIT_SUCCESS;
}
