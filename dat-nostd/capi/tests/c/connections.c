/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Connections and transfers between two sides. The steps are in one order; a process does those of the sides that it has. */
#include "calls.h"
#include <arpa/inet.h>
#include <unistd.h>

#define PORT 7100
#define BYTES 8192
#define GREETING "hello, passive side"
#define WELCOME "welcome, active side"

/* What a side has for its connections. */
struct end {
    DAT_IA_HANDLE ia;
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE dto, conn, cr;
    DAT_EP_HANDLE ep;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_TRIPLET local;
    DAT_RMR_TRIPLET remote;
    unsigned char *memory;
};

static struct end ends[2];
static struct end *active, *passive;
static struct sockaddr_in peer;

static void set_up(struct end *end, DAT_IA_HANDLE ia)
{
    end->ia = ia;
    OK(dat_pz_create(ia, &end->pz));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, EVD_FLAGS(DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG), &end->dto));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &end->conn));
    OK(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &end->cr));
    end->memory = (unsigned char *)malloc(BYTES);
    HOLDS(end->memory != NULL);
    end->local = REGION(ia, end->pz, end->memory, BYTES, &end->lmr, &end->remote);
    OK(dat_ep_create(ia, end->pz, end->dto, end->dto, end->conn, NULL, &end->ep));
}

static void tear_down(struct end *end)
{
    OK(dat_ep_free(end->ep));
    OK(dat_lmr_free(end->lmr));
    free(end->memory);
    OK(dat_evd_free(end->dto));
    OK(dat_evd_free(end->conn));
    OK(dat_evd_free(end->cr));
    OK(dat_pz_free(end->pz));
}

/* Bytes of a side's memory. */
static DAT_LMR_TRIPLET part(const struct end *end, DAT_VLEN from, DAT_VLEN length)
{
    DAT_LMR_TRIPLET part = end->local;

    part.virtual_address += from;
    part.segment_length = length;
    return part;
}

static void connect_to(DAT_EP_HANDLE ep, DAT_CONN_QUAL port)
{
    char greeting[] = GREETING;

    OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&peer, port, PATIENCE, sizeof greeting, greeting, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
}

/* A request has come to this service point. */
static DAT_CR_HANDLE requested(struct end *end, DAT_HANDLE sp, DAT_CONN_QUAL port, DAT_CR_PARAM *param)
{
    DAT_EVENT event = EXPECT(end->cr, DAT_CONNECTION_REQUEST_EVENT);
    DAT_CR_ARRIVAL_EVENT_DATA *data = &event.event_data.cr_arrival_event_data;

    HOLDS(data->sp_handle.psp_handle == sp && data->conn_qual == port);
    HOLDS(data->local_ia_address_ptr != NULL && data->local_ia_address_ptr->sa_family == AF_INET);
    OK(dat_cr_query(data->cr_handle, DAT_CR_FIELD_ALL, param));
    FAILS(DAT_INVALID_PARAMETER, dat_cr_query(data->cr_handle, DAT_CR_FIELD_ALL, NULL));
    HOLDS(param->remote_ia_address_ptr->sa_family == AF_INET);
    HOLDS(param->private_data_size >= (DAT_COUNT)sizeof GREETING && memcmp(param->private_data, GREETING, sizeof GREETING) == 0);
    return data->cr_handle;
}

static DAT_EVENT established(struct end *end, DAT_EP_HANDLE ep)
{
    DAT_EVENT event = EXPECT(end->conn, DAT_CONNECTION_EVENT_ESTABLISHED);

    HOLDS(event.event_data.connect_event_data.ep_handle == ep);
    return event;
}

static void disconnected(struct end *end, DAT_EP_HANDLE ep)
{
    DAT_EVENT event = EXPECT(end->conn, DAT_CONNECTION_EVENT_DISCONNECTED);

    HOLDS(event.event_data.connect_event_data.ep_handle == ep);
}

/* A completion of a transfer, as it should be. */
static void completed(struct end *end, DAT_EP_HANDLE ep, DAT_UINT64 cookie, DAT_VLEN length)
{
    DAT_EVENT event = EXPECT(end->dto, DAT_DTO_COMPLETION_EVENT);
    DAT_DTO_COMPLETION_EVENT_DATA *data = &event.event_data.dto_completion_event_data;

    HOLDS(data->status == DAT_DTO_SUCCESS);
    HOLDS(data->ep_handle == ep && data->user_cookie.as_64 == cookie && data->transfered_length == length);
}

