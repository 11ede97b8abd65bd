/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Eight threads on one IA, each with a connection of its own to another IA; half of them share an EVD for their completions, and all of them
 * one for events of their own, with an agent that the library calls. Objects come and go meanwhile.
 *
 *     threads ACTIVE-IA PASSIVE-IA ADDRESS ROUNDS
 *
 * ADDRESS is the passive IA's. */
#include "check.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>

#define THREADS 8
#define PORT 8000
#define MESSAGES 8
#define BYTES 512

/* What a thread has at one of its two ends. */
struct end {
    DAT_IA_HANDLE ia;
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE dto, conn;
    DAT_EP_HANDLE ep;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_TRIPLET local;
    DAT_RMR_TRIPLET remote;
    unsigned char *memory;
};

static DAT_IA_HANDLE ias[2];
/* The completions of the first four threads' active ends, by whoever takes them. */
static DAT_EVD_HANDLE shared_dto;
static int completions[THREADS];
/* Events of the program's, by whoever takes them, and the agent that hears of them. */
static DAT_EVD_HANDLE software;
static DAT_CNO_HANDLE cno;
static int upcalls;
static struct sockaddr_in peer;
static int rounds;

static void make(struct end *end, DAT_IA_HANDLE ia, DAT_EVD_HANDLE dto)
{
    end->ia = ia;
    OK(dat_pz_create(ia, &end->pz));
    end->dto = dto;
    if (dto == DAT_HANDLE_NULL)
        OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &end->dto));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &end->conn));
    end->memory = (unsigned char *)malloc(2 * BYTES);
    HOLDS(end->memory != NULL);
    end->local = REGION(ia, end->pz, end->memory, 2 * BYTES, &end->lmr, &end->remote);
    OK(dat_ep_create(ia, end->pz, end->dto, end->dto, end->conn, NULL, &end->ep));
}

static void unmake(struct end *end)
{
    OK(dat_ep_free(end->ep));
    OK(dat_lmr_free(end->lmr));
    free(end->memory);
    if (end->dto != shared_dto)
        OK(dat_evd_free(end->dto));
    OK(dat_evd_free(end->conn));
    OK(dat_pz_free(end->pz));
}

/* Waits until a thread's active end has got so many completions: its own from its EVD, or anybody's from the shared one. */
static void completed(struct end *end, int thread, int count)
{
    DAT_EVENT event;

    while (__sync_fetch_and_add(&completions[thread], 0) < count) {
        DAT_RETURN status;

        if (end->dto == shared_dto) {
            status = dat_evd_dequeue(end->dto, &event);
            if (status == DAT_QUEUE_EMPTY)
                continue;
        } else {
            DAT_COUNT more;

            status = dat_evd_wait(end->dto, PATIENCE, 1, &event, &more);
        }
        OK(status);
        HOLDS(event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS);
        __sync_fetch_and_add(&completions[event.event_data.dto_completion_event_data.user_cookie.as_64], 1);
    }
    __sync_fetch_and_sub(&completions[thread], count);
}

/* Called by the library's thread, once each time it is given. */
static void hear(DAT_PVOID instance, DAT_EVD_HANDLE evd)
{
    DAT_OS_WAIT_PROXY_AGENT again;

    (void)evd;
    __sync_fetch_and_add((int *)instance, 1);
    again.instance_data = instance;
    again.proxy_agent_func = hear;
    /* At the end the CNO may be gone. */
    dat_cno_modify_agent(cno, again);
}

