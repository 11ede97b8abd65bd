/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The parts of the test of all calls. */
#ifndef CALLS_H
#define CALLS_H

#include "check.h"

/* Calls on objects that need no peer. */
void objects(char *name, DAT_IA_HANDLE ia, DAT_EVD_HANDLE async_evd);

/* Endpoints without a connection, shared receive queues and service points. */
void endpoints(DAT_IA_HANDLE ia);

/* One end of the connections: it connects, or it is connected to. */
struct side {
    DAT_IA_HANDLE ia;
    DAT_EVD_HANDLE async_evd;
};

/* Connections and transfers between two sides, of which a process has one or both. */
void connections(const struct side *active, const struct side *passive, const char *address);

#endif /* CALLS_H */
