/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* All calls, and their answers.
 *
 *     calls both ACTIVE-IA PASSIVE-IA ADDRESS
 *     calls active IA ADDRESS
 *     calls passive IA ADDRESS
 *
 * ADDRESS is the passive side's. */
#include "calls.h"

static struct side open_side(char *name)
{
    struct side side;

    side.async_evd = DAT_HANDLE_NULL;
    OK(dat_ia_open(name, 8, &side.async_evd, &side.ia));
    objects(name, side.ia, side.async_evd);
    endpoints(side.ia);
    return side;
}

static void close_side(const struct side *side)
{
    DAT_EVENT event;

    HOLDS(dat_evd_dequeue(side->async_evd, &event) == DAT_QUEUE_EMPTY);
    /* Everything was freed. */
    OK(dat_ia_close(side->ia, DAT_CLOSE_GRACEFUL_FLAG));
    FAILS(DAT_INVALID_HANDLE, dat_evd_free(side->async_evd));
}

int main(int count, char **arguments)
{
    struct side active, passive;

    if (count == 5 && strcmp(arguments[1], "both") == 0) {
        active = open_side(arguments[2]);
        passive = open_side(arguments[3]);
        connections(&active, &passive, arguments[4]);
        close_side(&active);
        close_side(&passive);
    } else if (count == 4 && strcmp(arguments[1], "active") == 0) {
        active = open_side(arguments[2]);
        connections(&active, NULL, arguments[3]);
        close_side(&active);
    } else if (count == 4 && strcmp(arguments[1], "passive") == 0) {
        passive = open_side(arguments[2]);
        connections(NULL, &passive, arguments[3]);
        close_side(&passive);
    } else {
        fprintf(stderr, "usage: %s both|active|passive IA.. ADDRESS\n", arguments[0]);
        return EXIT_FAILURE;
    }
    puts("all calls answered as they should");
    return EXIT_SUCCESS;
}
