/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every call that needs no peer, with what it refuses. */
#include "calls.h"
#include <dat/dat_registry.h>
#include <sys/mman.h>

static char bss[64];
static const char message[64] = "read only";
static int agents_called;
static DAT_EVD_HANDLE agent_saw;

static void agent(DAT_PVOID instance_data, DAT_EVD_HANDLE evd)
{
    agent_saw = evd;
    __sync_fetch_and_add((int *)instance_data, 1);
}

static void contexts(DAT_HANDLE handle, DAT_HANDLE_TYPE kind)
{
    DAT_CONTEXT context = cookie_of(1);
    DAT_HANDLE_TYPE found;

    OK(dat_get_consumer_context(handle, &context));
    HOLDS(context.as_64 == 0);
    OK(dat_set_consumer_context(handle, cookie_of(UINT64_C(0x1122334455667788))));
    OK(dat_get_consumer_context(handle, &context));
    HOLDS(context.as_64 == UINT64_C(0x1122334455667788));
    OK(dat_get_handle_type(handle, &found));
    HOLDS(found == kind);
    FAILS(DAT_INVALID_PARAMETER, dat_get_consumer_context(handle, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_get_handle_type(handle, NULL));
}

static void of_ia(DAT_IA_HANDLE ia, DAT_EVD_HANDLE async_evd)
{
    DAT_IA_ATTR attributes;
    DAT_PROVIDER_ATTR provider;
    DAT_EVD_HANDLE evd;
    DAT_EVD_PARAM evd_param;

    OK(dat_ia_query(ia, &evd, DAT_IA_FIELD_ALL, &attributes, DAT_PROVIDER_FIELD_ALL, &provider));
    HOLDS(evd == async_evd);
    HOLDS(attributes.ia_address_ptr->sa_family == DAT_AF_INET);
    HOLDS(attributes.max_eps > 0 && attributes.max_evd_qlen > 0 && strlen(attributes.adapter_name) > 0);
    HOLDS(provider.dapl_version_major == 1 && provider.max_private_data_size >= 48);
    HOLDS(provider.evd_stream_merging_supported[1][3] == DAT_TRUE);
    HOLDS(provider.evd_stream_merging_supported[5][0] == DAT_FALSE);
    OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_NONE, NULL, DAT_PROVIDER_FIELD_NONE, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_ia_query(ia, NULL, DAT_IA_ALL, NULL, 0, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_ia_query(ia, NULL, ~DAT_IA_FIELD_ALL, &attributes, 0, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_ia_query(async_evd, NULL, 0, NULL, 0, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_ia_close(DAT_HANDLE_NULL, DAT_CLOSE_ABRUPT_FLAG));
    FAILS(DAT_INVALID_PARAMETER, dat_ia_close(ia, (DAT_CLOSE_FLAGS)7));
    OK(dat_evd_query(async_evd, DAT_EVD_FIELD_ALL, &evd_param));
    HOLDS(evd_param.ia_handle == ia && evd_param.evd_flags == DAT_EVD_ASYNC_FLAG);
    contexts(ia, DAT_HANDLE_TYPE_IA);
}

static void of_names(char *name)
{
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia, again;
    DAT_COUNT known = -1, all;
    DAT_PROVIDER_INFO first, own;
    DAT_PROVIDER_INFO *list[1];
    static DAT_PROVIDER provider;
    const char *major, *minor;

    FAILS(DAT_PROVIDER_NOT_FOUND, dat_ia_open((DAT_NAME_PTR)"nobody", 8, &evd, &ia));
    FAILS(DAT_PROVIDER_NOT_FOUND, dat_ia_openv(name, 8, &evd, &ia, 1, 3, DAT_FALSE));
    FAILS(DAT_INVALID_PARAMETER, dat_ia_open(NULL, 8, &evd, &ia));
    FAILS(DAT_INVALID_PARAMETER, dat_ia_open(name, 8, NULL, &ia));
    FAILS(DAT_INVALID_PARAMETER, dat_ia_open(name, 0, &evd, &ia));
    /* Opened again, and closed: another handle. */
    OK(dat_ia_open(name, 8, &evd, &ia));
    again = ia;
    evd = DAT_EVD_ASYNC_EXISTS;
    OK(dat_ia_open(name, 8, &evd, &ia));
    HOLDS(evd == DAT_EVD_OUT_OF_SCOPE && ia != again);
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    OK(dat_ia_close(again, DAT_CLOSE_GRACEFUL_FLAG));
    FAILS(DAT_INVALID_HANDLE, dat_ia_close(again, DAT_CLOSE_GRACEFUL_FLAG));

    FAILS(DAT_INVALID_PARAMETER, dat_registry_list_providers(0, &known, NULL));
    HOLDS(known >= 0);
    memset(&own, 0, sizeof own);
    strcpy(own.ia_name, "own");
    own.dapl_version_major = 1;
    own.dapl_version_minor = 2;
    OK(dat_registry_add_provider(&provider, &own));
    FAILS(DAT_PROVIDER_ALREADY_REGISTERED, dat_registry_add_provider(&provider, &own));
    list[0] = &first;
    if (known == 0)
        OK(dat_registry_list_providers(1, &all, list));
    else
        FAILS(DAT_INVALID_PARAMETER, dat_registry_list_providers(1, &all, list));
    HOLDS(all == known + 1 && strcmp(first.ia_name, "own") == 0);
    OK(dat_registry_remove_provider(&provider, &own));
    FAILS(DAT_INVALID_PARAMETER, dat_registry_remove_provider(&provider, &own));
    FAILS(DAT_INVALID_PARAMETER, dat_registry_add_provider(NULL, &own));

    OK(dat_strerror(DAT_SUCCESS, &major, &minor));
    HOLDS(strcmp(major, "DAT_SUCCESS") == 0);
    OK(dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EP_CONNECTED, &major, &minor));
    HOLDS(strcmp(major, "DAT_INVALID_STATE") == 0 && strcmp(minor, "DAT_INVALID_STATE_EP_CONNECTED") == 0);
    FAILS(DAT_INVALID_PARAMETER, dat_strerror(0x83330000, &major, &minor));
    HOLDS(major != NULL && minor != NULL);
}

static void of_notification(DAT_IA_HANDLE ia)
{
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL, called;
    DAT_CNO_HANDLE cno, other;
    DAT_CNO_PARAM cno_param;
    DAT_EVD_HANDLE evd, saw;
    DAT_EVD_PARAM evd_param;
    DAT_EVENT event;
    DAT_COUNT more;

    called.instance_data = &agents_called;
    called.proxy_agent_func = agent;
    OK(dat_cno_create(ia, none, &cno));
    OK(dat_cno_create(ia, called, &other));
    contexts(cno, DAT_HANDLE_TYPE_CNO);
    OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &cno_param));
    HOLDS(cno_param.ia_handle == ia && cno_param.agent.proxy_agent_func == NULL);
    OK(dat_cno_modify_agent(cno, called));
    OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &cno_param));
    HOLDS(cno_param.agent.proxy_agent_func == agent && cno_param.agent.instance_data == &agents_called);
    OK(dat_cno_modify_agent(cno, none));
    FAILS(DAT_INVALID_HANDLE, dat_cno_query(ia, DAT_CNO_FIELD_ALL, &cno_param));
    FAILS(DAT_INVALID_PARAMETER, dat_cno_query(cno, DAT_CNO_FIELD_ALL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_cno_create(ia, none, NULL));

    OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    contexts(evd, DAT_HANDLE_TYPE_EVD);
    FAILS(DAT_INVALID_PARAMETER, dat_evd_create(ia, -1, cno, DAT_EVD_SOFTWARE_FLAG, &saw));
    FAILS(DAT_INVALID_PARAMETER, dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_evd_create(ia, 8, evd, DAT_EVD_SOFTWARE_FLAG, &saw));
    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &evd_param));
    HOLDS(evd_param.evd_qlen >= 8 && evd_param.cno_handle == cno);
    HOLDS((evd_param.evd_state & DAT_EVD_STATE_ENABLED) && (evd_param.evd_state & DAT_EVD_STATE_WAITABLE));
    FAILS(DAT_INVALID_HANDLE, dat_evd_query(ia, DAT_EVD_FIELD_ALL, &evd_param));
    FAILS(DAT_INVALID_PARAMETER, dat_evd_query(evd, DAT_EVD_FIELD_ALL, NULL));

    FAILS(DAT_QUEUE_EMPTY, dat_cno_wait(cno, 1000, &saw));
    HOLDS(saw == DAT_HANDLE_NULL);
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = bss;
    OK(dat_evd_post_se(evd, &event));
    OK(dat_cno_wait(cno, PATIENCE, &saw));
    HOLDS(saw == evd);
    FAILS(DAT_INVALID_STATE, dat_cno_free(cno));
    OK(dat_evd_resize(evd, 64));
    memset(&event, 0, sizeof event);
    OK(dat_evd_dequeue(evd, &event));
    HOLDS(event.event_number == DAT_SOFTWARE_EVENT && event.evd_handle == evd);
    HOLDS(event.event_data.software_event_data.pointer == bss);
    /* As programs compare it: without class bits. */
    HOLDS(dat_evd_dequeue(evd, &event) == DAT_QUEUE_EMPTY);
    FAILS(DAT_TIMEOUT_EXPIRED, dat_evd_wait(evd, 0, 1, &event, &more));
    FAILS(DAT_TIMEOUT_EXPIRED, dat_evd_wait(evd, 1000, 1, &event, &more));
    HOLDS(more == 0);
    FAILS(DAT_INVALID_PARAMETER, dat_evd_wait(evd, 0, 0, &event, &more));
    FAILS(DAT_INVALID_PARAMETER, dat_evd_wait(evd, 0, 1, NULL, &more));
    event.event_number = DAT_DTO_COMPLETION_EVENT;
    FAILS(DAT_INVALID_PARAMETER, dat_evd_post_se(evd, &event));
    FAILS(DAT_INVALID_PARAMETER, dat_evd_post_se(evd, NULL));

    OK(dat_evd_disable(evd));
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(evd, &event));
    FAILS(DAT_QUEUE_EMPTY, dat_cno_wait(cno, 1000, &saw));
    OK(dat_evd_enable(evd));
    OK(dat_evd_set_unwaitable(evd));
    FAILS(DAT_INVALID_STATE, dat_evd_wait(evd, 0, 1, &event, &more));
    OK(dat_evd_clear_unwaitable(evd));
    EXPECT(evd, DAT_SOFTWARE_EVENT);

    /* The agent is called by the library's thread, once. */
    agents_called = 0;
    OK(dat_evd_modify_cno(evd, other));
    OK(dat_evd_post_se(evd, &event));
    while (__sync_fetch_and_add(&agents_called, 0) == 0)
        ;
    HOLDS(agent_saw == evd && agents_called == 1);
    OK(dat_cno_query(other, DAT_CNO_FIELD_ALL, &cno_param));
    HOLDS(cno_param.agent.proxy_agent_func == NULL);
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
    OK(dat_cno_free(other));
    OK(dat_evd_free(evd));
    FAILS(DAT_INVALID_HANDLE, dat_evd_free(evd));
    FAILS(DAT_INVALID_HANDLE, dat_evd_dequeue(evd, &event));
}

