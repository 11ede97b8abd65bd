/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 2.0's names for what this library has: DAT 1.2 and <dat/dat_ib_extensions.h>. Programs
 * written for 2.0 compile with them as far as they use no more than that, and are linked with the
 * same library. Lengths have 64 bits here. */
#ifndef DAT2_UDAT_H
#define DAT2_UDAT_H

#ifdef _UDAT_H_
#error "include <dat/udat.h> or <dat2/udat.h>, not both"
#endif

/* Of a peer's memory: 2.0 calls the address what it is in one's own. */
#define target_address virtual_address

#include <dat/dat_ib_extensions.h>

typedef DAT_VLEN DAT_SEG_LENGTH;

#define DAT_CONNECT_MULTIPATH_REQUESTED_FLAG DAT_CONNECT_MULTIPATH_FLAG

/* Programs ask which version they have; the library is asked for its own. */
#undef DAT_VERSION_MAJOR
#undef DAT_VERSION_MINOR
#define DAT_VERSION_MAJOR 2
#define DAT_VERSION_MINOR 0
#undef dat_ia_open
#define dat_ia_open(name, qlen, async_evd, ia) dat_ia_openv((name), (qlen), (async_evd), (ia), 1, 2, DAT_THREADSAFE)

/* The segment says which region it is of. */
static inline DAT_RETURN dat2_rmr_bind(DAT_RMR_HANDLE rmr_handle, DAT_LMR_HANDLE lmr_handle,
    const DAT_LMR_TRIPLET *lmr_triplet, DAT_MEM_PRIV_FLAGS mem_privileges, DAT_VA_TYPE va_type,
    DAT_EP_HANDLE ep_handle, DAT_RMR_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags,
    DAT_RMR_CONTEXT *rmr_context)
{
    (void)lmr_handle;
    if (va_type != DAT_VA_TYPE_VA)
        return DAT_CLASS_ERROR | (DAT_RETURN)DAT_MODEL_NOT_SUPPORTED;
    return dat_rmr_bind(rmr_handle, lmr_triplet, mem_privileges, ep_handle, user_cookie, completion_flags,
        rmr_context);
}

static inline DAT_RETURN dat2_evd_post_se(DAT_EVD_HANDLE evd_handle, const DAT_IB_EVENT *event)
{
    return dat_evd_post_se(evd_handle, (const DAT_EVENT *)(const void *)event);
}

/* Events of 2.0 have extension data. */
#define DAT_EVENT DAT_IB_EVENT
#define dat_evd_wait dat_ib_evd_wait
#define dat_evd_dequeue dat_ib_evd_dequeue
#define dat_evd_post_se dat2_evd_post_se
#define dat_lmr_create dat_ib_lmr_create
#define dat_rmr_bind dat2_rmr_bind
#define dat_cr_reject dat_ib_cr_reject

#endif /* DAT2_UDAT_H */
