/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Random calls with wrong arguments: they answer, and the library goes on.
 *
 *     misuse IA SEED CALLS */
#include "check.h"

#define HANDLES 64

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
    return any(3) ? (DAT_COUNT)any(17) : -(DAT_COUNT)any(100);
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

    memset(cookie, (int)any(3), sizeof cookie);
    memset(&remote, (int)any(256), sizeof remote);
    memset(&region, 0, sizeof region);
    switch (any(62)) {
    case 0: status = dat_ia_query(handle(), (DAT_EVD_HANDLE *)place(), number(), (DAT_IA_ATTR *)place(), number(), (DAT_PROVIDER_ATTR *)place()); break;
    case 1: status = dat_ia_close(any(50) ? (DAT_HANDLE)(uintptr_t)any(100) : handles[any(HANDLES)], (DAT_CLOSE_FLAGS)(2 + any(9))); break;
    case 2: status = dat_set_consumer_context(handle(), cookie_of(number())); break;
    case 3: status = dat_get_consumer_context(handle(), (DAT_CONTEXT *)place()); break;
    case 4: status = dat_get_handle_type(handle(), (DAT_HANDLE_TYPE *)place()); break;
    case 5: status = dat_cno_create(handle(), agent, out); break;
    case 6: status = dat_cno_modify_agent(handle(), agent); break;
    case 7: status = dat_cno_query(handle(), (DAT_CNO_PARAM_MASK)number(), (DAT_CNO_PARAM *)place()); break;
    case 8: status = dat_cno_free(handle()); break;
    case 9: status = dat_cno_wait(handle(), (DAT_TIMEOUT)any(3), out); break;
    case 10: status = dat_cr_query(handle(), (DAT_CR_PARAM_MASK)number(), (DAT_CR_PARAM *)place()); break;
    case 11: status = dat_cr_accept(handle(), handle(), (DAT_COUNT)any(300) - 50, place()); break;
    case 12: status = dat_cr_reject(handle()); break;
    case 13: status = dat_cr_handoff(handle(), number()); break;
    case 14: status = dat_evd_create(handle(), count(), handle(), EVD_FLAGS(number()), out); break;
    case 15: status = dat_evd_query(handle(), (DAT_EVD_PARAM_MASK)number(), (DAT_EVD_PARAM *)place()); break;
    case 16: status = dat_evd_modify_cno(handle(), handle()); break;
    case 17: status = dat_evd_enable(handle()); break;
    case 18: status = dat_evd_disable(handle()); break;
    case 19: status = dat_evd_set_unwaitable(handle()); break;
    case 20: status = dat_evd_clear_unwaitable(handle()); break;
    case 21: status = dat_evd_wait(handle(), (DAT_TIMEOUT)any(3), count(), (DAT_EVENT *)place(), (DAT_COUNT *)place()); break;
    case 22: status = dat_evd_resize(handle(), count()); break;
    case 23: status = dat_evd_post_se(handle(), (DAT_EVENT *)place()); break;
    case 24: status = dat_evd_dequeue(handle(), (DAT_EVENT *)place()); break;
    case 25: status = dat_evd_free(handle()); break;
    case 26: status = dat_ep_create(handle(), handle(), handle(), handle(), handle(), (DAT_EP_ATTR *)place(), out); break;
    case 27: status = dat_ep_create_with_srq(handle(), handle(), handle(), handle(), handle(), handle(), (DAT_EP_ATTR *)place(), out); break;
    case 28: status = dat_ep_query(handle(), number(), (DAT_EP_PARAM *)place()); break;
    case 29: status = dat_ep_modify(handle(), number(), (DAT_EP_PARAM *)place()); break;
    case 30: status = dat_ep_connect(handle(), (DAT_IA_ADDRESS_PTR)place(), number(), (DAT_TIMEOUT)number(), (DAT_COUNT)any(300) - 50, place(), (DAT_QOS)any(20), (DAT_CONNECT_FLAGS)any(5)); break;
    case 31: status = dat_ep_dup_connect(handle(), handle(), (DAT_TIMEOUT)number(), (DAT_COUNT)any(300) - 50, place(), (DAT_QOS)any(20)); break;
    case 32: status = dat_ep_disconnect(handle(), (DAT_CLOSE_FLAGS)any(4)); break;
    case 33: status = dat_ep_post_send(handle(), segment_count(), iov(), cookie_of(number()), flags); break;
    case 34: status = dat_ep_post_recv(handle(), segment_count(), iov(), cookie_of(number()), flags); break;
    case 35: status = dat_ep_post_rdma_read(handle(), segment_count(), iov(), cookie_of(number()), any(4) ? &remote : NULL, flags); break;
    case 36: status = dat_ep_post_rdma_write(handle(), segment_count(), iov(), cookie_of(number()), any(4) ? &remote : NULL, flags); break;
    case 37: status = dat_ep_get_status(handle(), (DAT_EP_STATE *)place(), (DAT_BOOLEAN *)place(), (DAT_BOOLEAN *)place()); break;
    case 38: status = dat_ep_free(handle()); break;
    case 39: status = dat_ep_reset(handle()); break;
    case 40: status = dat_ep_recv_query(handle(), (DAT_COUNT *)place(), (DAT_COUNT *)place()); break;
    case 41: status = dat_ep_set_watermark(handle(), count(), count()); break;
    case 42:
        region.for_shared_memory.virtual_address = any(4) ? place() : (DAT_PVOID)(uintptr_t)number();
        region.for_shared_memory.shared_memory_id = any(4) ? &cookie : NULL;
        if (any(4) == 0)
            region.for_lmr_handle = handle();
        status = dat_lmr_create(handle(), (DAT_MEM_TYPE)any(5), region, any(3) ? any(4096) : number(), handle(), PRIVILEGES(number()), out, (DAT_LMR_CONTEXT *)place(), (DAT_RMR_CONTEXT *)place(), (DAT_VLEN *)place(), (DAT_VADDR *)place());
        break;
    case 43: status = dat_lmr_query(handle(), (DAT_LMR_PARAM_MASK)number(), (DAT_LMR_PARAM *)place()); break;
    case 44: status = dat_lmr_free(handle()); break;
    case 45: status = dat_lmr_sync_rdma_read(handle(), iov(), any(17)); break;
    case 46: status = dat_lmr_sync_rdma_write(handle(), iov(), any(17)); break;
    case 47: status = dat_rmr_create(handle(), out); break;
    case 48: status = dat_rmr_query(handle(), (DAT_RMR_PARAM_MASK)number(), (DAT_RMR_PARAM *)place()); break;
    case 49: status = dat_rmr_bind(handle(), iov(), PRIVILEGES(number()), handle(), cookie_of(number()), flags, (DAT_RMR_CONTEXT *)place()); break;
    case 50: status = dat_rmr_free(handle()); break;
    case 51: status = dat_psp_create(handle(), number(), handle(), (DAT_PSP_FLAGS)any(4), out); break;
    case 52: status = dat_psp_create_any(handle(), (DAT_CONN_QUAL *)place(), handle(), (DAT_PSP_FLAGS)any(4), out); break;
    case 53: status = dat_psp_query(handle(), (DAT_PSP_PARAM_MASK)number(), (DAT_PSP_PARAM *)place()); break;
    case 54: status = dat_psp_free(handle()); break;
    case 55: status = dat_rsp_create(handle(), number(), handle(), handle(), out); break;
    case 56: status = dat_rsp_free(handle()); break;
    case 57: status = dat_pz_create(handle(), out); break;
    case 58: status = dat_pz_free(handle()); break;
    case 59: status = dat_srq_create(handle(), handle(), (DAT_SRQ_ATTR *)place(), out); break;
    case 60: status = dat_srq_post_recv(handle(), segment_count(), iov(), cookie_of(number())); break;
    case 61: status = any(2) ? dat_srq_free(handle()) : dat_srq_resize(handle(), count()); break;
    }
    if (status == DAT_SUCCESS && made != DAT_HANDLE_NULL)
        handles[any(HANDLES)] = made;
    return status;
}

int main(int argument_count, char **arguments)
{
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
    unsigned long calls, done, good = 0;
    const char *major, *minor;

    if (argument_count != 4)
        return EXIT_FAILURE;
    state = strtoull(arguments[2], NULL, 10) | 1;
    calls = strtoul(arguments[3], NULL, 10);
    OK(dat_ia_open(arguments[1], 8, &async_evd, &ia));
    handles[0] = async_evd;
    for (done = 0; done < calls; done++) {
        DAT_RETURN status = call();

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