static void of_memory(DAT_IA_HANDLE ia)
{
    DAT_PZ_HANDLE pz, other;
    DAT_PZ_PARAM pz_param;
    DAT_LMR_HANDLE lmr, twice, child, shared;
    DAT_LMR_PARAM lmr_param;
    DAT_LMR_CONTEXT context;
    DAT_RMR_CONTEXT remote_context;
    DAT_LMR_TRIPLET local;
    DAT_RMR_TRIPLET remote;
    DAT_REGION_DESCRIPTION region;
    DAT_RMR_HANDLE rmr;
    DAT_RMR_PARAM rmr_param;
    char stack[32];
    char cookie[DAT_LMR_COOKIE_SIZE] = "a cookie";
    char *heap = (char *)malloc(100000);

    HOLDS(heap != NULL);
    OK(dat_pz_create(ia, &pz));
    OK(dat_pz_create(ia, &other));
    contexts(pz, DAT_HANDLE_TYPE_PZ);
    OK(dat_pz_query(pz, DAT_PZ_FIELD_ALL, &pz_param));
    HOLDS(pz_param.ia_handle == ia);
    FAILS(DAT_INVALID_PARAMETER, dat_pz_query(pz, DAT_PZ_FIELD_ALL, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_pz_query(ia, DAT_PZ_FIELD_ALL, &pz_param));
    FAILS(DAT_INVALID_PARAMETER, dat_pz_create(ia, NULL));

    /* Heap, twice; .bss; stack. */
    local = REGION(ia, pz, heap, 100000, &lmr, &remote);
    REGION(ia, pz, heap, 100000, &twice, &remote);
    OK(dat_lmr_free(twice));
    REGION(ia, pz, bss, sizeof bss, &twice, &remote);
    OK(dat_lmr_free(twice));
    REGION(ia, pz, stack, sizeof stack, &twice, &remote);
    OK(dat_lmr_free(twice));
    FAILS(DAT_INVALID_HANDLE, dat_lmr_free(twice));
    contexts(lmr, DAT_HANDLE_TYPE_LMR);
    OK(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &lmr_param));
    HOLDS(lmr_param.ia_handle == ia && lmr_param.pz_handle == pz && lmr_param.mem_type == DAT_MEM_TYPE_VIRTUAL);
    HOLDS(lmr_param.region_desc.for_va == heap && lmr_param.length == 100000);
    HOLDS(lmr_param.mem_priv == DAT_MEM_PRIV_ALL_FLAG && lmr_param.lmr_context == local.lmr_context);
    FAILS(DAT_INVALID_PARAMETER, dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, NULL));
    region.for_va = heap;
    FAILS(DAT_LENGTH_ERROR, dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 0, pz, DAT_MEM_PRIV_ALL_FLAG, &twice,
                                           NULL, NULL, NULL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_lmr_create(ia, (DAT_MEM_TYPE)9, region, 8, pz, DAT_MEM_PRIV_ALL_FLAG, &twice,
                                                NULL, NULL, NULL, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 8, ia, DAT_MEM_PRIV_ALL_FLAG, &twice,
                                             NULL, NULL, NULL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 8, pz, DAT_MEM_PRIV_ALL_FLAG, NULL,
                                                NULL, NULL, NULL, NULL));
    region.for_va = (DAT_PVOID)16;
    FAILS(DAT_INVALID_PARAMETER, dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 8, pz, DAT_MEM_PRIV_ALL_FLAG,
                                                &twice, NULL, NULL, NULL, NULL));
    /* The memory of a region again, with fewer rights. */
    region.for_lmr_handle = lmr;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_LMR, region, 0, other, DAT_MEM_PRIV_LOCAL_READ_FLAG, &child, &context,
                      &remote_context, NULL, NULL));
    HOLDS(remote_context == 0 && context != local.lmr_context);
    OK(dat_lmr_query(child, DAT_LMR_FIELD_ALL, &lmr_param));
    HOLDS(lmr_param.mem_type == DAT_MEM_TYPE_LMR && lmr_param.region_desc.for_lmr_handle == lmr);
    /* Shared memory: a cookie names one range. */
    region.for_shared_memory.virtual_address = heap;
    region.for_shared_memory.shared_memory_id = &cookie;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_SHARED_VIRTUAL, region, 4096, pz, DAT_MEM_PRIV_ALL_FLAG, &shared, &context,
                      NULL, NULL, NULL));
    FAILS(DAT_INVALID_STATE, dat_lmr_create(ia, DAT_MEM_TYPE_SHARED_VIRTUAL, region, 8192, pz, DAT_MEM_PRIV_ALL_FLAG,
                                            &twice, &context, NULL, NULL, NULL));
    OK(dat_lmr_free(shared));

    OK(dat_lmr_sync_rdma_read(ia, &local, 1));
    OK(dat_lmr_sync_rdma_write(ia, &local, 1));
    local.segment_length++;
    FAILS(DAT_INVALID_PARAMETER, dat_lmr_sync_rdma_read(ia, &local, 1));
    FAILS(DAT_INVALID_PARAMETER, dat_lmr_sync_rdma_write(ia, NULL, 1));
    FAILS(DAT_INVALID_HANDLE, dat_lmr_sync_rdma_read(pz, &local, 1));

    OK(dat_rmr_create(pz, &rmr));
    contexts(rmr, DAT_HANDLE_TYPE_RMR);
    OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &rmr_param));
    HOLDS(rmr_param.pz_handle == pz && rmr_param.ia_handle == ia);
    FAILS(DAT_INVALID_PARAMETER, dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, NULL));
    FAILS(DAT_INVALID_PARAMETER, dat_rmr_create(pz, NULL));
    FAILS(DAT_INVALID_STATE, dat_pz_free(pz));
    OK(dat_rmr_free(rmr));
    OK(dat_lmr_free(child));
    OK(dat_lmr_free(lmr));
    OK(dat_pz_free(pz));
    OK(dat_pz_free(other));
    FAILS(DAT_INVALID_HANDLE, dat_pz_free(pz));
    FAILS(DAT_INVALID_HANDLE, dat_rmr_create(pz, &rmr));
    free(heap);
}

