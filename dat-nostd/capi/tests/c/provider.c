/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A provider of the program's own, whose handles are pointers to objects that begin with its table, beside an IA of the library's.
 *
 *     provider IA */
#include "check.h"
#include <dat/dat_registry.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

struct object {
    const DAT_PROVIDER *provider;
    DAT_HANDLE_TYPE type;
    DAT_CONTEXT context;
};

static DAT_PROVIDER table;
static struct object ia_object, evd_object, pz_object;
static int opened, closed, freed;

static DAT_RETURN open_ia(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *evd, DAT_IA_HANDLE *ia)
{
    HOLDS(strcmp(name, "own") == 0 && qlen == 7 && *evd == DAT_HANDLE_NULL);
    opened++;
    ia_object.provider = evd_object.provider = &table;
    ia_object.type = DAT_HANDLE_TYPE_IA;
    evd_object.type = DAT_HANDLE_TYPE_EVD;
    *evd = &evd_object;
    *ia = &ia_object;
    return DAT_SUCCESS;
}

static DAT_RETURN close_ia(DAT_IA_HANDLE ia, DAT_CLOSE_FLAGS flags)
{
    HOLDS(ia == &ia_object && flags == DAT_CLOSE_GRACEFUL_FLAG);
    closed++;
    return DAT_SUCCESS;
}

static DAT_RETURN set_context(DAT_HANDLE handle, DAT_CONTEXT context)
{
    ((struct object *)handle)->context = context;
    return DAT_SUCCESS;
}

static DAT_RETURN get_context(DAT_HANDLE handle, DAT_CONTEXT *context)
{
    *context = ((struct object *)handle)->context;
    return DAT_SUCCESS;
}

static DAT_RETURN type_of(DAT_HANDLE handle, DAT_HANDLE_TYPE *type)
{
    *type = ((struct object *)handle)->type;
    return DAT_SUCCESS;
}

static DAT_RETURN create_pz(DAT_IA_HANDLE ia, DAT_PZ_HANDLE *pz)
{
    HOLDS(ia == &ia_object);
    pz_object.provider = &table;
    pz_object.type = DAT_HANDLE_TYPE_PZ;
    *pz = &pz_object;
    return DAT_SUCCESS;
}

static DAT_RETURN free_pz(DAT_PZ_HANDLE pz)
{
    HOLDS(pz == &pz_object);
    freed++;
    return DAT_CLASS_ERROR | DAT_INVALID_STATE;
}

/* One of the calls that are made often. */
static DAT_RETURN dequeue(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
    HOLDS(evd == &evd_object);
    event->event_number = DAT_SOFTWARE_EVENT;
    event->evd_handle = evd;
    return DAT_SUCCESS;
}

static int over;

/* Has the library look for the provider of a handle, again and again. */
static void *look(void *argument)
{
    DAT_HANDLE_TYPE type;

    while (__sync_fetch_and_add(&over, 0) == 0)
        OK(dat_get_handle_type(argument, &type));
    return NULL;
}

/* A child process finds no lock taken, whatever its parent's threads do meanwhile, and has no handles. */
static void children(DAT_IA_HANDLE ia)
{
    pthread_t threads[2];
    DAT_HANDLE_TYPE type;
    int round, status;
    pid_t child;

    for (round = 0; round < 2; round++)
        HOLDS(pthread_create(&threads[round], NULL, look, ia) == 0);
    for (round = 0; round < 200; round++) {
        child = fork();
        HOLDS(child >= 0);
        if (child == 0) {
            alarm(20);
            FAILS(DAT_INVALID_HANDLE, dat_get_handle_type(ia, &type));
            _exit(EXIT_SUCCESS);
        }
        HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    }
    __sync_fetch_and_add(&over, 1);
    for (round = 0; round < 2; round++)
        HOLDS(pthread_join(threads[round], NULL) == 0);
}

int main(int count, char **arguments)
{
    char own[] = "own";
    DAT_IA_HANDLE ia, library;
    DAT_EVD_HANDLE evd = DAT_HANDLE_NULL, other = DAT_HANDLE_NULL;
    DAT_HANDLE_TYPE type;
    DAT_PROVIDER_INFO info;
    DAT_CONTEXT context;
    DAT_PZ_HANDLE pz;
    DAT_EVENT event;

    if (count != 2)
        return EXIT_FAILURE;
    memset(&table, 0, sizeof table);
    table.device_name = "own device";
    table.ia_open_func = open_ia;
    table.ia_close_func = close_ia;
    table.set_consumer_context_func = set_context;
    table.get_consumer_context_func = get_context;
    table.get_handle_type_func = type_of;
    table.pz_create_func = create_pz;
    table.pz_free_func = free_pz;
    table.evd_dequeue_func = dequeue;
    memset(&info, 0, sizeof info);
    strcpy(info.ia_name, own);
    info.dapl_version_major = 1;
    info.dapl_version_minor = 2;
    FAILS(DAT_PROVIDER_NOT_FOUND, dat_ia_open(own, 7, &evd, &ia));
    OK(dat_registry_add_provider(&table, &info));
    OK(dat_ia_open(own, 7, &evd, &ia));
    HOLDS(opened == 1 && ia == &ia_object && evd == &evd_object);
    OK(dat_ia_open(arguments[1], 8, &other, &library));
    /* Calls go where their handle belongs. */
    OK(dat_get_handle_type(evd, &type));
    HOLDS(type == DAT_HANDLE_TYPE_EVD);
    OK(dat_get_handle_type(library, &type));
    HOLDS(type == DAT_HANDLE_TYPE_IA);
    context.as_64 = 0x1234567890;
    OK(dat_set_consumer_context(ia, context));
    context.as_64 = 0;
    OK(dat_get_consumer_context(ia, &context));
    HOLDS(context.as_64 == 0x1234567890 && ia_object.context.as_64 == 0x1234567890);
    OK(dat_pz_create(ia, &pz));
    HOLDS(pz == &pz_object);
    /* With the answer that it gives. */
    HOLDS(dat_pz_free(pz) == (DAT_CLASS_ERROR | DAT_INVALID_STATE) && freed == 1);
    OK(dat_evd_dequeue(evd, &event));
    HOLDS(event.event_number == DAT_SOFTWARE_EVENT && event.evd_handle == evd);
    FAILS(DAT_QUEUE_EMPTY, dat_evd_dequeue(other, &event));
    OK(dat_pz_create(library, &pz));
    HOLDS(pz != &pz_object);
    OK(dat_pz_free(pz));
    HOLDS(freed == 1);
    children(ia);
    /* By the macros, too. */
    HOLDS(dats_handle_to_provider(ia) == &table && dats_handle_to_provider(library) != &table);
    OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    HOLDS(closed == 1);
    /* A provider that is gone has no handles. */
    OK(dat_registry_remove_provider(&table, &info));
    FAILS(DAT_INVALID_HANDLE, dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
    FAILS(DAT_INVALID_HANDLE, dat_evd_dequeue(evd, &event));
    HOLDS(closed == 1);
    evd = DAT_HANDLE_NULL;
    FAILS(DAT_PROVIDER_NOT_FOUND, dat_ia_open(own, 7, &evd, &ia));
    OK(dat_ia_close(library, DAT_CLOSE_ABRUPT_FLAG));
    return EXIT_SUCCESS;
}
