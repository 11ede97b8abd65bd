/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* InfiniBand beyond DAT 1.2: immediate data, atomic operations, invalidation by the peer, zero-based
 * regions, private data of a rejection. Names and numbers are DAT 2.0's and OpenFabrics', where they
 * have any. Include it in place of <dat/udat.h>. */
#ifndef DAT_IB_EXTENSIONS_H
#define DAT_IB_EXTENSIONS_H

#if defined(_UDAT_H_) && !defined(DAT_EXTENSIONS)
#error "include <dat/dat_ib_extensions.h> before <dat/udat.h>, or define DAT_EXTENSIONS"
#endif
#ifndef DAT_EXTENSIONS
#define DAT_EXTENSIONS 1
#endif
#include <dat/udat.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Peers may do atomic operations. Needs DAT_MEM_PRIV_LOCAL_WRITE_FLAG. */
#define DAT_IB_MEM_PRIV_REMOTE_ATOMIC DAT_MEM_PRIV_EXTENSION_BASE

/* Names of a region's bytes: addresses of the program, or offsets. */
typedef enum dat_va_type {
    DAT_VA_TYPE_VA = 0,
    DAT_VA_TYPE_ZB = 1
} DAT_VA_TYPE;

/* Number of a transfer's event that has extension data. */
#define DAT_IB_DTO_EVENT DAT_IB_EXTENSION_RANGE_BASE

typedef enum dat_ib_ext_type {
    DAT_IB_FETCH_AND_ADD = 0,
    DAT_IB_CMP_AND_SWAP = 1,
    /* A receive took immediate data: val.immed. */
    DAT_IB_RDMA_WRITE_IMMED_DATA = 3,
    /* A receive came with the end of a window: val.rmr_context. Not of OpenFabrics. */
    DAT_IB_RECV_INVALIDATED = 0x100
} DAT_IB_EXT_TYPE;

/* The event's own status says which error it is. */
typedef enum dat_ib_status {
    DAT_OP_SUCCESS = 0,
    DAT_IB_OP_ERR = 1
} DAT_IB_STATUS;

typedef struct dat_ib_immed_data {
    DAT_UINT32 data;
} DAT_IB_IMMED_DATA;

/* Content of event_extension_data. */
typedef struct dat_ib_extension_event_data {
    DAT_IB_EXT_TYPE type;
    DAT_IB_STATUS status;
    union {
        DAT_IB_IMMED_DATA immed;
        DAT_RMR_CONTEXT rmr_context;
    } val;
} DAT_IB_EXTENSION_EVENT_DATA;

/* DAT_EVENT with extension data, which is a DAT_IB_EXTENSION_EVENT_DATA if event_number is
 * DAT_IB_DTO_EVENT. */
typedef struct dat_ib_event {
    DAT_EVENT_NUMBER event_number;
    DAT_EVD_HANDLE evd_handle;
    DAT_EVENT_DATA event_data;
    DAT_UINT64 event_extension_data[8];
} DAT_IB_EVENT;

DAT_RETURN dat_ib_evd_wait(DAT_EVD_HANDLE evd_handle, DAT_TIMEOUT timeout, DAT_COUNT threshold,
    DAT_IB_EVENT *event, DAT_COUNT *nmore);
DAT_RETURN dat_ib_evd_dequeue(DAT_EVD_HANDLE evd_handle, DAT_IB_EVENT *event);

DAT_RETURN dat_ib_post_rdma_write_immed(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments,
    DAT_LMR_TRIPLET *local_iov, DAT_DTO_COOKIE user_cookie, const DAT_RMR_TRIPLET *remote_iov,
    DAT_UINT32 immediate, DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ib_post_cmp_and_swap(DAT_EP_HANDLE ep_handle, DAT_UINT64 compare, DAT_UINT64 swap,
    DAT_LMR_TRIPLET *local_iov, DAT_DTO_COOKIE user_cookie, const DAT_RMR_TRIPLET *remote_iov,
    DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ib_post_fetch_and_add(DAT_EP_HANDLE ep_handle, DAT_UINT64 add,
    DAT_LMR_TRIPLET *local_iov, DAT_DTO_COOKIE user_cookie, const DAT_RMR_TRIPLET *remote_iov,
    DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_send_with_invalidate(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments,
    DAT_LMR_TRIPLET *local_iov, DAT_DTO_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags,
    DAT_BOOLEAN invalidate_flag, DAT_RMR_CONTEXT rmr_context);
DAT_RETURN dat_rmr_create_for_ep(DAT_PZ_HANDLE pz_handle, DAT_RMR_HANDLE *rmr_handle);

DAT_RETURN dat_ib_lmr_create(DAT_IA_HANDLE ia_handle, DAT_MEM_TYPE mem_type,
    DAT_REGION_DESCRIPTION region_description, DAT_VLEN length, DAT_PZ_HANDLE pz_handle,
    DAT_MEM_PRIV_FLAGS mem_privileges, DAT_VA_TYPE va_type, DAT_LMR_HANDLE *lmr_handle,
    DAT_LMR_CONTEXT *lmr_context, DAT_RMR_CONTEXT *rmr_context, DAT_VLEN *registered_length,
    DAT_VADDR *registered_address);
DAT_RETURN dat_ib_cr_reject(DAT_CR_HANDLE cr_handle, DAT_COUNT private_data_size,
    const DAT_PVOID private_data);

#ifdef __cplusplus
}
#endif

#endif /* DAT_IB_EXTENSIONS_H */
