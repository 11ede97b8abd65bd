/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that are cancelled, asleep in a call or in the midst of one, by either type of
 * cancellation. Another thread can then wait for the same object, and no lock stays taken.
 *
 *     cancellation IA */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"
#include <dat/dat_registry.h>
#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#define ROUNDS 50

static DAT_IA_HANDLE ia;
static DAT_EVD_HANDLE evd;
static DAT_CNO_HANDLE cno;
static int type, handled;

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

static void post(DAT_EVD_HANDLE to)
{
    DAT_EVENT event;

    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(to, &event));
}

/* No thread waits on the EVD, and one event is on it. */
static void can_wait(void)
{
    DAT_EVENT event;
    DAT_COUNT more = -1;

    FAILS(DAT_TIMEOUT_EXPIRED, dat_evd_wait(evd, 0, 2, &event, &more));
    HOLDS(more == 1);
}

/* The program's own handler runs after the library's. */
static void handler(void *argument)
{
    HOLDS(argument == &handled);
    can_wait();
    handled++;
}

static void *wait_for_event(void *argument)
{
    DAT_EVENT event;
    DAT_COUNT more;

    (void)argument;
    HOLDS(pthread_setcanceltype(type, NULL) == 0);
    pthread_cleanup_push(handler, &handled);
    dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 2, &event, &more);
    fprintf(stderr, "the wait has ended\n");
    exit(EXIT_FAILURE);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *wait_for_trigger(void *argument)
{
    DAT_EVD_HANDLE triggered;

    (void)argument;
    HOLDS(pthread_setcanceltype(type, NULL) == 0);
    dat_cno_wait(cno, DAT_TIMEOUT_INFINITE, &triggered);
    return NULL;
}

/* Calls that have nothing to wait for. */
static void *make_calls(void *argument)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_EVD_PARAM param;

    (void)argument;
    HOLDS(pthread_setcanceltype(type, NULL) == 0);
    for (;;) {
        dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param);
        dat_evd_wait(evd, 0, 2, &event, &more);
    }
    return NULL;
}

/* Like an object of a provider that is not registered: the library looks for it. */
static DAT_HANDLE stray(void)
{
    static const void *object[1];

    return (DAT_HANDLE)object;
}

static void *search(void *argument)
{
    DAT_EVENT event;
    DAT_COUNT more;

    (void)argument;
    HOLDS(pthread_setcanceltype(type, NULL) == 0);
    for (;;) {
        dat_pz_free((DAT_PZ_HANDLE)stray());
        /* A cancellation point. */
        dat_evd_wait((DAT_EVD_HANDLE)stray(), 0, 1, &event, &more);
    }
    return NULL;
}

static void *wait_immune(void *argument)
{
    DAT_EVENT event;
    DAT_COUNT more;

    (void)argument;
    HOLDS(pthread_setcanceltype(type, NULL) == 0);
    HOLDS(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
    OK(dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 2, &event, &more));
    handled = 1;
    /* As the program has set it, whatever the library has done meanwhile. */
    pthread_testcancel();
    handled = 2;
    HOLDS(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
    pthread_testcancel();
    handled = 3;
    return NULL;
}

/* Waits until another thread waits on the EVD, which makes this wait DAT_INVALID_STATE. */
static void until_waiting(void)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN status;

    do
        status = dat_evd_wait(evd, 0, 2, &event, &more);
    while (DAT_GET_TYPE(status) == DAT_TIMEOUT_EXPIRED);
    FAILS(DAT_INVALID_STATE, status);
}

static void cancel(pthread_t thread)
{
    void *result = NULL;

    HOLDS(pthread_cancel(thread) == 0);
    HOLDS(pthread_join(thread, &result) == 0);
    HOLDS(result == PTHREAD_CANCELED);
}

static void on_evds(void)
{
    DAT_EVENT event;
    DAT_COUNT more;
    pthread_t thread;
    int round, before = 0;

    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    post(evd);
    handled = 0;
    for (round = 0; round < ROUNDS; round++) {
        HOLDS(pthread_create(&thread, NULL, wait_for_event, NULL) == 0);
        until_waiting();
        /* Asleep, or about to sleep. */
        if (round % 2 == 0)
            usleep(1000);
        cancel(thread);
        HOLDS(handled == round + 1);
        can_wait();
        if (round == 0)
            before = descriptors();
    }
    HOLDS(descriptors() == before);
    for (round = 0; round < ROUNDS; round++) {
        HOLDS(pthread_create(&thread, NULL, make_calls, NULL) == 0);
        usleep(100 * (round % 10));
        cancel(thread);
        can_wait();
    }
    handled = 0;
    HOLDS(pthread_create(&thread, NULL, wait_immune, NULL) == 0);
    until_waiting();
    HOLDS(pthread_cancel(thread) == 0);
    usleep(1000);
    post(evd);
    HOLDS(pthread_join(thread, NULL) == 0);
    HOLDS(handled == 2);
    can_wait();
    post(evd);
    OK(dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 2, &event, &more));
    HOLDS(more == 1);
    OK(dat_evd_free(evd));
}

static void on_cnos(void)
{
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;
    DAT_EVD_HANDLE triggered;
    DAT_EVENT event;
    pthread_t thread;
    int round;

    OK(dat_cno_create(ia, none, &cno));
    OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
    for (round = 0; round < ROUNDS; round++) {
        HOLDS(pthread_create(&thread, NULL, wait_for_trigger, NULL) == 0);
        usleep(100 * (round % 20));
        cancel(thread);
        FAILS(DAT_QUEUE_EMPTY, dat_cno_wait(cno, 0, &triggered));
        post(evd);
        OK(dat_cno_wait(cno, PATIENCE, &triggered));
        HOLDS(triggered == evd);
        OK(dat_evd_dequeue(evd, &event));
    }
    OK(dat_evd_free(evd));
    OK(dat_cno_free(cno));
}

/* Another provider's handles are looked for behind a lock. */
static void on_strays(void)
{
    pthread_t thread;
    int round;

    for (round = 0; round < 10 * ROUNDS; round++) {
        HOLDS(pthread_create(&thread, NULL, search, NULL) == 0);
        usleep(10 * (round % 10));
        cancel(thread);
        FAILS(DAT_INVALID_HANDLE, dat_pz_free((DAT_PZ_HANDLE)stray()));
    }
}

int main(int count, char **arguments)
{
    static const int types[] = { PTHREAD_CANCEL_DEFERRED, PTHREAD_CANCEL_ASYNCHRONOUS };
    static DAT_PROVIDER other;
    DAT_PROVIDER_INFO info;
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
    unsigned each;

    if (count != 2)
        return EXIT_FAILURE;
    /* A lock that stays taken hangs the test. */
    alarm(120);
    OK(dat_ia_open(arguments[1], 8, &async_evd, &ia));
    for (each = 0; each < sizeof types / sizeof types[0]; each++) {
        type = types[each];
        on_evds();
        on_cnos();
    }
    memset(&info, 0, sizeof info);
    strcpy(info.ia_name, "other");
    info.dapl_version_major = 1;
    info.dapl_version_minor = 2;
    OK(dat_registry_add_provider(&other, &info));
    for (each = 0; each < sizeof types / sizeof types[0]; each++) {
        type = types[each];
        on_strays();
    }
    OK(dat_registry_remove_provider(&other, &info));
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    return EXIT_SUCCESS;
}