/* Takes what is left behind by a connection's end. */
static void drain(struct end *end)
{
    DAT_EVENT event;

    while (dat_evd_dequeue(end->dto, &event) == DAT_SUCCESS)
        HOLDS(event.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED);
}

static void reset(struct end *end, DAT_EP_HANDLE ep)
{
    /* A connection that has ended may be ended again. */
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    drain(end);
    OK(dat_ep_reset(ep));
}

static void of_rejection(DAT_PSP_HANDLE psp)
{
    DAT_CR_PARAM param;

    if (active)
        connect_to(active->ep, PORT);
    if (passive) {
        DAT_CR_HANDLE cr = requested(passive, psp, PORT, &param);

        HOLDS(param.local_ep_handle == DAT_HANDLE_NULL);
        FAILS(DAT_INVALID_HANDLE, dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
        FAILS(DAT_INVALID_PARAMETER, dat_cr_accept(cr, passive->ep, -1, NULL));
        OK(dat_cr_reject(cr));
        FAILS(DAT_INVALID_HANDLE, dat_cr_reject(cr));
        FAILS(DAT_INVALID_HANDLE, dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
    }
    if (active) {
        EXPECT(active->conn, DAT_CONNECTION_EVENT_PEER_REJECTED);
        reset(active, active->ep);
    }
}

/* A request that is handed to another service point, with private data both ways. */
static void of_acceptance(DAT_PSP_HANDLE psp, DAT_PSP_HANDLE other, DAT_CONN_QUAL other_port)
{
    DAT_CR_PARAM param;
    DAT_EP_PARAM ep_param;
    char welcome[] = WELCOME;

    if (active) {
        DAT_LMR_TRIPLET into = part(active, 0, 1024);

        OK(dat_ep_post_recv(active->ep, 1, &into, cookie_of(1), DAT_COMPLETION_DEFAULT_FLAG));
        connect_to(active->ep, PORT);
    }
    if (passive) {
        DAT_LMR_TRIPLET into = part(passive, 0, 1024);
        DAT_CR_HANDLE cr = requested(passive, psp, PORT, &param);

        FAILS(DAT_INVALID_PARAMETER, dat_cr_handoff(cr, 1));
        OK(dat_cr_handoff(cr, other_port));
        cr = requested(passive, other, other_port, &param);
        OK(dat_ep_post_recv(passive->ep, 1, &into, cookie_of(1), DAT_COMPLETION_DEFAULT_FLAG));
        OK(dat_cr_accept(cr, passive->ep, sizeof welcome, welcome));
    }
    if (active) {
        DAT_EVENT event = established(active, active->ep);
        DAT_CONNECTION_EVENT_DATA *data = &event.event_data.connect_event_data;

        HOLDS(data->private_data_size >= (DAT_COUNT)sizeof welcome);
        HOLDS(memcmp(data->private_data, welcome, sizeof welcome) == 0);
        OK(dat_ep_query(active->ep, DAT_EP_FIELD_ALL, &ep_param));
        HOLDS(ep_param.ep_state == DAT_EP_STATE_CONNECTED && ep_param.remote_port_qual == PORT);
        HOLDS(((struct sockaddr_in *)(void *)ep_param.remote_ia_address_ptr)->sin_addr.s_addr == peer.sin_addr.s_addr);
    }
    if (passive) {
        DAT_EVENT event = established(passive, passive->ep);

        HOLDS(event.event_data.connect_event_data.private_data_size == 0);
        OK(dat_ep_query(passive->ep, DAT_EP_FIELD_ALL, &ep_param));
        HOLDS(((struct sockaddr_in *)(void *)ep_param.local_ia_address_ptr)->sin_addr.s_addr == peer.sin_addr.s_addr);
    }
}

/* The passive side's memory, told in a message, is written and read; then the active side's through a window. */
static void of_transfers(void)
{
    DAT_LMR_TRIPLET iov[2];
    DAT_RMR_TRIPLET target;
    DAT_RMR_HANDLE rmr;
    int i;

    if (passive) {
        memcpy(passive->memory + 1024, &passive->remote, sizeof passive->remote);
        iov[0] = part(passive, 1024, sizeof passive->remote);
        OK(dat_ep_post_send(passive->ep, 1, iov, cookie_of(2), DAT_COMPLETION_SUPPRESS_FLAG));
    }
    if (active) {
        completed(active, active->ep, 1, sizeof target);
        memcpy(&target, active->memory, sizeof target);
        for (i = 0; i < 1000; i++)
            active->memory[2048 + i] = (unsigned char)(i * 7);
        iov[0] = part(active, 2048, 600);
        iov[1] = part(active, 2648, 400);
        target.target_address += 4096;
        target.segment_length = 999;
        FAILS(DAT_LENGTH_ERROR, dat_ep_post_rdma_write(active->ep, 2, iov, cookie_of(3), &target,
                                                       DAT_COMPLETION_DEFAULT_FLAG));
        target.segment_length = 1000;
        OK(dat_ep_post_rdma_write(active->ep, 2, iov, cookie_of(3), &target, DAT_COMPLETION_DEFAULT_FLAG));
        completed(active, active->ep, 3, 1000);
        iov[0] = part(active, 4096, 1000);
        OK(dat_ep_post_rdma_read(active->ep, 1, iov, cookie_of(4), &target, DAT_COMPLETION_DEFAULT_FLAG));
        completed(active, active->ep, 4, 1000);
        HOLDS(memcmp(active->memory + 4096, active->memory + 2048, 1000) == 0);

        /* A window, whose context follows the bind without a wait. */
        DAT_RMR_CONTEXT context = 0;
        DAT_RMR_PARAM param;
        DAT_EVENT event;
        DAT_LMR_TRIPLET into = part(active, 0, 1024);

        OK(dat_rmr_create(active->pz, &rmr));
        iov[0] = part(active, 2048, 1000);
        FAILS(DAT_INVALID_PARAMETER, dat_rmr_bind(rmr, NULL, PRIVILEGES(DAT_MEM_PRIV_READ_FLAG), active->ep, cookie_of(5),
                                                  DAT_COMPLETION_DEFAULT_FLAG, &context));
        OK(dat_rmr_bind(rmr, iov, PRIVILEGES(DAT_MEM_PRIV_READ_FLAG), active->ep, cookie_of(5), DAT_COMPLETION_DEFAULT_FLAG,
                        &context));
        OK(dat_ep_post_recv(active->ep, 1, &into, cookie_of(7), DAT_COMPLETION_DEFAULT_FLAG));
        memset(&target, 0, sizeof target);
        target.rmr_context = context;
        target.target_address = iov[0].virtual_address;
        target.segment_length = 1000;
        memcpy(active->memory + 1024, &target, sizeof target);
        iov[1] = part(active, 1024, sizeof target);
        OK(dat_ep_post_send(active->ep, 1, iov + 1, cookie_of(6), DAT_COMPLETION_SUPPRESS_FLAG));
        event = EXPECT(active->dto, DAT_RMR_BIND_COMPLETION_EVENT);
        HOLDS(event.event_data.rmr_completion_event_data.rmr_handle == rmr);
        HOLDS(event.event_data.rmr_completion_event_data.user_cookie.as_64 == 5);
        HOLDS(event.event_data.rmr_completion_event_data.status == DAT_RMR_BIND_SUCCESS);
        OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
        HOLDS(param.rmr_context == context && param.lmr_triplet.segment_length == 1000);
        FAILS(DAT_INVALID_STATE, dat_lmr_free(active->lmr));
    }
    if (passive) {
        completed(passive, passive->ep, 1, sizeof target);
        memcpy(&target, passive->memory, sizeof target);
        iov[0] = part(passive, 6000, 1000);
        OK(dat_ep_post_rdma_read(passive->ep, 1, iov, cookie_of(8), &target, DAT_COMPLETION_DEFAULT_FLAG));
        completed(passive, passive->ep, 8, 1000);
        HOLDS(memcmp(passive->memory + 6000, passive->memory + 4096, 1000) == 0);
        /* A message of nothing. */
        OK(dat_ep_post_send(passive->ep, 0, NULL, cookie_of(9), DAT_COMPLETION_DEFAULT_FLAG));
        completed(passive, passive->ep, 9, 0);
    }
    if (active) {
        completed(active, active->ep, 7, 0);
        OK(dat_rmr_free(rmr));
    }
}

/* A second connection to where the first one goes, and its end. */
static void of_duplicates(DAT_PSP_HANDLE psp)
{
    DAT_CR_PARAM param;
    DAT_EP_HANDLE ep;
    char greeting[] = GREETING;

    if (active) {
        OK(dat_ep_create(active->ia, active->pz, active->dto, active->dto, active->conn, NULL, &ep));
        OK(dat_ep_dup_connect(ep, active->ep, PATIENCE, sizeof greeting, greeting, DAT_QOS_BEST_EFFORT));
    }
    if (passive) {
        DAT_CR_HANDLE cr = requested(passive, psp, PORT, &param);
        DAT_EP_HANDLE own;

        OK(dat_ep_create(passive->ia, passive->pz, passive->dto, passive->dto, passive->conn, NULL, &own));
        OK(dat_cr_accept(cr, own, 0, NULL));
        established(passive, own);
        if (!active) {
            disconnected(passive, own);
            OK(dat_ep_free(own));
            return;
        }
        established(active, ep);
        OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
        disconnected(active, ep);
        disconnected(passive, own);
        OK(dat_ep_free(own));
        OK(dat_ep_free(ep));
        return;
    }
    established(active, ep);
    OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    disconnected(active, ep);
    OK(dat_ep_free(ep));
}

static void of_the_end(void)
{
    if (active)
        OK(dat_ep_disconnect(active->ep, DAT_CLOSE_GRACEFUL_FLAG));
    if (active)
        disconnected(active, active->ep);
    if (passive)
        disconnected(passive, passive->ep);
    if (active) {
        /* On an ended connection everything is flushed. */
        OK(dat_ep_post_recv(active->ep, 0, NULL, cookie_of(11), DAT_COMPLETION_DEFAULT_FLAG));
        reset(active, active->ep);
    }
    if (passive)
        reset(passive, passive->ep);
}

/* The provider makes the endpoint; the consumer gives it what it needs. */
static void of_made_endpoints(DAT_PSP_HANDLE psp)
{
    DAT_CR_PARAM param;
    DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

    if (active)
        connect_to(active->ep, PORT + 1);
    if (passive) {
        DAT_CR_HANDLE cr = requested(passive, psp, PORT + 1, &param);
        DAT_EP_PARAM ep_param;

        ep = param.local_ep_handle;
        OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &ep_param));
        HOLDS(ep_param.ep_state == DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
        ep_param.pz_handle = passive->pz;
        ep_param.recv_evd_handle = ep_param.request_evd_handle = passive->dto;
        ep_param.connect_evd_handle = passive->conn;
        OK(dat_ep_modify(ep,
                         DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE |
                             DAT_EP_FIELD_CONNECT_EVD_HANDLE,
                         &ep_param));
        OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
        established(passive, ep);
    }
    if (active) {
        established(active, active->ep);
        OK(dat_ep_disconnect(active->ep, DAT_CLOSE_ABRUPT_FLAG));
        disconnected(active, active->ep);
        reset(active, active->ep);
    }
    if (passive) {
        disconnected(passive, ep);
        OK(dat_ep_free(ep));
    }
}

/* A service point for one request, with its endpoint. */
static void of_reserved_service_points(DAT_RSP_HANDLE rsp)
{
    DAT_CR_PARAM param;

    if (active)
        connect_to(active->ep, PORT + 2);
    if (passive) {
        DAT_CR_HANDLE cr = requested(passive, rsp, PORT + 2, &param);

        HOLDS(param.local_ep_handle == passive->ep);
        OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
        established(passive, passive->ep);
        OK(dat_rsp_free(rsp));
    }
    if (active) {
        established(active, active->ep);
        OK(dat_ep_disconnect(active->ep, DAT_CLOSE_ABRUPT_FLAG));
        disconnected(active, active->ep);
        reset(active, active->ep);
    }
    if (passive) {
        disconnected(passive, passive->ep);
        reset(passive, passive->ep);
    }
}

/* Messages into buffers of a shared queue. */
static void of_shared_queues(DAT_PSP_HANDLE psp)
{
    DAT_CR_PARAM param;
    DAT_SRQ_HANDLE srq = DAT_HANDLE_NULL;
    DAT_EP_HANDLE ep = DAT_HANDLE_NULL;
    DAT_LMR_TRIPLET iov;

    if (active)
        connect_to(active->ep, PORT);
    if (passive) {
        DAT_CR_HANDLE cr = requested(passive, psp, PORT, &param);
        DAT_SRQ_ATTR attributes;
        DAT_EP_ATTR ep_attr;

        attributes.max_recv_dtos = 4;
        attributes.max_recv_iov = 1;
        attributes.low_watermark = DAT_SRQ_LW_DEFAULT;
        OK(dat_srq_create(passive->ia, passive->pz, &attributes, &srq));
        iov = part(passive, 0, 512);
        OK(dat_srq_post_recv(srq, 1, &iov, cookie_of(20)));
        memset(&ep_attr, 0, sizeof ep_attr);
        ep_attr.max_recv_dtos = DAT_HW_DEFAULT;
        ep_attr.max_request_dtos = 4;
        ep_attr.max_request_iov = 1;
        OK(dat_ep_create_with_srq(passive->ia, passive->pz, passive->dto, passive->dto, passive->conn, srq, &ep_attr,
                                  &ep));
        OK(dat_cr_accept(cr, ep, 0, NULL));
    }
    if (active) {
        established(active, active->ep);
        memcpy(active->memory, WELCOME, sizeof WELCOME);
        iov = part(active, 0, sizeof WELCOME);
        OK(dat_ep_post_send(active->ep, 1, &iov, cookie_of(21), DAT_COMPLETION_DEFAULT_FLAG));
        completed(active, active->ep, 21, sizeof WELCOME);
    }
    if (passive) {
        established(passive, ep);
        completed(passive, ep, 20, sizeof WELCOME);
        HOLDS(memcmp(passive->memory, WELCOME, sizeof WELCOME) == 0);
        OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
        disconnected(passive, ep);
        OK(dat_ep_free(ep));
        OK(dat_srq_free(srq));
    }
    if (active) {
        disconnected(active, active->ep);
        reset(active, active->ep);
    }
}

/* Two sides that start together: one connects before the other listens. */
static void of_patience(void)
{
    DAT_CR_PARAM param;
    DAT_PSP_HANDLE late = DAT_HANDLE_NULL;

    if (active)
        connect_to(active->ep, PORT + 3);
    if (passive) {
        DAT_CR_HANDLE cr;

        /* As long as a refusal takes, or longer: it goes well either way. */
        usleep(100000);
        OK(dat_psp_create(passive->ia, PORT + 3, passive->cr, DAT_PSP_CONSUMER_FLAG, &late));
        cr = requested(passive, late, PORT + 3, &param);
        OK(dat_cr_accept(cr, passive->ep, 0, NULL));
        established(passive, passive->ep);
    }
    if (active) {
        established(active, active->ep);
        OK(dat_ep_disconnect(active->ep, DAT_CLOSE_ABRUPT_FLAG));
        disconnected(active, active->ep);
        reset(active, active->ep);
    }
    if (passive) {
        disconnected(passive, passive->ep);
        reset(passive, passive->ep);
        OK(dat_psp_free(late));
    }
}

void connections(const struct side *active_side, const struct side *passive_side, const char *address)
{
    DAT_PSP_HANDLE psp = DAT_HANDLE_NULL, other = DAT_HANDLE_NULL, making = DAT_HANDLE_NULL;
    DAT_RSP_HANDLE rsp = DAT_HANDLE_NULL;
    DAT_CONN_QUAL other_port = 0;

    memset(&peer, 0, sizeof peer);
    peer.sin_family = AF_INET;
    HOLDS(inet_pton(AF_INET, address, &peer.sin_addr) == 1);
    if (active_side) {
        active = &ends[0];
        set_up(active, active_side->ia);
    }
    if (passive_side) {
        passive = &ends[1];
        set_up(passive, passive_side->ia);
        OK(dat_psp_create(passive->ia, PORT, passive->cr, DAT_PSP_CONSUMER_FLAG, &psp));
        OK(dat_psp_create_any(passive->ia, &other_port, passive->cr, DAT_PSP_CONSUMER_FLAG, &other));
        OK(dat_psp_create(passive->ia, PORT + 1, passive->cr, DAT_PSP_PROVIDER_FLAG, &making));
        puts("ready");
        fflush(stdout);
    }
    of_rejection(psp);
    of_acceptance(psp, other, other_port);
    of_transfers();
    of_duplicates(psp);
    of_the_end();
    if (passive)
        OK(dat_rsp_create(passive->ia, PORT + 2, passive->ep, passive->cr, &rsp));
    of_made_endpoints(making);
    of_reserved_service_points(rsp);
    of_shared_queues(psp);
    of_patience();
    if (active)
        tear_down(active);
    if (passive) {
        OK(dat_psp_free(psp));
        OK(dat_psp_free(other));
        OK(dat_psp_free(making));
        tear_down(passive);
    }
}
