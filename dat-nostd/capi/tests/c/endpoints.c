/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Endpoints without a connection, shared receive queues, service points. */
#include "calls.h"

#define PORT 9000

struct things {
    DAT_IA_HANDLE ia;
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE dto, conn, cr;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_TRIPLET local;
    DAT_RMR_TRIPLET remote;
    char memory[4096];
};

static void of_ep(struct things *t)
{
    DAT_EP_HANDLE ep, again;
    DAT_EP_ATTR attributes;
    DAT_EP_PARAM param;
    DAT_EP_STATE state;
    DAT_BOOLEAN receives, requests;
    DAT_COUNT buffers, span;
    DAT_HANDLE_TYPE kind;
    struct sockaddr peer;

    OK(dat_ep_create(t->ia, t->pz, t->dto, t->dto, t->conn, NULL, &ep));
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    HOLDS(param.ia_handle == t->ia && param.pz_handle == t->pz && param.recv_evd_handle == t->dto);
    HOLDS(param.connect_evd_handle == t->conn && param.srq_handle == DAT_HANDLE_NULL);
    HOLDS(param.ep_state == DAT_EP_STATE_UNCONNECTED && param.ep_attr.max_recv_dtos > 0);
    HOLDS(param.local_ia_address_ptr != NULL && param.remote_ia_address_ptr != NULL);
    /* The answer is legal to ask for; so is a mask with the bit that means nothing. */
    OK(dat_ep_create(t->ia, t->pz, t->dto, t->dto, t->conn, &param.ep_attr, &again));
    OK(dat_ep_query(again, 0xffff, &param));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_query(again, DAT_EP_FIELD_ALL, NULL));
    OK(dat_get_handle_type(again, &kind));
    HOLDS(kind == DAT_HANDLE_TYPE_EP);
    OK(dat_ep_free(again));

    memset(&attributes, 0, sizeof attributes);
    attributes.max_recv_dtos = attributes.max_request_dtos = 20;
    attributes.max_recv_iov = attributes.max_request_iov = 2;
    OK(dat_ep_create(t->ia, t->pz, t->dto, t->dto, t->conn, &attributes, &again));
    OK(dat_ep_free(again));
    attributes.max_recv_dtos = -1;
    FAILS(DAT_INVALID_PARAMETER, dat_ep_create(t->ia, t->pz, t->dto, t->dto, t->conn, &attributes, &again));
    FAILS(DAT_INVALID_HANDLE, dat_ep_create(t->ia, t->ia, t->dto, t->dto, t->conn, NULL, &again));
    FAILS(DAT_INVALID_HANDLE, dat_ep_create(t->ia, t->pz, t->conn, t->dto, t->conn, NULL, &again));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_create(t->ia, t->pz, t->dto, t->dto, t->conn, NULL, NULL));

    OK(dat_ep_get_status(ep, &state, &receives, &requests));
    HOLDS(state == DAT_EP_STATE_UNCONNECTED && receives == DAT_TRUE && requests == DAT_TRUE);
    OK(dat_ep_post_recv(ep, 1, &t->local, cookie_of(7), DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ep_get_status(ep, NULL, &receives, NULL));
    HOLDS(receives == DAT_FALSE);
    OK(dat_ep_recv_query(ep, &buffers, &span));
    HOLDS(buffers == 1 && span == 1);
    OK(dat_ep_set_watermark(ep, 5, DAT_WATERMARK_INFINITE));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_set_watermark(ep, -7, 0));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_post_recv(ep, -1, &t->local, cookie_of(0), DAT_COMPLETION_DEFAULT_FLAG));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_post_recv(ep, 1, NULL, cookie_of(0), DAT_COMPLETION_DEFAULT_FLAG));
    FAILS(DAT_INVALID_STATE, dat_ep_post_send(ep, 1, &t->local, cookie_of(0), DAT_COMPLETION_DEFAULT_FLAG));
    FAILS(DAT_INVALID_STATE,
          dat_ep_post_rdma_read(ep, 1, &t->local, cookie_of(0), &t->remote, DAT_COMPLETION_DEFAULT_FLAG));
    FAILS(DAT_INVALID_PARAMETER,
          dat_ep_post_rdma_write(ep, 1, &t->local, cookie_of(0), NULL, DAT_COMPLETION_DEFAULT_FLAG));
    FAILS(DAT_INVALID_STATE, dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_disconnect(ep, (DAT_CLOSE_FLAGS)3));
    OK(dat_ep_reset(ep));
    memset(&peer, 0, sizeof peer);
    FAILS(DAT_INVALID_ADDRESS, dat_ep_connect(ep, &peer, PORT, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
                                              DAT_CONNECT_DEFAULT_FLAG));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_connect(ep, NULL, PORT, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
                                                DAT_CONNECT_DEFAULT_FLAG));
    peer.sa_family = AF_INET;
    peer.sa_data[2] = 10;
    peer.sa_data[5] = 99;
    FAILS(DAT_INVALID_PARAMETER, dat_ep_connect(ep, &peer, PORT, PATIENCE, 3, NULL, DAT_QOS_BEST_EFFORT,
                                                DAT_CONNECT_DEFAULT_FLAG));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_connect(ep, &peer, PORT, PATIENCE, -1, NULL, DAT_QOS_BEST_EFFORT,
                                                DAT_CONNECT_DEFAULT_FLAG));
    FAILS(DAT_MODEL_NOT_SUPPORTED, dat_ep_connect(ep, &peer, PORT, PATIENCE, 0, NULL, DAT_QOS_PREMIUM,
                                                  DAT_CONNECT_DEFAULT_FLAG));
    FAILS(DAT_INVALID_STATE, dat_ep_dup_connect(ep, ep, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT));
    memset(&param, 0, sizeof param);
    param.ep_attr.max_request_dtos = 33;
    OK(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, &param));
    OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
    HOLDS(param.ep_attr.max_request_dtos == 33 && param.ep_attr.max_recv_dtos > 0);
    FAILS(DAT_INVALID_PARAMETER, dat_ep_modify(ep, DAT_EP_FIELD_IA_HANDLE, &param));
    FAILS(DAT_INVALID_PARAMETER, dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, NULL));
    OK(dat_ep_free(ep));
    FAILS(DAT_INVALID_HANDLE, dat_ep_free(ep));
    FAILS(DAT_INVALID_HANDLE, dat_ep_post_recv(ep, 1, &t->local, cookie_of(0), DAT_COMPLETION_DEFAULT_FLAG));
}