/* Memory that the program may only read, and that an IOMMU does not let the HCA write either. */
static void of_read_only_memory(DAT_IA_HANDLE ia)
{
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE readable, writable;
    DAT_LMR_CONTEXT context;
    DAT_REGION_DESCRIPTION region;
    char *page = (char *)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    HOLDS(page != MAP_FAILED);
    OK(dat_pz_create(ia, &pz));
    region.for_va = (DAT_PVOID)message;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof message, pz, DAT_MEM_PRIV_LOCAL_READ_FLAG, &readable,
                      &context, NULL, NULL, NULL));
    OK(dat_lmr_free(readable));
    FAILS(DAT_INVALID_PARAMETER, dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof message, pz,
                                                DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &writable, &context, NULL, NULL, NULL));
    region.for_va = page;
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, pz,
                      PRIVILEGES(DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG), &readable, &context, NULL,
                      NULL, NULL));
    /* Each region has its own rights. */
    HOLDS(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, pz, DAT_MEM_PRIV_ALL_FLAG, &writable, &context, NULL, NULL,
                      NULL));
    OK(dat_lmr_free(readable));
    OK(dat_lmr_free(writable));
    OK(dat_pz_free(pz));
    HOLDS(munmap(page, 4096) == 0);
}

void objects(char *name, DAT_IA_HANDLE ia, DAT_EVD_HANDLE async_evd)
{
    of_ia(ia, async_evd);
    of_names(name);
    of_notification(ia);
    of_memory(ia);
    of_read_only_memory(ia);
}
