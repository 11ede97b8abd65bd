/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program of DAT 2.0's names.
 *
 *     dat2 IA */
#include <dat2/udat.h>
#include <dat2/dat_ib_extensions.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) want(__LINE__, #call, (call), DAT_SUCCESS)
#define FAILS(type, call) want(__LINE__, #call, (call), (type))

static char memory[4096];

static void want(int line, const char *what, DAT_RETURN got, DAT_RETURN type)
{
    if (DAT_GET_TYPE(got) != type) {
        fprintf(stderr, "dat2.c:%d: %s: 0x%x\n", line, what, (unsigned)got);
        exit(EXIT_FAILURE);
    }
}

int main(int count, char **words)
{
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, evd;
    DAT_IA_HANDLE ia;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE lmr;
    DAT_RMR_HANDLE rmr;
    DAT_EP_HANDLE ep;
    DAT_REGION_DESCRIPTION region;
    DAT_RMR_TRIPLET remote;
    DAT_LMR_TRIPLET local;
    DAT_CONTEXT cookie;
    DAT_VLEN length;
    DAT_VADDR address;
    DAT_SEG_LENGTH segment = sizeof memory;
    DAT_EVENT event;
    DAT_COUNT more;

    if (count != 2 || DAT_VERSION_MAJOR != 2)
        return EXIT_FAILURE;
    OK(dat_ia_open(words[1], 8, &async_evd, &ia));
    OK(dat_pz_create(ia, &pz));
    region.for_va = memory;
    memset(&local, 0, sizeof local);
    memset(&remote, 0, sizeof remote);
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, segment, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_ZB, &lmr,
        &local.lmr_context, &remote.rmr_context, &length, &address));
    if (address != (DAT_VADDR)(uintptr_t)memory % 4096)
        return EXIT_FAILURE;
    OK(dat_lmr_free(lmr));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, segment, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &lmr,
        &local.lmr_context, &remote.rmr_context, &length, &address));
    local.virtual_address = remote.virtual_address = (DAT_VADDR)(uintptr_t)memory;
    local.segment_length = remote.segment_length = segment;
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL,
        (DAT_EVD_FLAGS)(DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_RMR_BIND_FLAG | DAT_EVD_SOFTWARE_FLAG),
        &evd));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = memory;
    OK(dat_evd_post_se(evd, &event));
    OK(dat_evd_post_se(evd, &event));
    memset(&event, 0xff, sizeof event);
    OK(dat_evd_wait(evd, 0, 1, &event, &more));
    if (event.event_data.software_event_data.pointer != memory || event.event_extension_data[7] != 0 || more != 1)
        return EXIT_FAILURE;
    OK(dat_evd_dequeue(evd, &event));
    FAILS(DAT_QUEUE_EMPTY, dat_evd_dequeue(evd, &event));
    OK(dat_ep_create(ia, pz, evd, evd, evd, NULL, &ep));
    OK(dat_rmr_create(pz, &rmr));
    cookie.as_64 = 1;
    /* There is no connection. */
    FAILS(DAT_INVALID_STATE, dat_rmr_bind(rmr, lmr, &local, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, ep, cookie,
        DAT_COMPLETION_DEFAULT_FLAG, &remote.rmr_context));
    FAILS(DAT_INVALID_STATE, dat_ep_post_rdma_write(ep, 1, &local, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
    FAILS(DAT_INVALID_HANDLE, dat_cr_reject(DAT_HANDLE_NULL, 0, NULL));
    FAILS(DAT_INVALID_HANDLE, dat_cr_reject(DAT_HANDLE_NULL, 3, memory));
    FAILS(DAT_INVALID_STATE, dat_ib_post_rdma_write_immed(ep, 1, &local, cookie, &remote, 7, DAT_COMPLETION_DEFAULT_FLAG));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return EXIT_SUCCESS;
}
