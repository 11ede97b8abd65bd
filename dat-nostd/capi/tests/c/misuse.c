/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Random calls with wrong arguments: they answer, and the library goes on.
 *
 *     misuse IA SEED CALLS */
#include <dat/dat_ib_extensions.h>
#include "check.h"
#include <dat/dat_registry.h>

#define HANDLES 64
/* Every how many calls handles of all kinds are made anew, as far as random ones do not: what is freed soon is no test. */
#define SEEDING 500

static DAT_IA_HANDLE ia;
static uint64_t state;
/* Handles of all kinds, live and dead. */
static DAT_HANDLE handles[HANDLES];
static char memory[8192];

/* xorshift64* */
static uint64_t any(uint64_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(0x2545f4914f6cdd1d) % below;
}

static DAT_HANDLE handle(void)
{
    switch (any(8)) {
    case 0:
        return (DAT_HANDLE)(uintptr_t)any(5);
    case 1:
        return (DAT_HANDLE)(uintptr_t)(any(UINT64_C(1) << 62) * 4);
    case 2:
        return ia;
    case 3:
        /* One bit off. */
        return (DAT_HANDLE)((uintptr_t)handles[any(HANDLES)] ^ (uintptr_t)1 << any(64));
    default:
        return handles[any(HANDLES)];
    }
}

/* Mostly one of this kind that lives, if there is any: wrong is then what comes behind it. */
static DAT_HANDLE of(DAT_HANDLE_TYPE kind)
{
    int tries;

    for (tries = any(4) ? HANDLES : 0; tries > 0; tries--) {
        DAT_HANDLE one = kind == DAT_HANDLE_TYPE_IA ? ia : handles[any(HANDLES)];
        DAT_HANDLE_TYPE found;

        if (dat_get_handle_type(one, &found) == DAT_SUCCESS && found == kind)
            return one;
    }
    return handle();
}

static DAT_COUNT count(void)
{
    static const DAT_COUNT counts[] = { -2147483647, -2, -1, 0, 1, 2, 3, 16, 100, 65536, 2147483647 };

    return counts[any(sizeof counts / sizeof *counts)];
}

static uint64_t number(void)
{
    static const uint64_t numbers[] = { 0, 1, 2, 7, 0x10, 0x33, 0x1f0, 0x3ff, 4096, 0xffff, 0x7ffff7ff, ~UINT64_C(0) };

    return any(4) ? numbers[any(sizeof numbers / sizeof *numbers)] : any(UINT64_C(1) << 63);
}

/* Memory of the program's, or nothing. */
static void *place(void)
{
    return any(4) ? memory + any(4000) : NULL;
}

static DAT_LMR_TRIPLET segments[16];

static DAT_LMR_TRIPLET *iov(void)
{
    int i;

    for (i = 0; i < 16; i++) {
        segments[i].lmr_context = (DAT_LMR_CONTEXT)number();
        segments[i].virtual_address = number();
        segments[i].segment_length = number();
    }
    return any(4) ? segments : NULL;
}

/* As many segments as there are, or none that could be. */
static DAT_COUNT segment_count(void)
{
    return any(3) ? (DAT_COUNT)any(17) : any(2) ? -(DAT_COUNT)any(100) : (DAT_COUNT)(1000000 + any(2146000000));
}

/* A name that is too long, empty, of nobody, or none. */
static DAT_NAME_PTR name(void)
{
    static char names[3][300] = { "", "nobody", "nobody@10.0.0.1" };
    static char endless[300];

    memset(endless, 'a' + (int)any(26), sizeof endless);
    return any(4) == 0 ? NULL : any(4) == 0 ? endless : names[any(3)];
}

static void keep(DAT_HANDLE made)
{
    handles[any(HANDLES)] = made;
}

