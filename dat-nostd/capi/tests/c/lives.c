/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Devices that come and go: with the last IA a device is given back, and can be opened again, by this process and by another; while
 * threads wait on it, by an agent, by threads that open and close it at once; and nothing of them stays in the process. Arguments: an IA
 * name, how often, how often to see that nothing grows. */
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *name;

static DAT_IA_HANDLE open_ia(void)
{
    DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
    DAT_IA_HANDLE ia;

    OK(dat_ia_open(name, 8, &async, &ia));
    return ia;
}

/* A child process can open a device that nobody has, and none that somebody has. */
static int child_opens(void)
{
    pid_t child = fork();
    int status;

    HOLDS(child >= 0);
    if (child == 0) {
        DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
        DAT_IA_HANDLE ia;

        _exit(dat_ia_open(name, 8, &async, &ia) == DAT_SUCCESS && dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) == DAT_SUCCESS ? 1 : 0);
    }
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void one_after_the_other(int times)
{
    DAT_IA_HANDLE first, second;
    DAT_PZ_HANDLE pz, stale;
    DAT_PZ_PARAM param;
    int round;

    first = open_ia();
    OK(dat_pz_create(first, &stale));
    OK(dat_ia_close(first, DAT_CLOSE_ABRUPT_FLAG));
    HOLDS(child_opens());
    for (round = 0; round < times; round++) {
        first = open_ia();
        second = open_ia();
        /* Handles of a life before are not of this one. */
        FAILS(DAT_INVALID_HANDLE, dat_pz_free(stale));
        OK(dat_pz_create(second, &pz));
        OK(dat_ia_close(first, DAT_CLOSE_GRACEFUL_FLAG));
        /* It is still the other's. */
        OK(dat_pz_query(pz, DAT_PZ_FIELD_ALL, &param));
        if (round == 0)
            HOLDS(!child_opens());
        FAILS(DAT_INVALID_STATE, dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG));
        OK(dat_pz_free(pz));
        OK(dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG));
        FAILS(DAT_INVALID_HANDLE, dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG));
    }
    HOLDS(child_opens());
}

struct wait {
    DAT_EVD_HANDLE evd;
    DAT_RETURN status;
};

static void *wait_for_event(void *argument)
{
    struct wait *wait = (struct wait *)argument;
    DAT_EVENT event;
    DAT_COUNT more;

    wait->status = dat_evd_wait(wait->evd, DAT_TIMEOUT_INFINITE, 1, &event, &more);
    return NULL;
}

static void while_threads_wait(void)
{
    DAT_IA_HANDLE ia = open_ia();
    struct wait waits[4];
    pthread_t threads[4];
    DAT_EVENT event;
    int i;

    for (i = 0; i < 4; i++) {
        OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &waits[i].evd));
        HOLDS(pthread_create(&threads[i], NULL, wait_for_event, &waits[i]) == 0);
        /* Who waits on an EVD takes its events alone. */
        while (DAT_GET_TYPE(dat_evd_dequeue(waits[i].evd, &event)) != DAT_INVALID_STATE)
            usleep(1000);
    }
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    for (i = 0; i < 4; i++) {
        HOLDS(pthread_join(threads[i], NULL) == 0);
        FAILS(DAT_ABORT, waits[i].status);
    }
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t called = PTHREAD_COND_INITIALIZER;
static int is_closed;

static void close_it(DAT_PVOID ia, DAT_EVD_HANDLE evd)
{
    (void)evd;
    OK(dat_ia_close((DAT_IA_HANDLE)ia, DAT_CLOSE_ABRUPT_FLAG));
    pthread_mutex_lock(&mutex);
    is_closed = 1;
    pthread_cond_signal(&called);
    pthread_mutex_unlock(&mutex);
}

