/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What ends a wait from outside: a signal, an object that goes; and a child process.
 *
 *     interruptions IA */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static DAT_IA_HANDLE ia;
static int handled, over;

static void handler(int number)
{
    (void)number;
    __sync_fetch_and_add(&handled, 1);
}

/* A wait without an end, and what it came to. */
struct wait {
    DAT_EVD_HANDLE evd;
    DAT_CNO_HANDLE cno;
    DAT_RETURN status;
    DAT_EVD_HANDLE saw;
};

static void *wait_for_event(void *argument)
{
    struct wait *wait = (struct wait *)argument;
    DAT_EVENT event;
    DAT_COUNT more = -1;

    wait->status = dat_evd_wait(wait->evd, DAT_TIMEOUT_INFINITE, 2, &event, &more);
    if (DAT_GET_TYPE(wait->status) == DAT_INTERRUPTED_CALL)
        HOLDS(more == 1);
    __sync_fetch_and_add(&over, 1);
    return NULL;
}

static void *wait_for_trigger(void *argument)
{
    struct wait *wait = (struct wait *)argument;

    wait->saw = ia;
    wait->status = dat_cno_wait(wait->cno, DAT_TIMEOUT_INFINITE, &wait->saw);
    __sync_fetch_and_add(&over, 1);
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

static void evd_wait_in(pthread_t *thread, struct wait *wait)
{
    HOLDS(pthread_create(thread, NULL, wait_for_event, wait) == 0);
    until_waiting(wait->evd);
}

static void signals(void)
{
    struct sigaction action;
    struct wait wait;
    pthread_t thread;
    DAT_EVENT event;

    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    HOLDS(sigaction(SIGUSR1, &action, NULL) == 0);
    memset(&wait, 0, sizeof wait);
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &wait.evd));
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    OK(dat_evd_post_se(wait.evd, &event));
    over = 0;
    evd_wait_in(&thread, &wait);
    /* A signal that comes before the thread sleeps ends nothing: another one follows. */
    while (__sync_fetch_and_add(&over, 0) == 0) {
        HOLDS(pthread_kill(thread, SIGUSR1) == 0);
        usleep(1000);
    }
    HOLDS(pthread_join(thread, NULL) == 0);
    FAILS(DAT_INTERRUPTED_CALL, wait.status);
    HOLDS(handled > 0);
    /* Nothing is lost. */
    OK(dat_evd_dequeue(wait.evd, &event));
    OK(dat_evd_free(wait.evd));
}

static void goings(void)
{
    DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;
    DAT_EVD_HANDLE feeding;
    struct wait wait, trigger;
    pthread_t thread, other;
    DAT_EVENT event;

    memset(&wait, 0, sizeof wait);
    memset(&trigger, 0, sizeof trigger);
    /* Freed. */
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &wait.evd));
    evd_wait_in(&thread, &wait);
    FAILS(DAT_INVALID_STATE, dat_evd_dequeue(wait.evd, &event));
    OK(dat_evd_free(wait.evd));
    HOLDS(pthread_join(thread, NULL) == 0);
    FAILS(DAT_ABORT, wait.status);
    /* Made unwaitable. */
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &wait.evd));
    evd_wait_in(&thread, &wait);
    OK(dat_evd_set_unwaitable(wait.evd));
    HOLDS(pthread_join(thread, NULL) == 0);
    FAILS(DAT_INVALID_STATE, wait.status);
    /* Closed with its IA, and so is a CNO. */
    OK(dat_evd_clear_unwaitable(wait.evd));
    OK(dat_cno_create(ia, none, &trigger.cno));
    OK(dat_evd_create(ia, 8, trigger.cno, DAT_EVD_SOFTWARE_FLAG, &feeding));
    evd_wait_in(&thread, &wait);
    HOLDS(pthread_create(&other, NULL, wait_for_trigger, &trigger) == 0);
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    HOLDS(pthread_join(thread, NULL) == 0);
    HOLDS(pthread_join(other, NULL) == 0);
    FAILS(DAT_ABORT, wait.status);
    /* The thread was late, or it was released. */
    HOLDS(DAT_GET_TYPE(trigger.status) == DAT_INVALID_HANDLE || (trigger.status == DAT_SUCCESS && trigger.saw == DAT_HANDLE_NULL));
    FAILS(DAT_INVALID_HANDLE, dat_evd_free(feeding));
}

/* Sockets that the process has: an emulated HCA's are. */
static int sockets(void)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    char path[300], target[64];
    int count = 0;

    HOLDS(folder != NULL);
    while ((entry = readdir(folder)) != NULL) {
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        length = readlink(path, target, sizeof target);
        count += length > 7 && memcmp(target, "socket:", 7) == 0;
    }
    closedir(folder);
    return count;
}

static int sockets_before;

static void children(char *name)
{
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
    DAT_PZ_HANDLE pz;
    int status;
    pid_t child;

    OK(dat_pz_create(ia, &pz));
    child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        DAT_IA_HANDLE own;

        FAILS(DAT_INVALID_HANDLE, dat_pz_free(pz));
        FAILS(DAT_INVALID_HANDLE, dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
        /* The device is its parent's, and does not stay open as long as the child lives. */
        HOLDS(sockets() == sockets_before);
        HOLDS(dat_ia_open(name, 8, &evd, &own) != DAT_SUCCESS);
        _exit(EXIT_SUCCESS);
    }
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    /* The parent's device goes on. */
    OK(dat_pz_free(pz));
    HOLDS(sockets() > sockets_before);
}

int main(int count, char **arguments)
{
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;

    if (count != 2)
        return EXIT_FAILURE;
    sockets_before = sockets();
    OK(dat_ia_open(arguments[1], 8, &async_evd, &ia));
    HOLDS(sockets() > sockets_before);
    signals();
    children(arguments[1]);
    goings();
    return EXIT_SUCCESS;
}
