/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Checks of the C tests: what fails is named with its place, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <dat/udat.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE 30000000 /* microseconds */

static inline void fail_at(const char *file, int line, const char *what, DAT_RETURN got)
{
    const char *major = "", *minor = "";

    dat_strerror(got, &major, &minor);
    fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, what, major, minor);
    exit(EXIT_FAILURE);
}

static inline void want_at(const char *file, int line, const char *what, DAT_RETURN got, DAT_RETURN type)
{
    if (DAT_GET_TYPE(got) != type)
        fail_at(file, line, what, got);
}

static inline void true_at(const char *file, int line, const char *what, int holds)
{
    if (!holds) {
        fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
        exit(EXIT_FAILURE);
    }
}

/* The call succeeds; it fails with this type; this holds. */
#define OK(call) want_at(__FILE__, __LINE__, #call, (call), DAT_SUCCESS)
#define FAILS(type, call) want_at(__FILE__, __LINE__, #call, (call), (type))
#define HOLDS(condition) true_at(__FILE__, __LINE__, #condition, (condition) ? 1 : 0)

/* Flags, which C++ does not make of numbers. */
#define EVD_FLAGS(bits) ((DAT_EVD_FLAGS)(bits))
#define PRIVILEGES(bits) ((DAT_MEM_PRIV_FLAGS)(bits))
#define COMPLETION(bits) ((DAT_COMPLETION_FLAGS)(bits))

static inline DAT_CONTEXT cookie_of(DAT_UINT64 value)
{
    DAT_CONTEXT cookie;

    cookie.as_64 = value;
    return cookie;
}

static inline DAT_EVENT wait_at(const char *file, int line, DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;
    DAT_COUNT more;

    memset(&event, 0, sizeof event);
    want_at(file, line, "dat_evd_wait", dat_evd_wait(evd, PATIENCE, 1, &event, &more), DAT_SUCCESS);
    true_at(file, line, "the event's EVD is the one waited on", event.evd_handle == evd);
    return event;
}

/* The next event of an EVD, and the next one, which is this. */
#define NEXT(evd) wait_at(__FILE__, __LINE__, (evd))

static inline DAT_EVENT expect_at(const char *file, int line, DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number)
{
    DAT_EVENT event = wait_at(file, line, evd);

    if (event.event_number != number) {
        fprintf(stderr, "%s:%d: event 0x%x and not 0x%x\n", file, line, (unsigned)event.event_number,
                (unsigned)number);
        exit(EXIT_FAILURE);
    }
    return event;
}

#define EXPECT(evd, number) expect_at(__FILE__, __LINE__, (evd), (number))

/* Registers memory of the program's. */
static inline DAT_LMR_TRIPLET region_at(const char *file, int line, DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, void *memory,
                                        DAT_VLEN length, DAT_LMR_HANDLE *lmr, DAT_RMR_TRIPLET *remote)
{
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_TRIPLET local;
    DAT_VLEN size;
    DAT_VADDR address;

    region.for_va = memory;
    memset(&local, 0, sizeof local);
    memset(remote, 0, sizeof *remote);
    want_at(file, line, "dat_lmr_create",
            dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, length, pz, DAT_MEM_PRIV_ALL_FLAG, lmr,
                           &local.lmr_context, &remote->rmr_context, &size, &address),
            DAT_SUCCESS);
    local.virtual_address = remote->target_address = (DAT_VADDR)(uintptr_t)memory;
    local.segment_length = remote->segment_length = length;
    true_at(file, line, "what was registered covers what was asked for",
            address <= local.virtual_address && address + size >= local.virtual_address + length);
    return local;
}

#define REGION(ia, pz, memory, length, lmr, remote) \
    region_at(__FILE__, __LINE__, (ia), (pz), (memory), (length), (lmr), (remote))

#endif /* CHECK_H */