/* One of each kind of object that others are made on. */
static void seed_handles(void)
{
    DAT_HANDLE pz, evd, made;
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_CONTEXT context;
    DAT_SRQ_ATTR attributes = { 8, 1, DAT_SRQ_LW_DEFAULT };
    DAT_CONN_QUAL qual;

    if (dat_pz_create(ia, &pz) == DAT_SUCCESS) {
        keep(pz);
        region.for_va = memory;
        if (dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pz, DAT_MEM_PRIV_ALL_FLAG, &made, &context,
                           NULL, NULL, NULL) == DAT_SUCCESS)
            keep(made);
        if (dat_rmr_create(pz, &made) == DAT_SUCCESS)
            keep(made);
        if (dat_srq_create(ia, pz, &attributes, &made) == DAT_SUCCESS)
            keep(made);
    }
    if (dat_evd_create(ia, 8, DAT_HANDLE_NULL, EVD_FLAGS(DAT_EVD_DEFAULT_FLAG), &evd) == DAT_SUCCESS) {
        keep(evd);
        if (dat_ep_create(ia, DAT_HANDLE_NULL, evd, evd, evd, NULL, &made) == DAT_SUCCESS)
            keep(made);
        if (dat_psp_create_any(ia, &qual, evd, DAT_PSP_CONSUMER_FLAG, &made) == DAT_SUCCESS)
            keep(made);
    }
    if (dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &made) == DAT_SUCCESS)
        keep(made);
}

