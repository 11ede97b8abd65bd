/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A device that fails under threads that wait, without an end.
 *
 *     failure IA */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

static DAT_IA_HANDLE ia;

/* A wait and what it came to. */
struct wait {
    DAT_EVD_HANDLE evd;
    DAT_CNO_HANDLE cno;
    DAT_RETURN status;
    DAT_EVENT event;
    DAT_EVD_HANDLE saw;
};

static void *wait_for_event(void *argument)
{
    struct wait *wait = (struct wait *)argument;
    DAT_COUNT more;

    wait->status = dat_evd_wait(wait->evd, DAT_TIMEOUT_INFINITE, 1, &wait->event, &more);
    return NULL;
}

static void *wait_for_trigger(void *argument)
{
    struct wait *wait = (struct wait *)argument;

    wait->saw = ia;
    wait->status = dat_cno_wait(wait->cno, DAT_TIMEOUT_INFINITE, &wait->saw);
    return NULL;
}

/* Ends the looking. */
static volatile int enough;

/* Looks without waiting, so that the device's own thread is not the one that finds it dead. */
static void *look(void *argument)
{
    struct wait *wait = (struct wait *)argument;
    DAT_COUNT more;

    do
        wait->status = dat_evd_wait(wait->evd, 0, 1, &wait->event, &more);
    while (!enough && DAT_GET_TYPE(wait->status) == DAT_TIMEOUT_EXPIRED);
    return NULL;
}

/* Until a thread waits on an EVD nobody else is refused. */
static void until_waiting(DAT_EVD_HANDLE evd)
{
    DAT_EVENT event;
    DAT_COUNT more;
    DAT_RETURN status;

    do
        status = dat_evd_wait(evd, 0, 2, &event, &more);
    while (DAT_GET_TYPE(status) == DAT_TIMEOUT_EXPIRED);
    FAILS(DAT_INVALID_STATE, status);
}

int main(int count, char **arguments)
{
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, feeding;
    struct wait failure, software, trigger, looked;
    pthread_t threads[4];
    DAT_EVENT event;
    DAT_PZ_HANDLE pz;
    DAT_COUNT i;

    /* Against hanging. */
    alarm(120);
    if (count != 2)
        return EXIT_FAILURE;
    memset(&failure, 0, sizeof failure);
    memset(&software, 0, sizeof software);
    memset(&trigger, 0, sizeof trigger);
    memset(&looked, 0, sizeof looked);
    OK(dat_ia_open(arguments[1], 8, &async_evd, &ia));
    failure.evd = async_evd;
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &software.evd));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &looked.evd));
    OK(dat_cno_create(ia, none, &trigger.cno));
    OK(dat_evd_create(ia, 8, trigger.cno, DAT_EVD_SOFTWARE_FLAG, &feeding));
    HOLDS(pthread_create(&threads[0], NULL, wait_for_event, &failure) == 0);
    HOLDS(pthread_create(&threads[1], NULL, wait_for_event, &software) == 0);
    HOLDS(pthread_create(&threads[2], NULL, wait_for_trigger, &trigger) == 0);
    HOLDS(pthread_create(&threads[3], NULL, look, &looked) == 0);
    until_waiting(failure.evd);
    until_waiting(software.evd);
    printf("waiting\n");
    fflush(stdout);
    HOLDS(pthread_join(threads[0], NULL) == 0);
    OK(failure.status);
    HOLDS(failure.event.event_number == DAT_ASYNC_ERROR_IA_CATASTROPHIC);
    HOLDS(failure.event.event_data.asynch_error_event_data.dat_handle == ia);
    /* Nothing comes any more. */
    HOLDS(pthread_join(threads[1], NULL) == 0 && pthread_join(threads[2], NULL) == 0);
    enough = 1;
    HOLDS(pthread_join(threads[3], NULL) == 0);
    FAILS(DAT_TIMEOUT_EXPIRED, looked.status);
    FAILS(DAT_INTERNAL_ERROR, software.status);
    FAILS(DAT_INTERNAL_ERROR, trigger.status);
    HOLDS(trigger.saw == DAT_HANDLE_NULL);
    FAILS(DAT_INTERNAL_ERROR, dat_evd_wait(software.evd, DAT_TIMEOUT_INFINITE, 1, &event, &i));
    /* What is there is still given. */
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(feeding, &event));
    OK(dat_cno_wait(trigger.cno, DAT_TIMEOUT_INFINITE, &trigger.saw));
    HOLDS(trigger.saw == feeding);
    EXPECT(feeding, DAT_SOFTWARE_EVENT);
    /* Nothing can be made any more, and all of it goes. */
    FAILS(DAT_INTERNAL_ERROR, dat_pz_create(ia, &pz));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    printf("closed\n");
    fflush(stdout);
    /* The device comes back, and is opened again. */
    async_evd = DAT_HANDLE_NULL;
    while (dat_ia_open(arguments[1], 8, &async_evd, &ia) != DAT_SUCCESS) {
        usleep(10000);
        async_evd = DAT_HANDLE_NULL;
    }
    OK(dat_pz_create(ia, &pz));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    return EXIT_SUCCESS;
}