static void by_an_agent(void)
{
    DAT_IA_HANDLE ia = open_ia();
    DAT_OS_WAIT_PROXY_AGENT agent;
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE evd;
    DAT_EVENT event;

    agent.instance_data = ia;
    agent.proxy_agent_func = close_it;
    OK(dat_cno_create(ia, agent, &cno));
    OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(evd, &event));
    pthread_mutex_lock(&mutex);
    while (!is_closed)
        pthread_cond_wait(&called, &mutex);
    pthread_mutex_unlock(&mutex);
    FAILS(DAT_INVALID_HANDLE, dat_evd_free(evd));
    HOLDS(child_opens());
}

static int inside, outside;

static void take_time(DAT_PVOID instance_data, DAT_EVD_HANDLE evd)
{
    (void)evd;
    __sync_fetch_and_add(&inside, 1);
    usleep(50000);
    __sync_fetch_and_add((int *)instance_data, 1);
}

static void nobody(DAT_PVOID instance_data, DAT_EVD_HANDLE evd)
{
    (void)instance_data;
    (void)evd;
}

/* An agent is not in its function any more when its CNO has gone, when the CNO has another, when its IA has gone. */
static void after_agents(void)
{
    int way;

    for (way = 0; way < 4; way++) {
        DAT_IA_HANDLE ia = open_ia(), other = open_ia();
        DAT_OS_WAIT_PROXY_AGENT agent;
        DAT_CNO_HANDLE cno;
        DAT_EVD_HANDLE evd;
        DAT_EVENT event;

        inside = outside = 0;
        agent.instance_data = &outside;
        agent.proxy_agent_func = take_time;
        OK(dat_cno_create(ia, agent, &cno));
        OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
        memset(&event, 0, sizeof event);
        event.event_number = DAT_SOFTWARE_EVENT;
        OK(dat_evd_post_se(evd, &event));
        while (__sync_fetch_and_add(&inside, 0) == 0)
            usleep(100);
        if (way == 0) {
            OK(dat_evd_free(evd));
            OK(dat_cno_free(cno));
        } else if (way == 1) {
            agent.instance_data = &inside;
            agent.proxy_agent_func = nobody;
            OK(dat_cno_modify_agent(cno, agent));
        } else if (way == 2) {
            /* The device closes, too. */
            OK(dat_ia_close(other, DAT_CLOSE_ABRUPT_FLAG));
            other = DAT_HANDLE_NULL;
        }
        if (way != 1 && way != 0)
            OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
        HOLDS(__sync_fetch_and_add(&outside, 0) == 1);
        if (way == 1 || way == 0)
            OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
        if (other != DAT_HANDLE_NULL)
            OK(dat_ia_close(other, DAT_CLOSE_ABRUPT_FLAG));
    }
}

static int last_calls;

static void hear_of_the_end(DAT_PVOID instance_data, DAT_EVD_HANDLE evd)
{
    HOLDS(evd == DAT_HANDLE_NULL);
    usleep(5000);
    __sync_fetch_and_add((int *)instance_data, 1);
}

static void close_the_other(DAT_PVOID other, DAT_EVD_HANDLE evd)
{
    (void)evd;
    OK(dat_ia_close((DAT_IA_HANDLE)other, DAT_CLOSE_ABRUPT_FLAG));
    pthread_mutex_lock(&mutex);
    is_closed = 1;
    pthread_cond_signal(&called);
    pthread_mutex_unlock(&mutex);
}

/* Agents that wait for their first call hear that their CNOs are gone, before the close returns; an agent that closes the IA does not wait
 * for the calls that come after its own. */
