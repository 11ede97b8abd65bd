/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 2.0's names for what DAT 1.2 has, too: programs written for 2.0 compile with them as far as they use no more than that, and are
 * linked with the library of 1.2. Lengths have 64 bits here. What 2.0 adds is not there, or DAT_MODEL_NOT_SUPPORTED. */
#ifndef DAT2_UDAT_H
#define DAT2_UDAT_H

#ifdef _UDAT_H_
#error "include <dat/udat.h> or <dat2/udat.h>, not both"
#endif

/* Of a peer's memory: 2.0 calls the address what it is in one's own. */
#define target_address virtual_address

#include <dat/udat.h>

typedef DAT_VLEN DAT_SEG_LENGTH;

typedef enum dat_va_type {
    DAT_VA_TYPE_VA = 0,
    DAT_VA_TYPE_ZB = 1
} DAT_VA_TYPE;

#define DAT_CONNECT_MULTIPATH_REQUESTED_FLAG DAT_CONNECT_MULTIPATH_FLAG

/* Programs ask which version they have; the library is asked for its own. */
#undef DAT_VERSION_MAJOR
#undef DAT_VERSION_MINOR
#define DAT_VERSION_MAJOR 2
#define DAT_VERSION_MINOR 0
#undef dat_ia_open
#define dat_ia_open(name, qlen, async_evd, ia) dat_ia_openv((name), (qlen), (async_evd), (ia), 1, 2, DAT_THREADSAFE)

/* Memory is addressed as the program addresses it. */
static inline DAT_RETURN dat2_lmr_create(DAT_IA_HANDLE ia_handle, DAT_MEM_TYPE mem_type,
    DAT_REGION_DESCRIPTION region_description, DAT_VLEN length, DAT_PZ_HANDLE pz_handle,
    DAT_MEM_PRIV_FLAGS mem_privileges, DAT_VA_TYPE va_type, DAT_LMR_HANDLE *lmr_handle,
    DAT_LMR_CONTEXT *lmr_context, DAT_RMR_CONTEXT *rmr_context, DAT_VLEN *registered_length,
    DAT_VADDR *registered_address)
{
    if (va_type != DAT_VA_TYPE_VA)
        return DAT_CLASS_ERROR | (DAT_RETURN)DAT_MODEL_NOT_SUPPORTED;
    return dat_lmr_create(ia_handle, mem_type, region_description, length, pz_handle, mem_privileges, lmr_handle,
        lmr_context, rmr_context, registered_length, registered_address);
}

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

/* Without private data, which 1.2 has not. */
static inline DAT_RETURN dat2_cr_reject(DAT_CR_HANDLE cr_handle, DAT_COUNT private_data_size,
    const DAT_PVOID private_data)
{
    (void)private_data;
    if (private_data_size != 0)
        return DAT_CLASS_ERROR | (DAT_RETURN)DAT_MODEL_NOT_SUPPORTED;
    return dat_cr_reject(cr_handle);
}

#define dat_lmr_create dat2_lmr_create
#define dat_rmr_bind dat2_rmr_bind
#define dat_cr_reject dat2_cr_reject

#endif /* DAT2_UDAT_H */
