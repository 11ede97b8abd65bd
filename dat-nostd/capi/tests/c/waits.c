/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Where waits sleep: an agent that waits for the device, and a thread that does not wait for the
 * library's.
 *
 *     waits IA IA ADDRESS: the address of the second IA */
#include "check.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <unistd.h>

#define PORT 7000
#define BYTES 4096
#define WRITES 100
#define ROUNDS 20

static DAT_IA_HANDLE ias[2];
static DAT_PZ_HANDLE pzs[2];
static DAT_EVD_HANDLE conns[2], dtos[2];
static DAT_EP_HANDLE eps[2];
static struct sockaddr_in peer;
static int returned;

static void connect_to(DAT_CONN_QUAL port, DAT_TIMEOUT timeout)
{
    OK(dat_ep_connect(eps[0], (DAT_IA_ADDRESS_PTR)&peer, port, timeout, 0, NULL, DAT_QOS_BEST_EFFORT,
                      DAT_CONNECT_DEFAULT_FLAG));
}

/* Waits for an event that comes only if the connection manager goes on meanwhile. */
static void connect_and_wait(DAT_PVOID instance, DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;
    DAT_COUNT more;

    (void)instance;
    (void)evd;
    connect_to(PORT + 1, 200000);
    OK(dat_evd_wait(conns[0], DAT_TIMEOUT_INFINITE, 1, &event, &more));
    HOLDS(event.event_number == DAT_CONNECTION_EVENT_TIMED_OUT ||
          event.event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
    OK(dat_ep_reset(eps[0]));
    __sync_fetch_and_add(&returned, 1);
}

static void an_agent_may_wait(void)
{
    DAT_OS_WAIT_PROXY_AGENT agent;
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE software;
    DAT_EVENT event;

    agent.instance_data = NULL;
    agent.proxy_agent_func = connect_and_wait;
    OK(dat_cno_create(ias[0], agent, &cno));
    OK(dat_evd_create(ias[0], 8, cno, DAT_EVD_SOFTWARE_FLAG, &software));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(software, &event));
    while (__sync_fetch_and_add(&returned, 0) == 0)
        usleep(1000);
    OK(dat_evd_free(software));
    OK(dat_cno_free(cno));
}

/* Returns the number of sleeps of the library's thread that slept most. */
static long sleeps_of_the_library(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    long most = -1;

    HOLDS(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        char path[300], line[200], name[64] = "";
        long sleeps = 0;
        FILE *status;

        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        status = fopen(path, "r");
        if (status == NULL)
            continue;
        while (fgets(line, sizeof line, status) != NULL) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "voluntary_ctxt_switches: %ld", &sleeps);
        }
        fclose(status);
        if (strcmp(name, "libdat") == 0 && sleeps > most)
            most = sleeps;
    }
    closedir(tasks);
    return most;
}

/* Writes one at a time, each of which is waited for. Returns how often the library's thread slept meanwhile. */
static long sleeps_of_a_round(const DAT_LMR_TRIPLET *region, const DAT_RMR_TRIPLET *remote, unsigned char *from,
                              const unsigned char *to)
{
    DAT_LMR_TRIPLET local = *region;
    long before = sleeps_of_the_library();
    int i;

    HOLDS(before >= 0);
    for (i = 0; i < WRITES; i++) {
        DAT_EVENT event;

        *from = (unsigned char)i;
        OK(dat_ep_post_rdma_write(eps[0], 1, &local, cookie_of((DAT_UINT64)i), remote, DAT_COMPLETION_DEFAULT_FLAG));
        event = EXPECT(dtos[0], DAT_DTO_COMPLETION_EVENT);
        HOLDS(event.event_data.dto_completion_event_data.user_cookie.as_64 == (DAT_UINT64)i);
        HOLDS(*to == (unsigned char)i);
    }
    return sleeps_of_the_library() - before;
}

/* The library's thread sleeps at least once for each wait that depends on it. On a busy machine it
 * also wakes between waits, for timers and for the device, hence the rounds. */
static void a_wait_sleeps_on_the_device(void)
{
    static unsigned char memory[2][BYTES];
    DAT_LMR_HANDLE lmrs[2];
    DAT_LMR_TRIPLET local;
    DAT_RMR_TRIPLET remote;
    DAT_EVD_HANDLE requests;
    DAT_PSP_HANDLE psp;
    DAT_EVENT event;
    long sleeps;
    int round = 0;

    OK(dat_evd_create(ias[1], 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests));
    OK(dat_psp_create(ias[1], PORT, requests, DAT_PSP_CONSUMER_FLAG, &psp));
    local = REGION(ias[0], pzs[0], memory[0], BYTES, &lmrs[0], &remote);
    REGION(ias[1], pzs[1], memory[1], BYTES, &lmrs[1], &remote);
    connect_to(PORT, PATIENCE);
    event = EXPECT(requests, DAT_CONNECTION_REQUEST_EVENT);
    OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, eps[1], 0, NULL));
    EXPECT(conns[0], DAT_CONNECTION_EVENT_ESTABLISHED);
    EXPECT(conns[1], DAT_CONNECTION_EVENT_ESTABLISHED);
    do {
        sleeps = sleeps_of_a_round(&local, &remote, memory[0], memory[1]);
        printf("%ld sleeps of the library's thread for %d waits\n", sleeps, WRITES);
    } while (sleeps >= WRITES / 2 && ++round < ROUNDS);
    HOLDS(sleeps < WRITES / 2);
    OK(dat_ep_disconnect(eps[0], DAT_CLOSE_ABRUPT_FLAG));
    EXPECT(conns[0], DAT_CONNECTION_EVENT_DISCONNECTED);
    EXPECT(conns[1], DAT_CONNECTION_EVENT_DISCONNECTED);
}

int main(int count, char **arguments)
{
    int i;

    if (count != 4) {
        fprintf(stderr, "usage: waits IA IA ADDRESS\n");
        return EXIT_FAILURE;
    }
    alarm(60);
    memset(&peer, 0, sizeof peer);
    peer.sin_family = AF_INET;
    HOLDS(inet_pton(AF_INET, arguments[3], &peer.sin_addr) == 1);
    for (i = 0; i < 2; i++) {
        DAT_EVD_HANDLE async = DAT_HANDLE_NULL;

        OK(dat_ia_open(arguments[1 + i], 8, &async, &ias[i]));
        OK(dat_pz_create(ias[i], &pzs[i]));
        OK(dat_evd_create(ias[i], 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conns[i]));
        OK(dat_evd_create(ias[i], 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &dtos[i]));
        OK(dat_ep_create(ias[i], pzs[i], dtos[i], dtos[i], conns[i], NULL, &eps[i]));
    }
    an_agent_may_wait();
    a_wait_sleeps_on_the_device();
    for (i = 0; i < 2; i++)
        OK(dat_ia_close(ias[i], DAT_CLOSE_ABRUPT_FLAG));
    return EXIT_SUCCESS;
}