static void last_calls_of_agents(void)
{
    DAT_IA_HANDLE keeper = open_ia();
    int way, i;

    for (way = 0; way < 2; way++) {
        DAT_IA_HANDLE ia = open_ia();
        DAT_OS_WAIT_PROXY_AGENT agent;
        DAT_CNO_HANDLE cno;

        last_calls = is_closed = 0;
        agent.instance_data = &last_calls;
        agent.proxy_agent_func = hear_of_the_end;
        for (i = 0; i < 8; i++)
            OK(dat_cno_create(ia, agent, &cno));
        if (way == 0) {
            OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
            HOLDS(__sync_fetch_and_add(&last_calls, 0) == 8);
        } else {
            DAT_EVD_HANDLE evd;
            DAT_EVENT event;

            agent.instance_data = ia;
            agent.proxy_agent_func = close_the_other;
            OK(dat_cno_create(keeper, agent, &cno));
            OK(dat_evd_create(keeper, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
            memset(&event, 0, sizeof event);
            event.event_number = DAT_SOFTWARE_EVENT;
            OK(dat_evd_post_se(evd, &event));
            pthread_mutex_lock(&mutex);
            while (!is_closed)
                pthread_cond_wait(&called, &mutex);
            pthread_mutex_unlock(&mutex);
            while (__sync_fetch_and_add(&last_calls, 0) != 8)
                usleep(100);
        }
    }
    OK(dat_ia_close(keeper, DAT_CLOSE_ABRUPT_FLAG));
}

static void *open_and_close(void *argument)
{
    int round, times = *(int *)argument;

    for (round = 0; round < times; round++) {
        DAT_IA_HANDLE ia = open_ia();
        DAT_PZ_HANDLE pz;

        OK(dat_pz_create(ia, &pz));
        OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    }
    return NULL;
}

static void at_once(int times)
{
    pthread_t threads[4];
    int i;

    for (i = 0; i < 4; i++)
        HOLDS(pthread_create(&threads[i], NULL, open_and_close, &times) == 0);
    for (i = 0; i < 4; i++)
        HOLDS(pthread_join(threads[i], NULL) == 0);
    HOLDS(child_opens());
}

/* Megabytes of addresses that the process has mapped. */
static long megabytes(void)
{
    FILE *status = fopen("/proc/self/statm", "r");
    long pages = 0;

    HOLDS(status != NULL && fscanf(status, "%ld", &pages) == 1 && fclose(status) == 0);
    return pages / (1048576 / sysconf(_SC_PAGESIZE));
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    HOLDS(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* A device with what programs make on it. */
static void live_once(void)
{
    static char bytes[10000];
    DAT_IA_HANDLE ia = open_ia();
    DAT_REGION_DESCRIPTION region;
    DAT_EVD_HANDLE dto, connection;
    DAT_LMR_CONTEXT context;
    DAT_LMR_HANDLE lmr;
    DAT_PZ_HANDLE pz;
    DAT_EP_HANDLE ep;

    region.for_va = bytes;
    OK(dat_pz_create(ia, &pz));
    OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof bytes, pz, DAT_MEM_PRIV_ALL_FLAG, &lmr, &context, NULL, NULL, NULL));
    OK(dat_evd_create(ia, 100, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &dto));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connection));
    OK(dat_ep_create(ia, pz, dto, dto, connection, NULL, &ep));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

static void nothing_grows(int times)
{
    long before;
    int round, open;

    /* Allocators and threads take what they keep. */
    for (round = 0; round < 3; round++)
        live_once();
    before = megabytes();
    open = descriptors();
    for (round = 0; round < times; round++)
        live_once();
    /* The threads of the last ones may still be on their way out. */
    for (round = 0; descriptors() > open && round < PATIENCE / 1000; round++)
        usleep(1000);
    /* A device has more than 300 of them. */
    HOLDS(megabytes() < before + 100);
    HOLDS(descriptors() <= open);
}

int main(int count, char **arguments)
{
    int times;

    if (count != 4)
        return EXIT_FAILURE;
    name = arguments[1];
    times = atoi(arguments[2]);
    /* Against hanging. */
    alarm(600);
    nothing_grows(atoi(arguments[3]));
    one_after_the_other(times);
    while_threads_wait();
    by_an_agent();
    after_agents();
    last_calls_of_agents();
    at_once(times);
    return EXIT_SUCCESS;
}