static DAT_RETURN call(void)
{
    DAT_HANDLE made = DAT_HANDLE_NULL, *out = any(8) ? &made : NULL;
    DAT_OS_WAIT_PROXY_AGENT agent = DAT_OS_WAIT_PROXY_AGENT_NULL;
    DAT_REGION_DESCRIPTION region;
    DAT_RMR_TRIPLET remote;
    DAT_RETURN status = DAT_SUCCESS;
    char cookie[DAT_LMR_COOKIE_SIZE];
    DAT_COMPLETION_FLAGS flags = COMPLETION(number());
    /* A provider that could be added would make pointers of stray handles. */
    DAT_PROVIDER_INFO info = { "own", 2, 0, DAT_TRUE }, *list[2] = { &info, NULL };
    const DAT_PROVIDER *provider = (const DAT_PROVIDER *)place();
    const char *major, *minor;

    memset(cookie, (int)any(3), sizeof cookie);
    memset(&remote, (int)any(256), sizeof remote);
    memset(&region, 0, sizeof region);
    switch (any(79)) {
    case 0: status = dat_ia_query(of(DAT_HANDLE_TYPE_IA), (DAT_EVD_HANDLE *)place(), number(), (DAT_IA_ATTR *)place(), number(), (DAT_PROVIDER_ATTR *)place()); break;
    case 1: status = dat_ia_close(any(50) ? (DAT_HANDLE)(uintptr_t)any(100) : handles[any(HANDLES)], (DAT_CLOSE_FLAGS)(2 + any(9))); break;
    case 2: status = dat_set_consumer_context(handle(), cookie_of(number())); break;
    case 3: status = dat_get_consumer_context(handle(), (DAT_CONTEXT *)place()); break;
    case 4: status = dat_get_handle_type(handle(), (DAT_HANDLE_TYPE *)place()); break;
    case 5: status = dat_cno_create(of(DAT_HANDLE_TYPE_IA), agent, out); break;
    case 6: status = dat_cno_modify_agent(of(DAT_HANDLE_TYPE_CNO), agent); break;
    case 7: status = dat_cno_query(of(DAT_HANDLE_TYPE_CNO), (DAT_CNO_PARAM_MASK)number(), (DAT_CNO_PARAM *)place()); break;
    case 8: status = dat_cno_free(of(DAT_HANDLE_TYPE_CNO)); break;
    case 9: status = dat_cno_wait(of(DAT_HANDLE_TYPE_CNO), (DAT_TIMEOUT)any(3), out); break;
    case 10: status = dat_cr_query(of(DAT_HANDLE_TYPE_CR), (DAT_CR_PARAM_MASK)number(), (DAT_CR_PARAM *)place()); break;
    case 11: status = dat_cr_accept(of(DAT_HANDLE_TYPE_CR), of(DAT_HANDLE_TYPE_EP), (DAT_COUNT)any(300) - 50, place()); break;
    case 12: status = dat_cr_reject(of(DAT_HANDLE_TYPE_CR)); break;
    case 13: status = dat_cr_handoff(of(DAT_HANDLE_TYPE_CR), number()); break;
    case 14: status = dat_evd_create(of(DAT_HANDLE_TYPE_IA), count(), of(DAT_HANDLE_TYPE_CNO), EVD_FLAGS(number()), out); break;
    case 15: status = dat_evd_query(of(DAT_HANDLE_TYPE_EVD), (DAT_EVD_PARAM_MASK)number(), (DAT_EVD_PARAM *)place()); break;
    case 16: status = dat_evd_modify_cno(of(DAT_HANDLE_TYPE_EVD), of(DAT_HANDLE_TYPE_CNO)); break;
    case 17: status = dat_evd_enable(of(DAT_HANDLE_TYPE_EVD)); break;
    case 18: status = dat_evd_disable(of(DAT_HANDLE_TYPE_EVD)); break;
    case 19: status = dat_evd_set_unwaitable(of(DAT_HANDLE_TYPE_EVD)); break;
    case 20: status = dat_evd_clear_unwaitable(of(DAT_HANDLE_TYPE_EVD)); break;
    case 21: status = dat_evd_wait(of(DAT_HANDLE_TYPE_EVD), (DAT_TIMEOUT)any(3), count(), (DAT_EVENT *)place(), (DAT_COUNT *)place()); break;
    case 22: status = dat_evd_resize(of(DAT_HANDLE_TYPE_EVD), count()); break;
    case 23: status = dat_evd_post_se(of(DAT_HANDLE_TYPE_EVD), (DAT_EVENT *)place()); break;
    case 24: status = dat_evd_dequeue(of(DAT_HANDLE_TYPE_EVD), (DAT_EVENT *)place()); break;
    case 25: status = dat_evd_free(of(DAT_HANDLE_TYPE_EVD)); break;
    case 26: status = dat_ep_create(of(DAT_HANDLE_TYPE_IA), of(DAT_HANDLE_TYPE_PZ), of(DAT_HANDLE_TYPE_EVD), of(DAT_HANDLE_TYPE_EVD), of(DAT_HANDLE_TYPE_EVD), (DAT_EP_ATTR *)place(), out); break;
    case 27: status = dat_ep_create_with_srq(of(DAT_HANDLE_TYPE_IA), of(DAT_HANDLE_TYPE_PZ), of(DAT_HANDLE_TYPE_EVD), of(DAT_HANDLE_TYPE_EVD), of(DAT_HANDLE_TYPE_EVD), of(DAT_HANDLE_TYPE_SRQ), (DAT_EP_ATTR *)place(), out); break;
    case 28: status = dat_ep_query(of(DAT_HANDLE_TYPE_EP), number(), (DAT_EP_PARAM *)place()); break;
    case 29: status = dat_ep_modify(of(DAT_HANDLE_TYPE_EP), number(), (DAT_EP_PARAM *)place()); break;
    case 30: status = dat_ep_connect(of(DAT_HANDLE_TYPE_EP), (DAT_IA_ADDRESS_PTR)place(), number(), (DAT_TIMEOUT)number(), (DAT_COUNT)any(300) - 50, place(), (DAT_QOS)any(20), (DAT_CONNECT_FLAGS)any(5)); break;
    case 31: status = dat_ep_dup_connect(of(DAT_HANDLE_TYPE_EP), of(DAT_HANDLE_TYPE_EP), (DAT_TIMEOUT)number(), (DAT_COUNT)any(300) - 50, place(), (DAT_QOS)any(20)); break;
    case 32: status = dat_ep_disconnect(of(DAT_HANDLE_TYPE_EP), (DAT_CLOSE_FLAGS)any(4)); break;
    case 33: status = dat_ep_post_send(of(DAT_HANDLE_TYPE_EP), segment_count(), iov(), cookie_of(number()), flags); break;
    case 34: status = dat_ep_post_recv(of(DAT_HANDLE_TYPE_EP), segment_count(), iov(), cookie_of(number()), flags); break;
    case 35: status = dat_ep_post_rdma_read(of(DAT_HANDLE_TYPE_EP), segment_count(), iov(), cookie_of(number()), any(4) ? &remote : NULL, flags); break;
    case 36: status = dat_ep_post_rdma_write(of(DAT_HANDLE_TYPE_EP), segment_count(), iov(), cookie_of(number()), any(4) ? &remote : NULL, flags); break;
    case 37: status = dat_ep_get_status(of(DAT_HANDLE_TYPE_EP), (DAT_EP_STATE *)place(), (DAT_BOOLEAN *)place(), (DAT_BOOLEAN *)place()); break;
    case 38: status = dat_ep_free(of(DAT_HANDLE_TYPE_EP)); break;
    case 39: status = dat_ep_reset(of(DAT_HANDLE_TYPE_EP)); break;
    case 40: status = dat_ep_recv_query(of(DAT_HANDLE_TYPE_EP), (DAT_COUNT *)place(), (DAT_COUNT *)place()); break;
    case 41: status = dat_ep_set_watermark(of(DAT_HANDLE_TYPE_EP), count(), count()); break;
    case 42:
        region.for_shared_memory.virtual_address = any(4) ? place() : (DAT_PVOID)(uintptr_t)number();
        region.for_shared_memory.shared_memory_id = any(4) ? &cookie : NULL;
        if (any(4) == 0)
            region.for_lmr_handle = of(DAT_HANDLE_TYPE_LMR);
        status = dat_lmr_create(of(DAT_HANDLE_TYPE_IA), (DAT_MEM_TYPE)any(5), region, any(3) ? any(4096) : number(), of(DAT_HANDLE_TYPE_PZ), PRIVILEGES(number()), out, (DAT_LMR_CONTEXT *)place(), (DAT_RMR_CONTEXT *)place(), (DAT_VLEN *)place(), (DAT_VADDR *)place());
        break;
    case 70:
        region.for_shared_memory.virtual_address = any(4) ? place() : (DAT_PVOID)(uintptr_t)number();
        region.for_shared_memory.shared_memory_id = any(4) ? &cookie : NULL;
        status = dat_ib_lmr_create(of(DAT_HANDLE_TYPE_IA), (DAT_MEM_TYPE)any(4), region, any(3) ? any(4096) : number(), of(DAT_HANDLE_TYPE_PZ), PRIVILEGES(number()), (DAT_VA_TYPE)any(4), out, (DAT_LMR_CONTEXT *)place(), (DAT_RMR_CONTEXT *)place(), (DAT_VLEN *)place(), (DAT_VADDR *)place());
        break;
    case 71: status = dat_rmr_create_for_ep(of(DAT_HANDLE_TYPE_PZ), out); break;
    case 72: status = dat_ib_cr_reject(of(DAT_HANDLE_TYPE_CR), (DAT_COUNT)any(300) - 50, place()); break;
    case 73: status = dat_ib_evd_wait(of(DAT_HANDLE_TYPE_EVD), (DAT_TIMEOUT)any(3), count(), (DAT_IB_EVENT *)place(), (DAT_COUNT *)place()); break;
    case 74: status = dat_ib_evd_dequeue(of(DAT_HANDLE_TYPE_EVD), (DAT_IB_EVENT *)place()); break;
    case 75: status = dat_ib_post_rdma_write_immed(of(DAT_HANDLE_TYPE_EP), segment_count(), iov(), cookie_of(number()), any(4) ? &remote : NULL, (DAT_UINT32)number(), flags); break;
    case 76: status = dat_ib_post_cmp_and_swap(of(DAT_HANDLE_TYPE_EP), number(), number(), iov(), cookie_of(number()), any(4) ? &remote : NULL, flags); break;
    case 77: status = dat_ib_post_fetch_and_add(of(DAT_HANDLE_TYPE_EP), number(), iov(), cookie_of(number()), any(4) ? &remote : NULL, flags); break;
    case 78: status = dat_ep_post_send_with_invalidate(of(DAT_HANDLE_TYPE_EP), segment_count(), iov(), cookie_of(number()), flags, (DAT_BOOLEAN)any(2), (DAT_RMR_CONTEXT)number()); break;
    case 43: status = dat_lmr_query(of(DAT_HANDLE_TYPE_LMR), (DAT_LMR_PARAM_MASK)number(), (DAT_LMR_PARAM *)place()); break;
    case 44: status = dat_lmr_free(of(DAT_HANDLE_TYPE_LMR)); break;
    case 45: status = dat_lmr_sync_rdma_read(of(DAT_HANDLE_TYPE_IA), iov(), any(17)); break;
    case 46: status = dat_lmr_sync_rdma_write(of(DAT_HANDLE_TYPE_IA), iov(), any(17)); break;
    case 47: status = dat_rmr_create(of(DAT_HANDLE_TYPE_PZ), out); break;
    case 48: status = dat_rmr_query(of(DAT_HANDLE_TYPE_RMR), (DAT_RMR_PARAM_MASK)number(), (DAT_RMR_PARAM *)place()); break;
    case 49: status = dat_rmr_bind(of(DAT_HANDLE_TYPE_RMR), iov(), PRIVILEGES(number()), of(DAT_HANDLE_TYPE_EP), cookie_of(number()), flags, (DAT_RMR_CONTEXT *)place()); break;
    case 50: status = dat_rmr_free(of(DAT_HANDLE_TYPE_RMR)); break;
    case 51: status = dat_psp_create(of(DAT_HANDLE_TYPE_IA), number(), of(DAT_HANDLE_TYPE_EVD), (DAT_PSP_FLAGS)any(4), out); break;
    case 52: status = dat_psp_create_any(of(DAT_HANDLE_TYPE_IA), (DAT_CONN_QUAL *)place(), of(DAT_HANDLE_TYPE_EVD), (DAT_PSP_FLAGS)any(4), out); break;
    case 53: status = dat_psp_query(of(DAT_HANDLE_TYPE_PSP), (DAT_PSP_PARAM_MASK)number(), (DAT_PSP_PARAM *)place()); break;
    case 54: status = dat_psp_free(of(DAT_HANDLE_TYPE_PSP)); break;
    case 55: status = dat_rsp_create(of(DAT_HANDLE_TYPE_IA), number(), of(DAT_HANDLE_TYPE_EP), of(DAT_HANDLE_TYPE_EVD), out); break;
    case 56: status = dat_rsp_free(of(DAT_HANDLE_TYPE_RSP)); break;
    case 57: status = dat_pz_create(of(DAT_HANDLE_TYPE_IA), out); break;
    case 58: status = dat_pz_free(of(DAT_HANDLE_TYPE_PZ)); break;
    case 59: status = dat_srq_create(of(DAT_HANDLE_TYPE_IA), of(DAT_HANDLE_TYPE_PZ), (DAT_SRQ_ATTR *)place(), out); break;
    case 60: status = dat_srq_post_recv(of(DAT_HANDLE_TYPE_SRQ), segment_count(), iov(), cookie_of(number())); break;
    case 61: status = any(2) ? dat_srq_free(of(DAT_HANDLE_TYPE_SRQ)) : dat_srq_resize(of(DAT_HANDLE_TYPE_SRQ), count()); break;
    case 62: status = dat_ia_openv(name(), count(), out, any(4) ? &made : NULL, (DAT_UINT32)number(), (DAT_UINT32)number(), (DAT_BOOLEAN)any(2)); break;
    case 63: status = dat_pz_query(of(DAT_HANDLE_TYPE_PZ), (DAT_PZ_PARAM_MASK)number(), (DAT_PZ_PARAM *)place()); break;
    case 64: status = dat_rsp_query(of(DAT_HANDLE_TYPE_RSP), (DAT_RSP_PARAM_MASK)number(), (DAT_RSP_PARAM *)place()); break;
    case 65: status = dat_srq_query(of(DAT_HANDLE_TYPE_SRQ), (DAT_SRQ_PARAM_MASK)number(), (DAT_SRQ_PARAM *)place()); break;
    case 66: status = dat_srq_set_lw(of(DAT_HANDLE_TYPE_SRQ), count()); break;
    case 67: status = dat_strerror((DAT_RETURN)number(), any(4) ? &major : NULL, any(4) ? &minor : NULL); break;
    case 68: status = dat_registry_list_providers((DAT_COUNT)any(5) - 2, any(4) ? (DAT_COUNT *)memory : NULL, any(4) ? list : NULL); break;
    case 69:
        status = any(2) ? dat_registry_add_provider(provider, any(4) ? &info : NULL)
                        : dat_registry_remove_provider(provider, any(4) ? &info : NULL);
        break;
    }
    if (status == DAT_SUCCESS && made != DAT_HANDLE_NULL)
        keep(made);
    return status;
}

int main(int argument_count, char **arguments)
{
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
    unsigned long calls, done, good = 0;
    const char *major, *minor;

    if (argument_count != 4)
        return EXIT_FAILURE;
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    calls = strtoul(arguments[3], NULL, 10);
    OK(dat_ia_open(arguments[1], 8, &async_evd, &ia));
    handles[0] = async_evd;
    for (done = 0; done < calls; done++) {
        DAT_RETURN status;

        if (done % SEEDING == 0)
            seed_handles();
        status = call();
        if (any(16) == 0)
            memset(memory, (int)any(256), sizeof memory);
        good += status == DAT_SUCCESS;
        OK(dat_strerror(status, &major, &minor));
        HOLDS(DAT_GET_TYPE(status) != DAT_INTERNAL_ERROR);
    }
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    printf("%lu calls, %lu of them well\n", calls, good);
    return EXIT_SUCCESS;
}