static void of_srq(struct things *t)
{
    DAT_SRQ_ATTR attributes;
    DAT_SRQ_HANDLE srq;
    DAT_SRQ_PARAM param;
    DAT_EP_HANDLE ep;
    DAT_EP_ATTR ep_attr;
    DAT_HANDLE_TYPE kind;

    memset(&attributes, 0, sizeof attributes);
    attributes.max_recv_dtos = 16;
    attributes.max_recv_iov = 2;
    attributes.low_watermark = DAT_SRQ_LW_DEFAULT;
    OK(dat_srq_create(t->ia, t->pz, &attributes, &srq));
    FAILS(DAT_INVALID_PARAMETER, dat_srq_create(t->ia, t->pz, NULL, &srq));
    FAILS(DAT_INVALID_PARAMETER, dat_srq_create(t->ia, t->pz, &attributes, NULL));
    OK(dat_get_handle_type(srq, &kind));
    HOLDS(kind == DAT_HANDLE_TYPE_SRQ);
    OK(dat_srq_post_recv(srq, 1, &t->local, cookie_of(1)));
    OK(dat_srq_post_recv(srq, 0, NULL, cookie_of(2)));
    FAILS(DAT_INVALID_PARAMETER, dat_srq_post_recv(srq, 1, NULL, cookie_of(3)));
    OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
    HOLDS(param.ia_handle == t->ia && param.pz_handle == t->pz && param.srq_state == DAT_SRQ_STATE_OPERATIONAL);
    HOLDS(param.max_recv_dtos >= 16 && param.available_dto_count == 2 && param.outstanding_dto_count == 2);
    FAILS(DAT_INVALID_PARAMETER, dat_srq_query(srq, DAT_SRQ_FIELD_ALL, NULL));
    OK(dat_srq_resize(srq, 20));
    FAILS(DAT_INVALID_PARAMETER, dat_srq_resize(srq, -1));
    FAILS(DAT_INVALID_PARAMETER, dat_srq_set_lw(srq, 10000));
    OK(dat_srq_set_lw(srq, 1));
    OK(dat_srq_set_lw(srq, 0));
    memset(&ep_attr, 0, sizeof ep_attr);
    ep_attr.max_recv_dtos = DAT_HW_DEFAULT;
    ep_attr.max_request_dtos = 8;
    ep_attr.max_recv_iov = ep_attr.max_request_iov = 1;
    OK(dat_ep_create_with_srq(t->ia, t->pz, t->dto, t->dto, t->conn, srq, &ep_attr, &ep));
    FAILS(DAT_INVALID_PARAMETER,
          dat_ep_create_with_srq(t->ia, t->pz, t->dto, t->dto, t->conn, srq, NULL, &ep));
    FAILS(DAT_INVALID_HANDLE,
          dat_ep_create_with_srq(t->ia, t->pz, t->dto, t->dto, t->conn, t->pz, &ep_attr, &ep));
    FAILS(DAT_INVALID_STATE, dat_ep_post_recv(ep, 1, &t->local, cookie_of(0), DAT_COMPLETION_DEFAULT_FLAG));
    FAILS(DAT_INVALID_STATE, dat_srq_free(srq));
    OK(dat_ep_free(ep));
    OK(dat_srq_free(srq));
    FAILS(DAT_INVALID_HANDLE, dat_srq_free(srq));
}

