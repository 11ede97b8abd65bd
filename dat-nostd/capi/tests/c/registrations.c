/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Other threads have the device while firmware takes a second for a region of one thread, or while
 * its memory is being pinned or unpinned.
 *
 *     registrations IA create|free|close|both [PINNING]: the slow call, or what ends a slow creation;
 *     with the name of a file that exists as soon as memory is being pinned or unpinned. "both": one
 *     thread waits for a pin while firmware works on the region of another one */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

#define BYTES (1 << 30)
#define RECEIVES 8
#define ROUNDS 200

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_LMR_HANDLE lmr;
static unsigned char memory[BYTES], page[4096];
static int begun, over;

static DAT_RETURN create(void *start, DAT_VLEN bytes, DAT_LMR_HANDLE *handle)
{
    DAT_REGION_DESCRIPTION region;
    DAT_LMR_CONTEXT context;

    region.for_va = start;
    return dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, bytes, pz, DAT_MEM_PRIV_ALL_FLAG, handle,
                          &context, NULL, NULL, NULL);
}

static void *slow_create(void *status)
{
    __sync_fetch_and_add(&begun, 1);
    *(DAT_RETURN *)status = create(memory, sizeof memory, &lmr);
    __sync_fetch_and_add(&over, 1);
    return NULL;
}

static void *slow_key(void *status)
{
    DAT_LMR_HANDLE small;

    __sync_fetch_and_add(&begun, 1);
    *(DAT_RETURN *)status = create(page, sizeof page, &small);
    __sync_fetch_and_add(&over, 1);
    OK(dat_lmr_free(small));
    return NULL;
}

static void *slow_free(void *status)
{
    __sync_fetch_and_add(&begun, 1);
    *(DAT_RETURN *)status = dat_lmr_free(lmr);
    __sync_fetch_and_add(&over, 1);
    return NULL;
}

int main(int count, char **arguments)
{
    DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, other_async = DAT_HANDLE_NULL, dto, conn, software;
    DAT_IA_HANDLE other_ia = DAT_HANDLE_NULL;
    DAT_EP_HANDLE ep;
    DAT_EVENT event;
    DAT_RETURN status = DAT_INTERNAL_ERROR, key_status = DAT_INTERNAL_ERROR;
    pthread_t thread, key_thread;
    int pins, frees, closes, both, i;

    HOLDS(count == 3 || count == 4);
    pins = count == 4;
    frees = strcmp(arguments[2], "free") == 0;
    closes = strcmp(arguments[2], "close") == 0;
    both = strcmp(arguments[2], "both") == 0;
    OK(dat_ia_open(arguments[1], 8, &async_evd, &ia));
    /* The device stays open while an IA is closed. */
    if (pins)
        OK(dat_ia_open(arguments[1], 8, &other_async, &other_ia));
    OK(dat_pz_create(ia, &pz));
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &dto));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &software));
    OK(dat_ep_create(ia, pz, dto, dto, conn, NULL, &ep));
    if (frees)
        OK(create(memory, sizeof memory, &lmr));
    HOLDS(pthread_create(&thread, NULL, frees ? slow_free : slow_create, &status) == 0);
    while (__sync_fetch_and_add(&begun, 0) == 0)
        usleep(1000);
    while (pins && access(arguments[3], F_OK) != 0)
        usleep(1000);
    if (both)
        HOLDS(pthread_create(&key_thread, NULL, slow_key, &key_status) == 0);
    while (both && __sync_fetch_and_add(&begun, 0) == 1)
        usleep(1000);
    if (!pins || both)
        usleep(100000);
    for (i = 0; i < ROUNDS; i++) {
        if (i < RECEIVES)
            OK(dat_ep_post_recv(ep, 0, NULL, cookie_of(i), DAT_COMPLETION_DEFAULT_FLAG));
        memset(&event, 0, sizeof event);
        event.event_number = DAT_SOFTWARE_EVENT;
        OK(dat_evd_post_se(software, &event));
        OK(dat_evd_dequeue(software, &event));
        FAILS(DAT_QUEUE_EMPTY, dat_evd_dequeue(dto, &event));
        if (i == RECEIVES)
            HOLDS(__sync_fetch_and_add(&over, 0) == 0);
    }
    /* The zone of a region is in use, and a region is freed once. */
    FAILS(DAT_INVALID_STATE, dat_pz_free(pz));
    if (frees)
        FAILS(pins ? DAT_INVALID_HANDLE : DAT_INVALID_STATE, dat_lmr_free(lmr));
    /* Firmware may be done with a key on a busy machine. A pin ends when the test lets it. */
    HOLDS(__sync_fetch_and_add(&over, 0) <= both);
    if (closes)
        OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    if (pins)
        HOLDS(__sync_fetch_and_add(&over, 0) <= both);
    puts("served");
    HOLDS(fflush(stdout) == 0);
    if (closes) {
        HOLDS(pthread_join(thread, NULL) == 0);
        FAILS(DAT_INVALID_HANDLE, status);
        if (pins)
            OK(dat_ia_close(other_ia, DAT_CLOSE_ABRUPT_FLAG));
        return EXIT_SUCCESS;
    }
    HOLDS(pthread_join(thread, NULL) == 0);
    OK(status);
    if (both) {
        HOLDS(pthread_join(key_thread, NULL) == 0);
        OK(key_status);
    }
    if (!frees)
        OK(dat_lmr_free(lmr));
    FAILS(DAT_INVALID_HANDLE, dat_lmr_free(lmr));
    OK(dat_ep_free(ep));
    OK(dat_pz_free(pz));
    OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
    if (pins)
        OK(dat_ia_close(other_ia, DAT_CLOSE_ABRUPT_FLAG));
    return EXIT_SUCCESS;
}
