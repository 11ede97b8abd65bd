/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT messages between two processes, in C: one connects and sends, the other listens and sends back.
 *
 *     dat_ping IA                          answers, until the other side ends
 *     dat_ping IA ADDRESS [COUNT]          sends COUNT messages (1000) to the IA that has this IPv4 address
 *
 * IA is a name of /etc/dat.conf (or of the file that DAT_OVERRIDE names), or DEVICE@ADDRESS: /tmp/hca0@10.0.0.1. */
#include <arpa/inet.h>
#include <dat/udat.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT 7000
#define PATIENCE 30000000 /* microseconds */

static void check(const char *what, DAT_RETURN status)
{
    const char *major, *minor;

    if (status == DAT_SUCCESS)
        return;
    dat_strerror(status, &major, &minor);
    fprintf(stderr, "error: %s: %s (%s)\n", what, major, minor);
    exit(EXIT_FAILURE);
}

/* One end of a connection: where messages come from and go to. */
struct end {
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE evd;
    DAT_EP_HANDLE ep;
    DAT_LMR_TRIPLET out, into;
    volatile uint64_t *out_number, *into_number;
};

static void post_receive(struct end *end)
{
    DAT_DTO_COOKIE cookie;

    cookie.as_64 = 0;
    check("dat_ep_post_recv", dat_ep_post_recv(end->ep, 1, &end->into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void open_end(struct end *end, char *name)
{
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;
    DAT_LMR_HANDLE lmr;
    DAT_LMR_CONTEXT context;
    DAT_REGION_DESCRIPTION region;
    uint64_t *memory = (uint64_t *)calloc(2, sizeof *memory);

    if (!memory)
        exit(EXIT_FAILURE);
    check("dat_ia_open", dat_ia_open(name, 8, &async_evd, &end->ia));
    check("dat_pz_create", dat_pz_create(end->ia, &pz));
    region.for_va = memory;
    check("dat_lmr_create",
          dat_lmr_create(end->ia, DAT_MEM_TYPE_VIRTUAL, region, 2 * sizeof *memory, pz,
                         (DAT_MEM_PRIV_FLAGS)(DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG), &lmr,
                         &context, NULL, NULL, NULL));
    check("dat_evd_create",
          dat_evd_create(end->ia, 16, DAT_HANDLE_NULL,
                         (DAT_EVD_FLAGS)(DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_DTO_FLAG), &end->evd));
    check("dat_ep_create", dat_ep_create(end->ia, pz, end->evd, end->evd, end->evd, NULL, &end->ep));
    end->out_number = memory;
    end->into_number = memory + 1;
    end->out.lmr_context = end->into.lmr_context = context;
    end->out.pad = end->into.pad = 0;
    end->out.virtual_address = (DAT_VADDR)(uintptr_t)memory;
    end->into.virtual_address = (DAT_VADDR)(uintptr_t)(memory + 1);
    end->out.segment_length = end->into.segment_length = sizeof *memory;
    post_receive(end);
}

/* The next event. */
static DAT_EVENT next(struct end *end)
{
    DAT_EVENT event;
    DAT_COUNT more;

    check("dat_evd_wait", dat_evd_wait(end->evd, PATIENCE, 1, &event, &more));
    return event;
}

static void established(struct end *end)
{
    DAT_EVENT event = next(end);

    if (event.event_number != DAT_CONNECTION_EVENT_ESTABLISHED) {
        fprintf(stderr, "error: not connected: event 0x%x\n", (unsigned)event.event_number);
        exit(EXIT_FAILURE);
    }
    puts("connected");
    fflush(stdout);
}

static void say(struct end *end, uint64_t number)
{
    DAT_DTO_COOKIE cookie;

    cookie.as_64 = number;
    *end->out_number = number;
    check("dat_ep_post_send", dat_ep_post_send(end->ep, 1, &end->out, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

/* The next number; 0 at the connection's end. */
static int hear(struct end *end, uint64_t *number)
{
    DAT_EVENT event = next(end);

    if (event.event_number != DAT_DTO_COMPLETION_EVENT ||
        event.event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS)
        return 0;
    *number = *end->into_number;
    post_receive(end);
    return 1;
}

static void client(struct end *end, const char *address, uint64_t count)
{
    struct sockaddr_in peer;
    uint64_t sent, heard;

    memset(&peer, 0, sizeof peer);
    peer.sin_family = AF_INET;
    if (inet_pton(AF_INET, address, &peer.sin_addr) != 1) {
        fprintf(stderr, "error: %s is no IPv4 address\n", address);
        exit(EXIT_FAILURE);
    }
    check("dat_ep_connect", dat_ep_connect(end->ep, (DAT_IA_ADDRESS_PTR)&peer, PORT, DAT_TIMEOUT_INFINITE, 0, NULL,
                                           DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    established(end);
    for (sent = 0; sent < count; sent++) {
        say(end, sent);
        if (!hear(end, &heard) || heard != sent + 1) {
            fprintf(stderr, "error: no right answer to %lu\n", (unsigned long)sent);
            exit(EXIT_FAILURE);
        }
    }
    printf("%lu messages and answers\n", (unsigned long)count);
    check("dat_ep_disconnect", dat_ep_disconnect(end->ep, DAT_CLOSE_GRACEFUL_FLAG));
    while (next(end).event_number != DAT_CONNECTION_EVENT_DISCONNECTED)
        ;
}

static void server(struct end *end)
{
    DAT_PSP_HANDLE psp;
    DAT_EVENT request;
    uint64_t number, answered = 0;

    check("dat_psp_create", dat_psp_create(end->ia, PORT, end->evd, DAT_PSP_CONSUMER_FLAG, &psp));
    puts("ready");
    fflush(stdout);
    request = next(end);
    if (request.event_number != DAT_CONNECTION_REQUEST_EVENT) {
        fprintf(stderr, "error: no request: event 0x%x\n", (unsigned)request.event_number);
        exit(EXIT_FAILURE);
    }
    check("dat_cr_accept",
          dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, end->ep, 0, NULL));
    established(end);
    while (hear(end, &number)) {
        say(end, number + 1);
        answered++;
    }
    printf("%lu messages answered\n", (unsigned long)answered);
}

int main(int count, char **arguments)
{
    struct end end;

    if (count < 2) {
        fprintf(stderr, "usage: %s IA [ADDRESS [COUNT]]\n", arguments[0]);
        return EXIT_FAILURE;
    }
    open_end(&end, arguments[1]);
    if (count > 2)
        client(&end, arguments[2], count > 3 ? strtoull(arguments[3], NULL, 10) : 1000);
    else
        server(&end);
    check("dat_ia_close", dat_ia_close(end.ia, DAT_CLOSE_ABRUPT_FLAG));
    return EXIT_SUCCESS;
}