static void of_service_points(struct things *t)
{
    DAT_PSP_HANDLE psp, any;
    DAT_PSP_PARAM psp_param;
    DAT_RSP_HANDLE rsp;
    DAT_RSP_PARAM rsp_param;
    DAT_CONN_QUAL qualifier = 0;
    DAT_EP_HANDLE ep;
    DAT_EP_STATE state;

    OK(dat_psp_create(t->ia, PORT, t->cr, DAT_PSP_PROVIDER_FLAG, &psp));
    OK(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &psp_param));
    HOLDS(psp_param.ia_handle == t->ia && psp_param.conn_qual == PORT && psp_param.evd_handle == t->cr);
    HOLDS(psp_param.psp_flags == DAT_PSP_PROVIDER_FLAG);
    FAILS(DAT_INVALID_HANDLE, dat_psp_query(t->cr, DAT_PSP_FIELD_ALL, &psp_param));
    FAILS(DAT_INVALID_PARAMETER, dat_psp_query(psp, DAT_PSP_FIELD_ALL, NULL));
    FAILS(DAT_CONN_QUAL_IN_USE, dat_psp_create(t->ia, PORT, t->cr, DAT_PSP_CONSUMER_FLAG, &any));
    FAILS(DAT_INVALID_PARAMETER, dat_psp_create(t->ia, PORT + 1, t->cr, (DAT_PSP_FLAGS)5, &any));
    FAILS(DAT_INVALID_HANDLE, dat_psp_create(t->ia, PORT + 1, t->dto, DAT_PSP_CONSUMER_FLAG, &any));
    OK(dat_psp_create_any(t->ia, &qualifier, t->cr, DAT_PSP_CONSUMER_FLAG, &any));
    HOLDS(qualifier != 0);
    FAILS(DAT_INVALID_PARAMETER, dat_psp_create_any(t->ia, NULL, t->cr, DAT_PSP_CONSUMER_FLAG, &any));
    FAILS(DAT_INVALID_STATE, dat_evd_free(t->cr));
    OK(dat_psp_free(any));
    OK(dat_psp_free(psp));
    FAILS(DAT_INVALID_HANDLE, dat_psp_free(psp));

    OK(dat_ep_create(t->ia, t->pz, t->dto, t->dto, t->conn, NULL, &ep));
    OK(dat_rsp_create(t->ia, PORT, ep, t->cr, &rsp));
    OK(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, &rsp_param));
    HOLDS(rsp_param.ep_handle == ep && rsp_param.conn_qual == PORT && rsp_param.evd_handle == t->cr);
    FAILS(DAT_INVALID_PARAMETER, dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, NULL));
    OK(dat_ep_get_status(ep, &state, NULL, NULL));
    HOLDS(state == DAT_EP_STATE_RESERVED);
    FAILS(DAT_INVALID_STATE, dat_ep_free(ep));
    OK(dat_rsp_free(rsp));
    FAILS(DAT_INVALID_HANDLE, dat_rsp_free(rsp));
    OK(dat_ep_free(ep));
}

void endpoints(DAT_IA_HANDLE ia)
{
    static struct things t;

    t.ia = ia;
    OK(dat_pz_create(ia, &t.pz));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, EVD_FLAGS(DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG), &t.dto));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &t.conn));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &t.cr));
    t.local = REGION(ia, t.pz, t.memory, sizeof t.memory, &t.lmr, &t.remote);
    of_ep(&t);
    of_srq(&t);
    of_service_points(&t);
    OK(dat_lmr_free(t.lmr));
    OK(dat_evd_free(t.dto));
    OK(dat_evd_free(t.conn));
    OK(dat_evd_free(t.cr));
    OK(dat_pz_free(t.pz));
}