/* Objects of one thread's on the IA that all have, and an event for anybody. */
static void come_and_go(struct end *end)
{
    DAT_EVENT event;
    DAT_IA_ATTR attributes;
    DAT_EP_PARAM param;
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE evd;
    DAT_LMR_HANDLE lmr;
    DAT_RMR_TRIPLET remote;

    OK(dat_pz_create(end->ia, &pz));
    OK(dat_evd_create(end->ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    REGION(end->ia, pz, end->memory, BYTES, &lmr, &remote);
    OK(dat_ia_query(end->ia, NULL, DAT_IA_FIELD_ALL, &attributes, 0, NULL));
    OK(dat_ep_query(end->ep, DAT_EP_FIELD_ALL, &param));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(software, &event));
    OK(dat_evd_dequeue(software, &event));
    HOLDS(event.event_number == DAT_SOFTWARE_EVENT);
    OK(dat_lmr_free(lmr));
    OK(dat_evd_free(evd));
    OK(dat_pz_free(pz));
}

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument, round, i;
    DAT_COMPLETION_FLAGS none = DAT_COMPLETION_DEFAULT_FLAG;
    struct end active, passive;
    DAT_EVD_HANDLE cr_evd;
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;

    make(&active, ias[0], thread < THREADS / 2 ? shared_dto : DAT_HANDLE_NULL);
    make(&passive, ias[1], DAT_HANDLE_NULL);
    OK(dat_evd_create(ias[1], 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr_evd));
    OK(dat_psp_create(ias[1], (DAT_CONN_QUAL)(PORT + thread), cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
    for (round = 0; round < rounds; round++) {
        DAT_LMR_TRIPLET half = passive.local;

        come_and_go(&active);
        half.segment_length = BYTES;
        OK(dat_ep_connect(active.ep, (DAT_IA_ADDRESS_PTR)&peer, (DAT_CONN_QUAL)(PORT + thread), PATIENCE, 0, NULL,
                          DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
        event = EXPECT(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, passive.ep, 0, NULL));
        EXPECT(active.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
        EXPECT(passive.conn, DAT_CONNECTION_EVENT_ESTABLISHED);
        for (i = 0; i < MESSAGES; i++) {
            DAT_LMR_TRIPLET out = active.local;
            DAT_RMR_TRIPLET target = passive.remote;

            /* A message, and a write behind it that its own message follows. */
            OK(dat_ep_post_recv(passive.ep, 1, &half, cookie_of((DAT_UINT64)i), none));
            memset(active.memory, thread * 16 + i, BYTES);
            out.segment_length = BYTES;
            OK(dat_ep_post_send(active.ep, 1, &out, cookie_of((DAT_UINT64)thread), none));
            target.target_address += BYTES;
            target.segment_length = BYTES;
            OK(dat_ep_post_rdma_write(active.ep, 1, &out, cookie_of((DAT_UINT64)thread), &target, none));
            completed(&active, thread, 2);
            event = EXPECT(passive.dto, DAT_DTO_COMPLETION_EVENT);
            HOLDS(event.event_data.dto_completion_event_data.user_cookie.as_64 == (DAT_UINT64)i);
            HOLDS(event.event_data.dto_completion_event_data.transfered_length == BYTES);
            HOLDS(memcmp(passive.memory, active.memory, BYTES) == 0);
            HOLDS(memcmp(passive.memory + BYTES, active.memory, BYTES) == 0);
        }
        OK(dat_ep_disconnect(thread % 2 ? active.ep : passive.ep, DAT_CLOSE_ABRUPT_FLAG));
        EXPECT(active.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
        EXPECT(passive.conn, DAT_CONNECTION_EVENT_DISCONNECTED);
        OK(dat_ep_reset(active.ep));
        OK(dat_ep_reset(passive.ep));
    }
    OK(dat_psp_free(psp));
    OK(dat_evd_free(cr_evd));
    unmake(&active);
    unmake(&passive);
    return NULL;
}

int main(int count, char **arguments)
{
    DAT_EVD_HANDLE async_evds[2] = { DAT_HANDLE_NULL, DAT_HANDLE_NULL };
    DAT_OS_WAIT_PROXY_AGENT agent;
    pthread_t threads[THREADS];
    int i;

    if (count != 5)
        return EXIT_FAILURE;
    for (i = 0; i < 2; i++)
        OK(dat_ia_open(arguments[1 + i], 8, &async_evds[i], &ias[i]));
    memset(&peer, 0, sizeof peer);
    peer.sin_family = AF_INET;
    HOLDS(inet_pton(AF_INET, arguments[3], &peer.sin_addr) == 1);
    rounds = atoi(arguments[4]);
    OK(dat_evd_create(ias[0], 256, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &shared_dto));
    agent.instance_data = &upcalls;
    agent.proxy_agent_func = hear;
    OK(dat_cno_create(ias[0], agent, &cno));
    OK(dat_evd_create(ias[0], 2 * THREADS, cno, DAT_EVD_SOFTWARE_FLAG, &software));
    for (i = 0; i < THREADS; i++)
        HOLDS(pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i) == 0);
    for (i = 0; i < THREADS; i++)
        HOLDS(pthread_join(threads[i], NULL) == 0);
    while (__sync_fetch_and_add(&upcalls, 0) == 0)
        sched_yield();
    OK(dat_evd_free(software));
    OK(dat_cno_free(cno));
    OK(dat_evd_free(shared_dto));
    for (i = 0; i < 2; i++)
        OK(dat_ia_close(ias[i], DAT_CLOSE_GRACEFUL_FLAG));
    printf("%d threads, %d rounds each\n", THREADS, rounds);
    return EXIT_SUCCESS;
}
