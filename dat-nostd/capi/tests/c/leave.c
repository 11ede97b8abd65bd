/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program that leaves without closing anything: its peer hears that the connection has ended, and a thread of its own that waits without
 * end hears of it too, so that a handler of atexit can join it. Arguments: an IA name; with an address behind it the program connects
 * there and leaves, else it waits for that. */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>

#define SERVICE 45248

static DAT_EP_HANDLE endpoint(DAT_IA_HANDLE ia, DAT_EVD_HANDLE *connections)
{
    DAT_PZ_HANDLE pz;
    DAT_EVD_HANDLE transfers;
    DAT_EP_HANDLE ep;

    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &transfers));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, connections));
    OK(dat_ep_create(ia, pz, transfers, transfers, *connections, NULL, &ep));
    return ep;
}

static DAT_EVD_HANDLE waited_on;
static pthread_t waiter;

static void *wait_without_end(void *argument)
{
    DAT_EVENT event;
    DAT_COUNT more;

    (void)argument;
    FAILS(DAT_ABORT, dat_evd_wait(waited_on, DAT_TIMEOUT_INFINITE, 1, &event, &more));
    return NULL;
}

/* Called after the library has closed what was open. */
static void join(void)
{
    alarm(60);
    if (pthread_join(waiter, NULL) != 0)
        _exit(EXIT_FAILURE);
}

static void start_waiter(DAT_IA_HANDLE ia)
{
    DAT_EVENT event;

    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &waited_on));
    HOLDS(pthread_create(&waiter, NULL, wait_without_end, NULL) == 0);
    /* Who waits on an EVD takes its events alone. */
    while (DAT_GET_TYPE(dat_evd_dequeue(waited_on, &event)) != DAT_INVALID_STATE)
        usleep(1000);
}

int main(int count, char **arguments)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL, connections, requests;
    DAT_IA_HANDLE ia;
    DAT_EP_HANDLE ep;

    if (count < 2)
        return EXIT_FAILURE;
    if (count > 2)
        /* Before the library has its own handler, so that this one comes after it. */
        HOLDS(atexit(join) == 0);
    OK(dat_ia_open(arguments[1], 8, &async, &ia));
    ep = endpoint(ia, &connections);
    if (count > 2) {
        struct sockaddr_in peer;

        memset(&peer, 0, sizeof peer);
        peer.sin_family = AF_INET;
        HOLDS(inet_pton(AF_INET, arguments[2], &peer.sin_addr) == 1);
        OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&peer, SERVICE, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
        EXPECT(connections, DAT_CONNECTION_EVENT_ESTABLISHED);
        start_waiter(ia);
    } else {
        DAT_PSP_HANDLE psp;
        DAT_EVENT event;

        OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
        OK(dat_psp_create(ia, SERVICE, requests, DAT_PSP_CONSUMER_FLAG, &psp));
        puts("ready");
        fflush(stdout);
        event = EXPECT(requests, DAT_CONNECTION_REQUEST_EVENT);
        OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
        EXPECT(connections, DAT_CONNECTION_EVENT_ESTABLISHED);
        EXPECT(connections, DAT_CONNECTION_EVENT_DISCONNECTED);
    }
    return EXIT_SUCCESS;
}
